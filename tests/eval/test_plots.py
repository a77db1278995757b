from __future__ import annotations

import csv
import io
import math
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from enlace.eval.plots import (
    bits_per_byte_by_step,
    csv_bytes,
    pairs_picture,
    read_log,
    training_pictures,
)
from enlace.eval.statistics import share

LOG = """step,phase,loss,lr,grad_norm,scale,trained_tokens,skipped,val_loss,val_chat_loss
0,stable,6.0,0.1,1.5,1.0,256,0,,
1,stable,,0.2,,1.0,256,1,5.5,6.5
2,decay,4.0,0.1,1.1,1.0,256,0,,
3,decay,3.5,0.05,0.9,1.0,256,0,3.9,4.1
"""


@pytest.fixture
def log(tmp_path: Path) -> Path:
    (tmp_path / "train.csv").write_text(LOG, encoding="utf-8")
    return tmp_path / "train.csv"


def test_held_out_losses_become_bits_per_byte_where_there_are_any(log: Path) -> None:
    rows = bits_per_byte_by_step(read_log(log), {"val_loss": 0.25, "val_chat_loss": 0.5})
    assert [row["step"] for row in rows] == [2, 4]
    assert rows[1]["val_bits_per_byte"] == pytest.approx(3.9 * 0.25 / math.log(2), abs=1e-5)
    assert rows[1]["val_chat_bits_per_byte"] == pytest.approx(4.1 * 0.5 / math.log(2), abs=1e-5)
    assert "val_chat_bits_per_byte" not in bits_per_byte_by_step(read_log(log), {"val_loss": 0.25})[0]
    back = list(csv.DictReader(io.StringIO(csv_bytes(rows).decode())))
    assert back[0]["step"] == "2" and float(back[0]["val_bits_per_byte"]) == rows[0]["val_bits_per_byte"]


def test_pictures_are_svg_with_letters_and_the_same_bytes_each_time(log: Path) -> None:
    pytest.importorskip("matplotlib")
    rows = read_log(log)
    by_step = bits_per_byte_by_step(rows, {"val_loss": 0.25, "val_chat_loss": 0.5})
    shares = {"ser_estar": share([True] * 70 + [False] * 30), "por_para": share([True, False] * 50)}
    pictures = [*training_pictures(rows, by_step), pairs_picture(shares)]
    assert [picture.title.split(" por ")[0] for picture in pictures][:4] == [
        "Pérdida",
        "Bits",
        "Tasa de aprendizaje",
        "Norma del gradiente",
    ]
    for picture in pictures:
        assert ET.fromstring(picture.svg).tag.endswith("svg")
        assert b"<text" in picture.svg, "letters, not their outlines: a reader's font, and a small file"
    assert "texto reservado, empieza en 5.5 y acaba en 3.9" in pictures[0].text
    assert "ser estar, 70 %" in pictures[-1].text and b"ser estar" in pictures[-1].svg
    again = [*training_pictures(rows, by_step), pairs_picture(shares)]
    assert [picture.svg for picture in again] == [picture.svg for picture in pictures]
