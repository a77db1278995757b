from __future__ import annotations

import fcntl
import json
import os
import sys
from pathlib import Path

import pytest

from enlace.cli import app
from enlace.config.load import load_config
from enlace.data.shards import Shards
from enlace.train.family import about, join_family
from enlace.train.finished import mark_exported
from enlace.train.progress import Meter, fit_with_progress
from enlace.train.run import make_trainer
from tests.conftest import ROOT
from tests.train.test_trainer import cpu_runtime


def enlace(monkeypatch: pytest.MonkeyPatch, *words: str) -> None:
    monkeypatch.setattr(sys, "argv", ["enlace", *words])
    app.run()


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small_shards: Shards) -> Path:
    """Two runs, "aaaa", cut at step 6 under another learning rate than the project's, and "bbbb", done."""
    config = load_config(ROOT)
    train = config.train.model_copy(
        update={"steps": 12, "decay_steps": 4, "seq_len": 32, "batch_tokens": 256, "warmup_steps": 2, "lr": 0.02}
    )
    for name in ("aaaa", "bbbb"):
        run = tmp_path / "runs" / name
        told = about(model=config.model, train=train, mixture=config.data.mixture, hardware=config.hardware)
        join_family(run.parent, run, name, train, told)
        trainer = make_trainer(config.model, train, config.data.mixture, small_shards, cpu_runtime(), 8, run)
        cut = name == "aaaa"

        def validate(step_loss: object, cut: bool = cut) -> dict[str, float]:
            return {"val_loss": 3.0}

        if cut:
            trainer.train = train.model_copy(update={"steps": 6})
        fit_with_progress(trainer, validate, Meter(trainer, 3.0, watts=None, peak_flops=None))
        if not cut:
            mark_exported(run, trainer.keep)
    monkeypatch.setenv("RUNS_DIR", str(tmp_path / "runs"))
    monkeypatch.chdir(ROOT)
    return tmp_path / "runs"


def test_lists_how_far_each_is_and_how_to_go_on(
    runs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    enlace(monkeypatch, "runs")
    said = " ".join(capsys.readouterr().out.split())
    assert "aaaa cortada paso 6 de 12" in said and "bbbb terminada paso 12 de 12" in said
    assert "train.lr=0.02 (ahora 0.01)" in said and "repite: make train" in said
    assert "hardware" not in said

    with (runs / "aaaa" / ".lock").open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        enlace(monkeypatch, "runs")
        assert "aaaa  en marcha" in capsys.readouterr().out
        with pytest.raises(Exception, match="se está entrenando"):
            enlace(monkeypatch, "runs", "clean", "aaaa")


def test_a_run_that_was_moved_is_told_from_one_that_is_exact(
    runs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    enlace(monkeypatch, "runs")
    assert "bit a bit" not in capsys.readouterr().out
    status = runs / "aaaa" / "estado.json"
    status.write_text(json.dumps(json.loads(status.read_text()) | {"environments": 2}))
    enlace(monkeypatch, "runs")
    assert capsys.readouterr().out.count("Entrenada en 2 entornos: no es exacta bit a bit.") == 1


def test_cleans_what_is_done_and_what_is_named_only(
    runs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    enlace(monkeypatch, "runs", "clean")
    assert [path.name for path in runs.iterdir()] == ["aaaa"]
    assert "Borrada bbbb" in capsys.readouterr().out
    enlace(monkeypatch, "runs", "clean")
    assert "ninguna terminada" in capsys.readouterr().out
    with pytest.raises(Exception, match="Ninguna de las ejecuciones"):
        enlace(monkeypatch, "runs", "clean", "zz")
    enlace(monkeypatch, "runs", "clean", "aa")
    assert list(runs.iterdir()) == []
    enlace(monkeypatch, "runs")
    assert "make train" in capsys.readouterr().out


def test_what_is_damaged_or_foreign_is_no_traceback(
    runs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, note in {"cut": '{"family', "older": '{"steps": 10}', "list": "[]"}.items():
        (runs / name).mkdir()
        (runs / name / "run.json").write_text(note)
    (runs / "lost" / "step-00000010").mkdir(parents=True)
    (runs / "photos" / "step-by-step").mkdir(parents=True)
    (runs / "aaaa" / "step-by-step").mkdir()
    (runs / "aaaa" / "step-00000006.bak").mkdir()
    (runs / "gone.tmp").mkdir()
    (runs / "gone.tmp" / "run.json").write_text((runs / "bbbb" / "run.json").read_text())
    enlace(monkeypatch, "runs")
    said = " ".join(capsys.readouterr().out.split())
    assert "aaaa cortada paso 6 de 12" in said and "lost cortada paso 10 de ?" in said
    assert said.count("no se entiende") == 4 and "enlace runs clean older" in said
    assert "photos" not in said and "gone" not in said
    enlace(monkeypatch, "runs", "clean", "lost", "older")
    enlace(monkeypatch, "watch", "list")
    assert not (runs / "lost").exists() and (runs / "photos").exists()


def test_a_kill_while_cleaning_is_mended_the_next_time(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (runs / "bbbb.tmp" / "step-00000004").mkdir(parents=True)  # what a kill left of one of the same name
    enlace(monkeypatch, "runs", "clean", "bbbb")
    assert [path.name for path in runs.iterdir()] == ["aaaa"]


def test_watch_draws_the_curves(
    runs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    enlace(monkeypatch, "watch", "aaaa")
    said = capsys.readouterr().out
    assert "paso 6 de 6" in said and "bits/byte" in said and "tokens/s" in said
    assert "pérdida" in said and "en texto reservado" in said and "\x1b" not in said


def test_looks_where_the_settings_file_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(os, "environ", os.environ.copy())
    for name in ("RUNS_DIR", "DVC_ROOT"):
        monkeypatch.delenv(name, raising=False)
    for name in ("params.yaml", "configs"):
        (tmp_path / name).symlink_to(ROOT / name)
    (tmp_path / ".env").write_text(f"RUNS_DIR={tmp_path}/otras\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    enlace(monkeypatch, "runs")
    assert f"No hay ninguna en {tmp_path}/otras." in capsys.readouterr().out.replace("\n", "")
