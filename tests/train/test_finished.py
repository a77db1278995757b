from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch

from enlace.durable import locked
from enlace.train import checkpoint
from enlace.train.checkpoint import Retention
from enlace.train.finished import LOCK, forget_others, mark_exported

KEEP = Retention(2, None, 0)


def _run(folder: Path, *, exported: bool) -> Path:
    for step in (5, 10):
        checkpoint.save(folder, step, {"step": step}, KEEP)
    (folder / "step-00000015.tmp").mkdir()
    if exported:
        mark_exported(folder, KEEP)
    return folder


def _newest(run: Path) -> int:
    state = checkpoint.load_newest(run, torch.device("cpu"), pytest.fail)
    assert state is not None
    return int(state["step"])


def test_an_exported_run_keeps_its_newest_checkpoint_and_can_be_exported_again(tmp_path: Path) -> None:
    run = _run(tmp_path / "a", exported=True)
    assert [path.name for path in run.glob("step-*")] == ["step-00000010"]
    assert _newest(run) == 10


def test_only_what_was_exported_and_is_not_this_run_is_forgotten(tmp_path: Path) -> None:
    cut, old, mine = (_run(tmp_path / name, exported=name != "cut") for name in ("cut", "old", "mine"))
    (tmp_path / "0123456789abcdef.tmp").mkdir()  # of a run whose removal was killed
    (tmp_path / "photos.tmp").mkdir()  # somebody's
    forget_others(tmp_path, mine)
    assert sorted(tmp_path.iterdir()) == [cut, mine, tmp_path / "photos.tmp"] and not old.exists()
    assert (_newest(cut), _newest(mine)) == (10, 10)
    forget_others(tmp_path / "none yet", mine)


def test_a_run_that_is_being_trained_again_is_not_forgotten(tmp_path: Path) -> None:
    again = _run(tmp_path / "again", exported=True)
    with locked(again / LOCK, "en marcha"):
        forget_others(tmp_path, tmp_path / "mine")
    assert _newest(again) == 10
    forget_others(tmp_path, tmp_path / "mine")
    assert not again.exists()


def test_a_run_that_cannot_be_removed_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The training that just ended is whole: a run of another user's beside it must not make the stage fail."""
    _run(tmp_path / "other", exported=True)

    def not_ours(folder: Path, ignore_errors: bool = False) -> None:
        if not ignore_errors:
            raise PermissionError(folder)

    monkeypatch.setattr(shutil, "rmtree", not_ours)
    for _ in range(2):  # again, when what is left of it bears another name
        forget_others(tmp_path, tmp_path / "mine")
        assert [path.name for path in tmp_path.iterdir()] == ["other.tmp"]


def test_a_kill_while_forgetting_leaves_no_damaged_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = _run(tmp_path / "0123456789abcdef", exported=True)

    def killed(folder: Path, ignore_errors: bool = False) -> None:
        next(folder.rglob("manifest.json")).unlink()
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(shutil, "rmtree", killed)
        forget_others(tmp_path, tmp_path / "b")
    assert checkpoint.load_newest(run, torch.device("cpu"), pytest.fail) is None, "a fresh start, without complaint"
    forget_others(tmp_path, run)
    assert list(tmp_path.iterdir()) == []
