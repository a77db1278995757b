"""The critical test: killed at any moment, any number of times, a run ends with the bits of one never interrupted."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from enlace.data.shards import Shards
from enlace.train.checkpoint import load_newest
from enlace.train.run import make_trainer
from tests.train.child import MIXTURE, MODEL, TRAIN
from tests.train.test_trainer import cpu_runtime

CHILD = Path(__file__).with_name("child.py")
STEPS = TRAIN.steps


def _start(
    shards: Shards, run: Path, hangup: signal.Handlers = signal.SIG_DFL, **options: Any
) -> subprocess.Popen[str]:
    """`hangup`: what SIGHUP does when the process starts, as nohup changes it."""
    command = [sys.executable, str(CHILD), str(shards.folder), str(run), json.dumps(options)]
    return subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGHUP, hangup) and None,
    )


def _lines(run: Path) -> int:
    log = run / "log.jsonl"
    return log.read_bytes().count(b"\n") if log.exists() else 0


def _finish(shards: Shards, run: Path, **options: Any) -> str:
    process = _start(shards, run, **options)
    output, _ = process.communicate(timeout=240)
    assert process.returncode == 0, output
    return output


def _kill_and_finish(shards: Shards, run: Path, kills: int, **options: Any) -> None:
    """Train `run` to its end, killed `kills` times at work, all along it: by turns anywhere and within a save."""
    draw = random.Random(json.dumps(options))
    within_a_save = 0
    for i in range(kills):
        process = _start(shards, run, **options)
        assert process.stdout is not None
        began = next(line for line in process.stdout if line.startswith(("began at", "resumed at")))
        target = max(int(began.split()[-1]) + 1, STEPS * (i + 1) // (kills + 1) + draw.randint(-1, 1))
        if i % 2:
            saves = range(TRAIN.checkpoint_every, STEPS, TRAIN.checkpoint_every)
            target = next((step for step in saves if step >= target), saves[-1])
        _wait(process, lambda: _lines(run) >= min(target, STEPS - 2))  # noqa: B023  called at once
        if i % 2:
            _wait(process, lambda: any(run.glob(f"step-{target:08d}*")))  # noqa: B023
        else:
            time.sleep(draw.uniform(0, 0.05))
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL, "a kill that came too late proves nothing"
        within_a_save += any(run.glob("step-*.tmp"))
    assert within_a_save >= kills // 10
    assert "resumed at" in _finish(shards, run, **options)


def _wait(process: subprocess.Popen[str], until: Callable[[], bool]) -> None:
    while not until() and process.poll() is None:
        time.sleep(0.0005)


def _state(run: Path) -> dict[str, Any]:
    complaints: list[str] = []
    state = load_newest(run, torch.device("cpu"), complaints.append)
    assert state is not None and not complaints
    return state


def _assert_same(a: Any, b: Any, where: str = "state") -> None:
    assert type(a) is type(b), where
    if isinstance(a, torch.Tensor):
        assert a.dtype == b.dtype and torch.equal(a, b), where
    elif isinstance(a, dict):
        assert list(a) == list(b), where
        for key in a:
            _assert_same(a[key], b[key], f"{where}.{key}")
    elif isinstance(a, list | tuple):
        assert len(a) == len(b), where
        for i, (x, y) in enumerate(zip(a, b, strict=True)):
            _assert_same(x, y, f"{where}[{i}]")
    else:
        assert a == b, where


PRECISIONS = ("float32", "float16", "bfloat16")


def _assert_resumes_exactly(shards: Shards, folder: Path, kills: int, **options: Any) -> None:
    loader = make_trainer(MODEL, TRAIN, MIXTURE, shards, cpu_runtime(), 8, folder).loader
    assert all(loader._rows_before(STEPS, name) > len(rows) for name, rows in loader.sources.items()), "an epoch ends"
    whole, cut = folder / "whole" / "run", folder / "cut" / "run"
    _finish(shards, whole, **options)
    _kill_and_finish(shards, cut, kills, **options)
    _assert_same(_state(whole), _state(cut))
    assert (whole / "log.jsonl").read_bytes() == (cut / "log.jsonl").read_bytes()
    records = [json.loads(line) for line in (cut / "log.jsonl").read_text().splitlines()]
    assert [record["step"] for record in records] == list(range(STEPS))
    assert records[-1]["loss"] < records[0]["loss"] - 1
    assert {record["phase"] for record in records} == {"stable", "decay"}


@pytest.mark.parametrize("precision", PRECISIONS)
def test_killed_and_resumed_is_bit_identical(small_shards: Shards, tmp_path: Path, precision: str) -> None:
    """Across the phase change and into another epoch of every source, with two micro-batches to a step."""
    _assert_resumes_exactly(small_shards, tmp_path, 4, profile={"precision": precision})


@pytest.mark.slow
@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("precision", PRECISIONS)
def test_killed_twenty_times_is_bit_identical(
    small_shards: Shards, tmp_path: Path, precision: str, compiled: bool
) -> None:
    profile = {"precision": precision, "compile": compiled, "loss_chunk_tokens": 48}
    _assert_resumes_exactly(small_shards, tmp_path, 20, profile=profile, train={"document_mask": True})


def test_compiled_it_repeats_itself_and_says_that_eager_is_not_the_same(small_shards: Shards, tmp_path: Path) -> None:
    compiled = {"precision": "float32", "compile": True}
    _finish(small_shards, tmp_path / "a" / "run", profile=compiled, train={"steps": 8, "decay_steps": 3})
    cut = tmp_path / "b" / "run"
    _finish(small_shards, cut, profile=compiled, train={"steps": 5, "decay_steps": 0})
    _finish(small_shards, tmp_path / "b" / "longer", profile=compiled, train={"steps": 8, "decay_steps": 3})
    _assert_same(_state(tmp_path / "a" / "run"), _state(tmp_path / "b" / "longer"))
    said = _finish(
        small_shards, tmp_path / "b" / "eager", profile={"precision": "float32"}, train={"steps": 6, "decay_steps": 0}
    )
    assert "no bit a bit" in said and "compile era True y es False" in said


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_asked_to_stop_it_saves_that_very_step(small_shards: Shards, tmp_path: Path, number: signal.Signals) -> None:
    run = tmp_path / "run"
    process = _start(small_shards, run, profile={"precision": "float32"})
    while _lines(run) < 6 and process.poll() is None:
        time.sleep(0.001)
    process.send_signal(number)
    output, _ = process.communicate(timeout=60)
    assert process.returncode != 0
    assert "Interrupted" in output  # the stage turns it into a message and an exit status
    assert _state(run)["loader"]["next_step"] == _lines(run)


def test_under_nohup_the_terminal_may_be_closed(small_shards: Shards, tmp_path: Path) -> None:
    run = tmp_path / "run"
    process = _start(small_shards, run, hangup=signal.SIG_IGN, profile={"precision": "float32"})
    while _lines(run) < 6 and process.poll() is None:
        time.sleep(0.001)
    process.send_signal(signal.SIGHUP)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 0, output
    assert _lines(run) == STEPS


def test_asked_to_stop_when_nobody_reads_it_saves_all_the_same(small_shards: Shards, tmp_path: Path) -> None:
    """Ctrl-C under `| tee` ends tee first; what the trainer says then breaks the pipe."""
    run = tmp_path / "run"
    process = _start(small_shards, run, profile={"precision": "float32"})
    while _lines(run) < 6 and process.poll() is None:
        time.sleep(0.001)
    assert process.stdout is not None
    process.stdout.close()
    process.send_signal(signal.SIGINT)
    process.wait(timeout=60)
    assert _state(run)["loader"]["next_step"] == _lines(run) < STEPS
