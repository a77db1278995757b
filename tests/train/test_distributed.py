"""Several processes over gloo, really started: the same training as one process, and the same checkpoints."""

from __future__ import annotations

import itertools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.launcher.api import LaunchConfig
from torch.distributed.tensor import Shard, distribute_tensor

from enlace import EnlaceError
from enlace.config.load import hardware_profiles
from enlace.config.rules import micro_batch_size
from enlace.config.schema import PhaseMixture
from enlace.data.loader import Batch, Loader
from enlace.data.rows import Rows, corpus_rows
from enlace.data.shards import Shards
from enlace.train import checkpoint
from enlace.train.distributed import LostConnection, World, check_world, on_first
from enlace.train.launch import _in_turn, launch
from tests.train.child import MIXTURE, TRAIN

ROOT = Path(__file__).parents[2]
STEPS = {"steps": 12, "decay_steps": 6, "checkpoint_every": 4, "keep_checkpoints": 9}


def _start(shards: Shards, run: Path, gpus: int, **options: Any) -> subprocess.Popen[str]:
    # One thread a process: two of them share the cores.
    options["profile"] = {"precision": "float32", "threads": 1} | options.get("profile", {})
    options["train"] = STEPS | options.get("train", {})
    command = [sys.executable, "-m", "tests.train.child", str(shards.folder), str(run), json.dumps(options)]
    environment = {**os.environ, "GPUS": str(gpus), "PYTHONPATH": f"{ROOT}:{ROOT / 'src'}"}
    return subprocess.Popen(
        command,
        env=environment,
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def _train(shards: Shards, run: Path, gpus: int, **options: Any) -> str:
    process = _start(shards, run, gpus, **options)
    output = _output(process)
    assert process.returncode == 0, output
    return output


def _output(process: subprocess.Popen[str]) -> str:
    """All that it and its ranks say; one that hangs takes none of them along into the tests that follow."""
    try:
        return process.communicate(timeout=240)[0]
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        raise


def _never(world: World) -> None:
    pytest.fail(f"{world} does the work of the ranks that were to be started, or refused")


def _state(run: Path) -> dict[str, Any]:
    state = checkpoint.load_newest(run, torch.device("cpu"), pytest.fail)
    assert state is not None
    return state


def _assert_close(a: Path, b: Path) -> None:
    """The same records and the same state, but for the order in which sums were added."""
    first, other = _records(a)[0], _records(b)[0]
    assert first["loss"] == pytest.approx(other["loss"], rel=1e-6)
    assert first["grad_norm"] == pytest.approx(other["grad_norm"], rel=1e-6)
    for x, y in zip(_records(a), _records(b), strict=True):
        assert {k: v for k, v in x.items() if isinstance(v, int | str)} == {
            k: v for k, v in y.items() if isinstance(v, int | str)
        }
        assert x["loss"] == pytest.approx(y["loss"], rel=1e-4)
        assert x["grad_norm"] == pytest.approx(y["grad_norm"], rel=1e-3)
    ours, theirs = _state(a), _state(b)
    assert list(ours["model"]) == list(theirs["model"])
    for name, value in ours["model"].items():
        torch.testing.assert_close(value, theirs["model"][name], rtol=1e-2, atol=1e-3)


def _records(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def alone(small_shards: Shards, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("alone") / "run"
    _train(small_shards, run, 1)
    return run


@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
def test_two_processes_train_as_one_and_either_goes_on_with_the_others_checkpoint(
    small_shards: Shards, tmp_path: Path, alone: Path, parallel: str
) -> None:
    run = tmp_path / "run"
    # Two micro-batches a rank: only the last may add the ranks' gradients up.
    said = _train(small_shards, run, 2, profile={"parallel": parallel}, micro=2)
    if parallel == "ddp":  # where every rank has the whole model
        first, second = re.findall(r"ended with (\w+)", said)
        assert first == second
    assert _state(run)["environments"][-1]["procesos"] == "2"
    _assert_close(run, alone)

    for step in (8, 12):  # and on with one process, from the middle of it
        for path in checkpoint.folder_of(run, step).iterdir():
            path.unlink()
        checkpoint.folder_of(run, step).rmdir()
    said = _train(small_shards, run, 1)
    assert "resumed at 6" in said and "procesos era 2 y es 1" in said
    _assert_close(run, alone)


@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
def test_two_processes_have_the_gradients_of_one(small_shards: Shards, tmp_path: Path, parallel: str) -> None:
    """Themselves: with beta1 of 0 and nothing to clip they are AdamW's first moments. Two micro-batches a process."""
    one_step = {"steps": 1, "warmup_steps": 0, "decay_steps": 0, "optimizer": "adamw", "beta1": 0.0, "grad_clip": 1e9}
    gradients = []
    for gpus in (1, 2):
        run = tmp_path / str(gpus) / "run"
        _train(small_shards, run, gpus, train=one_step, profile={"parallel": parallel}, micro=4 // gpus)
        gradients.append([of_one["exp_avg"] for of_one in _state(run)["optimizers"][0]["state"].values()])
    for alone, shared in zip(*gradients, strict=True):
        assert alone.abs().max() > 1e-4
        torch.testing.assert_close(shared, alone, rtol=0, atol=1e-6)


@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
def test_two_processes_go_on_where_one_was(small_shards: Shards, tmp_path: Path, alone: Path, parallel: str) -> None:
    run = tmp_path / "run"
    _train(small_shards, run, 1, train={"steps": 6, "decay_steps": 0})
    joined = tmp_path / "longer"
    said = _train(small_shards, joined, 2, profile={"parallel": parallel})
    assert "joined at 6" in said and "procesos era 1 y es 2" in said
    _assert_close(joined, alone)


def test_three_processes_resume_exactly(small_shards: Shards, tmp_path: Path) -> None:
    """DDP deals gradients out to other buckets after its first step; with three the order of the sums goes with it."""
    options: dict[str, Any] = {"profile": {"parallel": "ddp"}, "train": {"batch_tokens": 9 * 48}, "micro": 1}
    _train(small_shards, tmp_path / "whole" / "run", 3, **options)
    cut = tmp_path / "cut" / "run"
    shutil.copytree(tmp_path / "whole" / "run", cut)
    for step in (6, 8, 12):
        shutil.rmtree(checkpoint.folder_of(cut, step))
    assert "resumed at 4" in _train(small_shards, cut, 3, **options)
    assert (cut / "log.jsonl").read_bytes() == (tmp_path / "whole" / "run" / "log.jsonl").read_bytes()
    for ours, theirs in zip(_state(cut)["model"].values(), _state(tmp_path / "whole" / "run")["model"].values()):
        assert torch.equal(ours, theirs)


def test_a_killed_process_ends_the_run_cleanly_and_it_goes_on(small_shards: Shards, tmp_path: Path) -> None:
    run = tmp_path / "run"
    long = {"steps": 60, "decay_steps": 20, "checkpoint_every": 2}
    process = _start(small_shards, run, 2, train=long)
    while not checkpoint.steps_of(run) and process.poll() is None:
        time.sleep(0.05)
    children = subprocess.run(
        ["ps", "--no-headers", "-o", "pid", "--ppid", str(process.pid)], capture_output=True, text=True, check=True
    ).stdout.split()
    workers = [pid for pid in children if "tests.train.child" in Path(f"/proc/{pid}/cmdline").read_text()]
    assert len(workers) == 2
    os.kill(int(workers[1]), signal.SIGKILL)
    output = _output(process)
    assert process.returncode == 1 and "señal 9" in output and "continúa" in output
    assert not any(Path(f"/proc/{pid}").exists() for pid in workers)
    assert "resumed at" in _train(small_shards, run, 2, train=long)
    assert [record["step"] for record in _records(run)] == list(range(60))


def test_asked_to_stop_all_ranks_save_the_same_step(small_shards: Shards, tmp_path: Path) -> None:
    run = tmp_path / "run"
    process = _start(small_shards, run, 2, train={"steps": 400, "decay_steps": 100, "checkpoint_every": 400})
    while not (run / "log.jsonl").exists() and process.poll() is None:
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    output = _output(process)
    assert process.returncode == 128 + signal.SIGTERM, output
    assert output.count("Guardo y salgo") == 1, output
    assert "death signal" not in output
    assert _state(run)["loader"]["next_step"] == len(_records(run))


@pytest.mark.parametrize(("hangup", "passed_on"), [(signal.SIG_DFL, True), (signal.SIG_IGN, False)])
def test_a_long_step_has_time_to_end_and_be_saved_and_nohup_is_heeded(
    monkeypatch: pytest.MonkeyPatch, hangup: signal.Handlers, passed_on: bool
) -> None:
    """torchrun kills after 30 s what was asked to stop; a step on a small card can take longer. And it would pass on
    the end of the terminal, which nohup has the launcher ignore.
    """
    patience: list[int | None] = []
    signals: list[str] = []

    def start(config: LaunchConfig, program: str) -> Callable[..., None]:
        patience.append(config.shutdown_timeout)
        signals.extend(config.signals_to_handle.split(","))
        return lambda *words: None

    monkeypatch.setattr("enlace.train.launch.elastic_launch", start)
    monkeypatch.setenv("GPUS", "2")
    monkeypatch.delenv("RANK", raising=False)
    before = signal.signal(signal.SIGHUP, hangup)
    try:
        with pytest.raises(SystemExit) as end:
            launch(_never, "never.run", "cpu")
    finally:
        signal.signal(signal.SIGHUP, before)
    assert end.value.code == 0 and patience[0] is not None and patience[0] >= 600
    assert ("SIGHUP" in signals) == passed_on and {"SIGTERM", "SIGINT"} <= set(signals)


def test_a_rank_ends_at_once_where_it_can_say_nothing(tmp_path: Path) -> None:
    """A closed terminal, or a log on a full disk: the error that this is must not lead to the end that can hang."""
    program = (
        "import atexit, sys; from enlace.train.launch import launch; from enlace.console import say\n"
        f"atexit.register(open, {str(tmp_path / 'slow')!r}, 'w')\n"
        "launch(lambda world: say('x' * 100_000), 'never.run', 'cpu')"
    )
    alone = {"RANK": 0, "LOCAL_RANK": 0, "WORLD_SIZE": 1, "MASTER_ADDR": "localhost", "MASTER_PORT": 0}
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), **{key: str(value) for key, value in alone.items()}}
    with Path("/dev/full").open("w") as full:
        ended = subprocess.run([sys.executable, "-c", program], env=environment, stdout=full, stderr=full, check=False)
    assert ended.returncode == 1 and not (tmp_path / "slow").exists()


def test_a_state_in_parts_is_put_together_on_the_first_rank_alone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """All of model and optimizer on every card would not fit where FSDP is needed."""
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path / 'meet'}", rank=0, world_size=1)
    try:
        part = distribute_tensor(torch.arange(4.0), init_device_mesh("cpu", (1,)), [Shard(0)])
        state = {"state": {0: {"step": torch.tensor(3.0), "moment": part}}, "param_groups": [{"lr": 0.1}]}
        whole_state = on_first(state)
        assert whole_state["state"][0]["moment"].tolist() == [0, 1, 2, 3]
        assert type(whole_state["state"][0]["moment"]) is torch.Tensor
        assert whole_state["state"][0]["step"] == 3 and whole_state["param_groups"] == [{"lr": 0.1}]
        monkeypatch.setattr(torch.distributed, "get_rank", lambda: 1)
        assert on_first(state)["state"][0]["moment"].numel() == 0
    finally:
        torch.distributed.destroy_process_group()


def test_each_rank_takes_its_part_of_the_rows() -> None:
    rows = torch.arange(8).unsqueeze(1)
    parts = [World(rank, 4).share(Batch(rows, rows, rows.bool())).inputs.flatten().tolist() for rank in range(4)]
    assert parts == [[0, 1], [2, 3], [4, 5], [6, 7]]


def test_no_rank_reads_what_another_reads(small_shards: Shards) -> None:
    sources: dict[str, Rows] = {"corpus": corpus_rows(small_shards, "train", TRAIN.seq_len)}
    only = PhaseMixture(stable=MIXTURE.stable, decay=MIXTURE.stable)
    loader = Loader(sources, TRAIN, only)
    steps = len(sources["corpus"]) // 8  # of 8 rows each: all in one epoch
    parts = [
        {hash(tuple(row)) for step in range(steps) for row in World(rank, 4).share(loader.batch(step)).inputs.tolist()}
        for rank in range(4)
    ]
    assert all(len(part) == 2 * steps for part in parts)
    assert len(set.union(*parts)) == 8 * steps


@pytest.mark.parametrize(("processes", "size"), [(1, 8), (2, 4), (8, 1)])
def test_a_step_too_small_for_the_profiles_micro_batches_is_shared_in_smaller_ones(processes: int, size: int) -> None:
    hardware = hardware_profiles(ROOT)["cpu"]
    rows = TRAIN.batch_tokens // TRAIN.seq_len
    assert rows == 8 < hardware.micro_batch_size, "one is more than all that there is"
    assert micro_batch_size(hardware, TRAIN, processes) == size
    check_world(World(0, processes), rows, size, "ddp", "float32")


def test_more_processes_than_sequences_are_refused() -> None:
    size = micro_batch_size(hardware_profiles(ROOT)["cpu"], TRAIN, 16)
    with pytest.raises(EnlaceError, match=r"8 secuencias por paso .* 16 procesos"):
        check_world(World(0, 16), 8, size, "ddp", "float32")


def test_rows_that_do_not_divide_are_refused() -> None:
    check_world(World(0, 2), 16, 4, "ddp", "float16")
    with pytest.raises(EnlaceError, match=r"16 secuencias por paso .* 3 procesos"):
        check_world(World(0, 3), 16, 2, "ddp", "float32")
    with pytest.raises(EnlaceError, match="parallel: ddp"):
        check_world(World(0, 2), 16, 4, "fsdp", "float16")


@pytest.mark.parametrize("wrong", ["dos", "0", "-1", "1.5"])
def test_a_wrong_number_of_cards_is_told(monkeypatch: pytest.MonkeyPatch, wrong: str) -> None:
    monkeypatch.setenv("GPUS", wrong)
    monkeypatch.delenv("RANK", raising=False)
    with pytest.raises(EnlaceError, match="GPUS=2"):
        launch(_never, "never.run", "cpu")


def test_more_cards_than_there_are_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    monkeypatch.setenv("GPUS", "64")
    with pytest.raises(EnlaceError, match="como mucho GPUS=2"):
        launch(_never, "never.run", "cuda")
    monkeypatch.delenv("GPUS")
    for name, value in {"RANK": 2, "LOCAL_RANK": 2, "WORLD_SIZE": 3, "MASTER_ADDR": "localhost"}.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.setenv("MASTER_PORT", "29500")
    with pytest.raises(EnlaceError, match="como mucho --nproc-per-node=2"):
        launch(_never, "never.run", "cuda")


@pytest.mark.parametrize("gpus", ["", "2"])
def test_without_a_card_the_profiles_check_is_reached(monkeypatch: pytest.MonkeyPatch, gpus: str) -> None:
    """It says which profile fits; "use at most GPUS=0" says nothing."""
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    monkeypatch.setenv("GPUS", gpus)
    worlds: list[World] = []
    launch(worlds.append, "never.run", "cuda")
    assert worlds == [World()]


def test_without_a_card_the_profiles_check_is_reached_under_torchrun_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    alone = {"RANK": 0, "LOCAL_RANK": 0, "WORLD_SIZE": 1, "MASTER_ADDR": "localhost", "MASTER_PORT": 0}
    for name, value in alone.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.setattr("os._exit", sys.exit)  # a rank ends without destroying its group of processes
    worlds: list[World] = []
    try:
        with pytest.raises(SystemExit) as end:
            launch(worlds.append, "never.run", "cuda")
    finally:
        torch.distributed.destroy_process_group()
    assert end.value.code == 0 and worlds == [World()]


def test_a_rank_that_another_tool_left_behind_is_no_torchrun(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("LOCAL_RANK", "0")
    monkeypatch.delenv("GPUS", raising=False)
    worlds: list[World] = []
    launch(worlds.append, "never.run", "cpu")
    assert worlds == [World()]


def test_what_is_wrong_with_all_ranks_is_said_once(small_shards: Shards, tmp_path: Path) -> None:
    too_long = {"seq_len": 1_000_000, "batch_tokens": 8_000_000}
    process = _start(small_shards, tmp_path / "run", 2, train=too_long, micro=1)
    output = _output(process)
    assert process.returncode == 1
    assert output.count("error:") == 1 and "seq_len" in output, output


def test_who_may_know_less_waits_before_saying_what_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[float] = []
    monkeypatch.setattr("enlace.train.launch.time.sleep", waited.append)

    def fail(world: World) -> None:
        raise error

    for local_rank, error in itertools.product("01", (EnlaceError("falta"), LostConnection("se perdió"))):
        monkeypatch.setenv("LOCAL_RANK", local_rank)
        with pytest.raises(type(error)):
            _in_turn(fail, World(int(local_rank), 2))
    assert waited[0] == 0 < waited[1] == waited[2] < waited[3]
