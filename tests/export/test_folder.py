"""An export is there whole or not at all, and never at the cost of something else."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from enlace import EnlaceError
from enlace.export.folder import in_place


def _write(target: Path, content: str, *, force: bool = False) -> None:
    with in_place(target, force=force, replaceable="config.json") as folder:
        folder.mkdir()
        (folder / "config.json").write_text(content)


def test_a_failure_leaves_nothing_new_and_what_there_was(tmp_path: Path) -> None:
    target = tmp_path / "hondo" / "hf"
    with pytest.raises(ZeroDivisionError), in_place(target, force=False, replaceable="config.json") as folder:
        folder.mkdir()
        (folder / "config.json").write_text("mitad")
        raise ZeroDivisionError
    assert list(target.parent.iterdir()) == []
    _write(target, "uno")
    with pytest.raises(KeyboardInterrupt), in_place(target, force=True, replaceable="config.json") as folder:
        folder.mkdir()
        raise KeyboardInterrupt
    assert (target / "config.json").read_text() == "uno"
    assert list(target.parent.iterdir()) == [target]


def test_a_kill_leaves_no_half_folder_and_the_next_export_clears_up(tmp_path: Path) -> None:
    target = tmp_path / "hf"
    program = (
        "import os, signal, sys; from pathlib import Path; from enlace.export.folder import in_place\n"
        "with in_place(Path(sys.argv[1]), force=False, replaceable='config.json') as folder:\n"
        "    folder.mkdir(); (folder / 'model.safetensors').write_bytes(b'half')\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    killed = subprocess.run([sys.executable, "-c", program, str(target)], check=False)
    assert killed.returncode == -signal.SIGKILL
    assert not target.exists()
    _write(target, "uno")
    assert os.listdir(tmp_path) == ["hf"]  # noqa: PTH208 (hidden ones too)
    assert os.listdir(target) == ["config.json"]  # noqa: PTH208


def test_what_is_there_is_replaced_only_when_asked_and_only_an_export(tmp_path: Path) -> None:
    target = tmp_path / "hf"
    target.mkdir()
    _write(target, "uno")  # an empty folder is free
    with pytest.raises(EnlaceError, match=r"ya existe.*--force"):
        _write(target, "dos")
    _write(target, "dos", force=True)
    assert (target / "config.json").read_text() == "dos"
    photos = tmp_path / "fotos"
    photos.mkdir()
    (photos / "boda.jpg").write_bytes(b"x")
    with pytest.raises(EnlaceError, match="otras cosas"):
        _write(photos, "dos", force=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["fotos", "hf"]
    assert (photos / "boda.jpg").read_bytes() == b"x"


def test_a_place_that_cannot_be_written_is_a_message(tmp_path: Path) -> None:
    (tmp_path / "archivo").write_text("x")
    with pytest.raises(EnlaceError, match="no se puede escribir"):
        _write(tmp_path / "archivo" / "hf", "uno")
    with pytest.raises(EnlaceError, match="no se puede escribir"):
        _write(tmp_path / "archivo", "uno", force=True)
    assert (tmp_path / "archivo").read_text() == "x"
