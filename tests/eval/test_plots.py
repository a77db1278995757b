from __future__ import annotations

from pathlib import Path

import pytest

from enlace.eval.plots import bars, training_curves, write_pictures

LOG = """step,phase,loss,lr,grad_norm,scale,trained_tokens,skipped,val_loss,val_chat_loss
0,stable,6.0,0.1,1.5,1.0,256,0,,
1,stable,,0.2,,1.0,256,1,5.5,6.5
2,decay,4.0,0.1,1.1,1.0,256,0,,
3,decay,3.5,0.05,0.9,1.0,256,0,3.9,4.1
"""


def test_pictures_are_pngs_with_the_same_bytes_each_time(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    log = tmp_path / "train.csv"
    log.write_text(LOG, encoding="utf-8")
    pictures = {
        "training": training_curves(log),
        "bars": bars("Bits por byte", {"wiki": 1.5, "hogar": 2.0}, {"wiki": 3.0}),
    }
    assert all(data.startswith(b"\x89PNG") and len(data) > 5000 for data in pictures.values())
    assert training_curves(log) == pictures["training"]
    write_pictures(tmp_path / "reports", pictures)
    assert (tmp_path / "reports" / "bars.png").read_bytes() == pictures["bars"]
