from __future__ import annotations

import fcntl
import json
import os
import shutil
import sys
from pathlib import Path

import pytest

from enlace.cli import app
from enlace.config.load import load_config
from enlace.config.schema import Config, Mixture
from enlace.data.shards import Shards
from enlace.train.family import SOURCES, about, family, join_family
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
        relatives = family(config.model, train, config.data.mixture, small_shards) if name == "aaaa" else name
        join_family(run.parent, run, relatives, train, told)
        trainer = make_trainer(config.model, train, config.data.mixture, small_shards, cpu_runtime(), 8, run)
        cut = name == "aaaa"

        def validate(step_loss: object, cut: bool = cut) -> dict[str, float]:
            return {"val_loss": 3.0}

        if cut:
            trainer.train = train.model_copy(update={"steps": 6})
        fit_with_progress(trainer, validate, Meter(trainer, 3.0, watts=None, peak_flops=None))
        if not cut:
            mark_exported(run, trainer.keep)
    project = tmp_path / "project"
    (project / "data").mkdir(parents=True)
    for path, target in {"params.yaml": ROOT, "configs": ROOT, "data/shards": small_shards.folder}.items():
        (project / path).symlink_to(target / path if target == ROOT else target)
    monkeypatch.setenv("RUNS_DIR", str(tmp_path / "runs"))
    monkeypatch.chdir(project)
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


def _rewritten(run: Path, shards: Shards, config: Config) -> None:
    """The note of `run` as under the values of `config`."""
    told = about(model=config.model, train=config.train, mixture=config.data.mixture)
    relatives = family(config.model, config.train, config.data.mixture, shards)
    join_family(run.parent, run, relatives, config.train, told)


def test_each_value_is_told_with_its_file_and_as_it_is_written_there(
    runs: Path, small_shards: Shards, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = load_config(ROOT)
    half = Mixture(corpus=0.5, chat=0.5)
    mask = {True: "true", False: "false"}
    was, masked = now.train.document_mask, not now.train.document_mask
    train = now.train.model_copy(update={"document_mask": masked, "optimizer": "adamw", "checkpoint_every": 7})
    data = now.data.model_copy(update={"mixture": now.data.mixture.model_copy(update={"stable": half})})
    narrow = now.model.model_copy(update={"d_model": 32})
    _rewritten(runs / "aaaa", small_shards, now.model_copy(update={"train": train, "data": data, "model": narrow}))
    enlace(monkeypatch, "runs")
    said = " ".join(capsys.readouterr().out.split())
    width = now.model.d_model
    assert (
        "Para seguir, pon en params.yaml train.optimizer=adamw (ahora muon); "
        f"train.document_mask={mask[masked]} (ahora {mask[was]}); "
        "data.mixture.stable.corpus=0.5 (ahora 1.0); data.mixture.stable.chat=0.5 (ahora 0.0) y en "
        f"configs/model/{now.layers.model}.yaml d_model=32 (ahora {width}) y repite: make train" in said
    )

    base = load_config(ROOT, changes={"model": "base"}).model
    _rewritten(runs / "aaaa", small_shards, now.model_copy(update={"model": base}))
    enlace(monkeypatch, "runs")
    said = " ".join(capsys.readouterr().out.split())
    assert f"pon en params.yaml model=base (ahora {now.layers.model}) y repite: make train" in said


def test_a_cut_run_of_other_code_or_data_is_not_said_to_go_on(
    runs: Path, small_shards: Shards, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def said() -> str:
        enlace(monkeypatch, "runs")
        return " ".join(capsys.readouterr().out.split())

    def cannot(what: str) -> bool:
        told = said()
        return f"No puede seguir con {what}:" in told and "clean aaaa" in told and "Para seguir" not in told

    note = runs / "aaaa" / "run.json"
    assert "Para seguir" in said()
    monkeypatch.setattr("enlace.train.family.SOURCES", SOURCES[1:])
    assert cannot("este código")
    older = json.loads(note.read_text())
    del older["source"]  # as it was written before it said so
    note.write_text(json.dumps(older))
    assert cannot("este código o estos datos (data/shards)")
    monkeypatch.setattr("enlace.train.family.SOURCES", SOURCES)
    assert "Para seguir" in said()
    note.write_text(json.dumps(older | {"about": older["about"] | {"model.d_model": "ancho"}}))
    assert cannot("este código o estos datos (data/shards)")

    _rewritten(runs / "aaaa", small_shards, load_config(ROOT))
    shards = Path("data/shards")
    shards.unlink()
    assert "Para seguir" in said(), "they are yet to be built: nobody knows"
    shutil.copytree(small_shards.folder, shards)
    manifest = shards / "manifest.json"
    manifest.write_text(json.dumps(json.loads(manifest.read_text()) | {"dropped": {"corto": 1}}))
    assert cannot("estos datos (data/shards)")


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
    with pytest.raises(Exception, match="Ninguna de las ejecuciones"):
        enlace(monkeypatch, "runs", "clean", "")  # what a script says whose variable is empty
    assert [path.name for path in runs.iterdir()] == ["aaaa"]
    enlace(monkeypatch, "runs", "clean", "aa", "aaaa")
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
