"""The training stage itself: what becomes of earlier runs, and what the person sees, when it cannot go on."""

from __future__ import annotations

import os
import re
import resource
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, NoReturn

import pytest
import torch

from enlace import EnlaceError
from enlace.data.shards import Shards
from enlace.durable import locked
from enlace.stages.train import _train
from enlace.train.distributed import World
from enlace.train.finished import LOCK, is_exported
from enlace.train.trainer import Trainer
from tests.conftest import ROOT
from tests.stages.test_pipeline import MODEL, SMALL

PROFILE = {"precision": "float32", "threads": "1", "keep_heap": "false"}


def _set(path: Path, changes: dict[str, str]) -> None:
    text = path.read_text(encoding="utf-8")
    for key, value in changes.items():
        text, n = re.subn(rf"^( *{key}:) \S+", rf"\1 {value}", text, flags=re.MULTILINE)
        assert n == 1, key
    path.write_text(text, encoding="utf-8")


@pytest.fixture
def project(tmp_path: Path, small_shards: Shards, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project whose shards are made, set to a tiny run; the current folder."""
    shutil.copytree(ROOT / "configs", tmp_path / "configs")
    shutil.copy(ROOT / "params.yaml", tmp_path)
    (tmp_path / "configs/model/prueba.yaml").write_text(MODEL, encoding="utf-8")
    _set(tmp_path / "params.yaml", SMALL | {"corpus": "wikipedia-es"})
    _set(tmp_path / "configs/hardware/cpu.yaml", PROFILE)
    (tmp_path / "data").mkdir()
    (tmp_path / "data/shards").symlink_to(small_shards.folder)
    monkeypatch.chdir(tmp_path)
    for name in ("DVC_ROOT", "RUNS_DIR", "RANK"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def test_a_run_that_fails_leaves_the_exported_one_before_it(
    project: Path, small_shards: Shards, monkeypatch: pytest.MonkeyPatch
) -> None:
    _train(World())
    [exported] = (project / ".runs").iterdir()
    assert is_exported(exported)

    held_out = sum(s.n_tokens for s in small_shards.streams if (s.split, s.kind) == ("val", "corpus"))
    seq_len = held_out // 2 + 1  # too long for the held-out text, not for that to train on
    _set(project / "params.yaml", {"seq_len": str(seq_len), "batch_tokens": str(4 * seq_len)})
    with pytest.raises(EnlaceError, match=r"corpus \(val\)"):
        _train(World())
    assert is_exported(exported)

    _set(project / "params.yaml", {"seq_len": "128", "batch_tokens": "1024"})
    with monkeypatch.context() as no_memory, pytest.raises(EnlaceError, match="memoria"):
        no_memory.setattr(Trainer, "train_step", _without_memory)
        _train(World())
    assert is_exported(exported)

    _train(World())
    assert not exported.exists(), "forgotten once another took its place"


def test_the_model_is_exported_with_the_tokenizer_of_its_shards(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever became of data/shards in the days that the training took."""
    shards = project / "data/shards"
    copied = project / "copied"
    shutil.copytree(shards, copied)
    shards.unlink()
    copied.rename(shards)
    tokenizer = (shards / "tokenizer.json").read_bytes()
    fit = Trainer.fit

    def spoil(*given: Any) -> None:
        (shards / "tokenizer.json").write_bytes(tokenizer + b" ")
        fit(*given)

    monkeypatch.setattr(Trainer, "fit", spoil)
    _train(World())
    assert (project / "models/enlace/tokenizer.json").read_bytes() == tokenizer


def test_what_no_row_has_room_for_is_told(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _train(World())
    assert "train.seq_len" not in capsys.readouterr().out
    _set(project / "params.yaml", {"seq_len": "32", "batch_tokens": "256", "max_new_tokens": "8"})
    _train(World())
    assert "train.seq_len=32" in capsys.readouterr().out


def test_conversations_that_do_not_fit_stop_only_who_asks_for_them(project: Path) -> None:
    _set(project / "params.yaml", {"seq_len": "16", "batch_tokens": "128", "max_new_tokens": "8"})
    with pytest.raises(EnlaceError, match=r"chat .* train\.seq_len=16"):
        _train(World())
    params = project / "params.yaml"
    params.write_text(
        params.read_text().replace("decay: {corpus: 0.75, chat: 0.25}", "decay: {corpus: 1.0, chat: 0.0}")
    )
    _train(World())


def _without_memory(*_: object) -> NoReturn:
    raise torch.OutOfMemoryError("CUDA out of memory")


def _said_by_two(limit: int | None = None) -> str:
    """What the stage says in two processes that cannot write files of more than `limit` bytes."""

    def no_room() -> None:
        if limit is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

    ended = subprocess.run(
        [sys.executable, "-m", "enlace.stages.train"],
        env=os.environ | {"GPUS": "2"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=120,
        preexec_fn=no_room,
    )
    assert ended.returncode == 1, ended.stdout
    return ended.stdout


def _assert_only_the_first_complains(said: str) -> None:
    assert "Traceback" not in said and "Connection" not in said and said.count("error:") == 1, said


def test_of_two_processes_only_the_first_says_that_another_trains_the_run(project: Path) -> None:
    _train(World())
    [run] = (project / ".runs").iterdir()
    with locked(run / LOCK, ""):
        said = _said_by_two()
    assert "Otro proceso ya está entrenando" in said
    _assert_only_the_first_complains(said)


@pytest.mark.usefixtures("project")
def test_of_two_processes_only_the_first_says_that_the_disk_is_full() -> None:
    said = _said_by_two(limit=50_000)
    assert "no se pudo guardar" in said and "libera espacio" in said
    _assert_only_the_first_complains(said)
