from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from enlace import EnlaceError
from enlace.commands.remote import app
from enlace.remote import cards, newest_run, pack, set_params, stop, trainer_of
from enlace.train.progress import STATUS, Status

# Holds the lock of the run, says so, and on SIGTERM saves a checkpoint and ends, as the trainer does.
TRAINER = """
    import signal, sys, time
    from pathlib import Path
    from enlace.durable import locked
    run = Path(sys.argv[1])
    def save(number, frame):
        (run / "step-00000007").mkdir()
        sys.exit(143)
    signal.signal(signal.SIGTERM, save)
    with locked(run / ".lock", "ocupado"):
        print("ya", flush=True)
        time.sleep(60)
"""


def _run(runs: Path, name: str = "aaaa", steps: int = 0, checkpoints: tuple[int, ...] = ()) -> Path:
    run = runs / name
    run.mkdir(parents=True)
    for step in checkpoints:
        folder = run / f"step-{step:08d}"
        folder.mkdir()
        (folder / "state.pt").write_bytes(b"%d" % step)
        (folder / "manifest.json").write_text("{}")
    records = [{"step": i, "loss": 3.0 - i / 1000} | ({"val_loss": 3.1} if i == 8 else {}) for i in range(steps)]
    if records:
        (run / "log.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    return run


def _at(path: Path, seconds: float) -> None:
    os.utime(path, (seconds, seconds))


def _status(run: Path, step: int, updated: float) -> None:
    figures: dict[str, float | None] = dict.fromkeys(field.name for field in dataclasses.fields(Status))
    told = {"step": step, "steps": 40, "loss": 2.5, "lr": 0.01, "scale": 1.0, "memory_gib": 1.5, "updated": updated}
    (run / STATUS).write_text(json.dumps(figures | told | {"tokens_per_second": 1200.0, "seconds_left": 7261.0}))


def test_the_status_is_what_the_trainer_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RUNS_DIR", str(tmp_path))
    told = CliRunner().invoke(app, ["status"])
    assert told.exit_code == 3 and "No hay ningún entrenamiento empezado" in told.output
    run = _run(tmp_path, steps=31, checkpoints=(10, 20, 30))
    (run / ".lock").touch()
    told = CliRunner().invoke(app, ["status"])
    assert told.exit_code == 3 and "parado: aún sin ningún paso; guardado, el 30." in told.output
    _status(run, 31, time.time())
    told = CliRunner().invoke(app, ["status"])
    assert "parado: paso 31 de 40; guardado, el 30." in told.output
    assert "pérdida 2.500" in told.output and "1 200 tokens/s" in told.output and "Quedan" not in told.output

    with subprocess.Popen([sys.executable, "-c", textwrap.dedent(TRAINER), str(run)], stdout=subprocess.PIPE) as child:
        assert child.stdout and child.stdout.readline()
        _status(run, 31, 1000.0)  # of the process before
        told = CliRunner().invoke(app, ["status"])
        assert told.exit_code == 0 and f"en marcha (proceso {child.pid}): paso 31 de 40" in told.output
        assert "Arrancando" in told.output and "Quedan" not in told.output
        _status(run, 32, time.time())
        assert "Quedan unos 2 h 1 min. Último dato, hace" in CliRunner().invoke(app, ["status"]).output
        child.kill()


def test_the_newest_run_is_the_one_that_wrote_last(tmp_path: Path) -> None:
    assert newest_run(tmp_path) is None
    old, new = _run(tmp_path, "ffff", steps=2), _run(tmp_path, "0000", steps=2)
    _run(tmp_path, "borrada.tmp", steps=2)
    _at(old / "log.jsonl", 1000)
    _at(new / "log.jsonl", 2000)
    assert newest_run(tmp_path) == new


def test_stopping_waits_until_it_is_saved(tmp_path: Path) -> None:
    run = _run(tmp_path, steps=3)
    assert trainer_of(run) is None
    command = [sys.executable, "-c", textwrap.dedent(TRAINER), str(run)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout and child.stdout.readline() == "ya\n"
        assert trainer_of(run) == child.pid
        assert stop(run) == 7
        assert child.wait(timeout=20) == 143
    assert trainer_of(run) is None
    assert stop(run) == 7, "once more changes nothing"


def test_stopping_what_will_not_stop_says_so(tmp_path: Path) -> None:
    run = _run(tmp_path, steps=3)
    deaf = textwrap.dedent(TRAINER).replace("sys.exit(143)", "return")
    with subprocess.Popen([sys.executable, "-c", deaf, str(run)], stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout and child.stdout.readline() == "ya\n"
        with pytest.raises(EnlaceError, match=f"{child.pid}.*Repite"):
            stop(run, wait=lambda seconds: None, max_wait=1.0)
        child.kill()


def test_packing_takes_the_newest_checkpoint_and_what_changed(tmp_path: Path) -> None:
    root, runs, out = tmp_path / "proyecto", tmp_path / "runs", tmp_path / "out"
    root.mkdir()
    run = _run(runs, steps=25, checkpoints=(10, 20))
    (run / "exportado").touch()
    (run / ".lock").write_text("1")
    (run / "step-00000030.tmp").mkdir()
    for name in ("params.yaml", "igual.txt", "reports/metrics.json"):
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).write_text("antes")
    (root / ".gitignore").write_text("models/*\n")
    for command in (["init", "-q"], ["add", "-A"], ["-c", "user.name=x", "-c", "user.email=x@x", "commit", "-qm", "x"]):
        subprocess.run(["git", *command], cwd=root, check=True)
    (root / "params.yaml").write_text("después")
    (root / "models/enlace").mkdir(parents=True)
    (root / "models/enlace/model.safetensors").write_bytes(b"x" * 2_000_000)

    checkpoint = {f"runs/aaaa/step-00000020/{name}" for name in ("state.pt", "manifest.json")}
    kept = {*checkpoint, "runs/aaaa/exportado", "runs/aaaa/log.jsonl"}
    assert pack(root, runs, out, results=False) == len(kept)
    assert _packed(out) == kept
    pack(root, runs, out, results=True)
    assert _packed(out) == {*kept, "project/params.yaml", "project/models/enlace/model.safetensors"}
    subprocess.run(["sha256sum", "--check", "--strict", "--quiet", "SHA256SUMS"], cwd=out, check=True)


def _packed(out: Path) -> set[str]:
    return {str(path.relative_to(out)) for path in out.rglob("*") if path.is_file()} - {"SHA256SUMS"}


def test_reads_what_nvidia_smi_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert cards() == []
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\necho 'NVIDIA GeForce RTX 2060, 4096, 6144, 71, 98'\n")
    tool.chmod(0o755)
    (card,) = cards()
    assert (card.name, card.used_gib, card.total_gib, card.celsius) == ("NVIDIA GeForce RTX 2060", 4.0, 6.0, "71")
    tool.write_text("#!/bin/sh\necho 'NVIDIA-SMI has failed'\nexit 9\n")
    assert cards() == []


def test_other_values_leave_the_rest_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "params.yaml"
    path.write_text("# lo que corre\ntrain:\n  lr: 0.01  # paso\n  steps: 10\ndata:\n  mix: {a: 1.0, b: 0.0}\n")
    set_params(path, {"train.lr": 0.001, "data.mix.a": 0.5})
    assert (
        path.read_text() == "# lo que corre\ntrain:\n  lr: 0.001 # paso\n  steps: 10\ndata:\n  mix: {a: 0.5, b: 0.0}\n"
    )
