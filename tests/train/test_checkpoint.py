from __future__ import annotations

import os
import resource
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from enlace import EnlaceError
from enlace.train import checkpoint
from enlace.train.checkpoint import Retention

CPU = torch.device("cpu")


def _save(run: Path, step: int, keep: int = 2, stable_end: int = 0) -> Path:
    state = {"x": torch.full((1000,), float(step)), "step": step}
    return checkpoint.save(run, step, state, Retention(keep, None, stable_end))


def _newest(run: Path) -> tuple[Any, list[str]]:
    complaints: list[str] = []
    state = checkpoint.load_newest(run, CPU, complaints.append)
    return (state and state["step"]), complaints


def test_keeps_the_newest_and_loads_it(tmp_path: Path) -> None:
    for step in (5, 10, 100):
        _save(tmp_path, step)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["step-00000010", "step-00000100"]
    assert _newest(tmp_path) == (100, [])


def test_what_is_kept() -> None:
    steps = range(100, 1100, 100)
    assert Retention(2, None, 0).kept(steps) == {900, 1000}
    assert Retention(2, 300, 0).kept(steps) == {300, 600, 900, 1000}
    assert Retention(2, None, 750).kept(steps) == {700, 900, 1000}, "the last of the stable phase"
    assert Retention(1, None, 1000).kept(steps) == {1000}
    assert Retention(2, None, 0).kept([]) == set()


def test_nothing_there_is_none(tmp_path: Path) -> None:
    assert _newest(tmp_path / "no") == (None, [])


@pytest.mark.parametrize("damage", ["flip", "cut", "no manifest", "empty manifest", "other manifest", "no state"])
def test_a_damaged_newest_one_is_named_and_the_one_before_used(tmp_path: Path, damage: str) -> None:
    _save(tmp_path, 5)
    newest = _save(tmp_path, 10)
    state, manifest = newest / "state.pt", newest / "manifest.json"
    data = bytearray(state.read_bytes())
    if damage == "flip":
        data[len(data) // 2] ^= 1
        state.write_bytes(data)
    elif damage == "cut":
        state.write_bytes(data[:-100])
    elif damage == "no manifest":
        manifest.unlink()
    elif damage == "other manifest":
        manifest.write_bytes(b"[]")
    elif damage == "empty manifest":
        manifest.write_bytes(b"")
    else:
        state.unlink()
    step, complaints = _newest(tmp_path)
    assert step == 5
    assert len(complaints) == 1 and "step-00000010" in complaints[0]


def test_a_damaged_one_does_not_take_the_place_of_a_good_one(tmp_path: Path) -> None:
    _save(tmp_path, 100)
    _save(tmp_path, 200)
    (_save(tmp_path, 300, keep=3) / "state.pt").write_bytes(b"")
    _save(tmp_path, 250)  # resumed from 200, since 300 is damaged
    assert sorted(p.name for p in tmp_path.iterdir()) == ["step-00000200", "step-00000250"]


def test_the_last_good_one_of_the_stable_phase_stays_where_a_later_one_is_damaged(tmp_path: Path) -> None:
    _save(tmp_path, 5, stable_end=10)
    (_save(tmp_path, 10, stable_end=10) / "state.pt").write_bytes(b"")
    for step in (15, 20, 25):
        _save(tmp_path, step, stable_end=10)
    assert checkpoint.steps_of(tmp_path) == [25, 20, 5], "a longer run goes on from 5"


def test_all_damaged_is_an_error_not_a_fresh_start(tmp_path: Path) -> None:
    (_save(tmp_path, 5) / "state.pt").write_bytes(b"")
    with pytest.raises(EnlaceError, match="todos los puntos de guardado"):
        _newest(tmp_path)


def test_the_folder_that_gets_the_new_name_is_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[tuple[Path, bool]] = []
    final = tmp_path / "step-00000005"
    real = os.fsync

    def note(descriptor: int) -> None:
        synced.append((Path(f"/proc/self/fd/{descriptor}").readlink(), final.exists()))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", note)
    _save(tmp_path, 5)
    assert (tmp_path / "step-00000005.tmp/state.pt", False) in synced
    assert synced[-1] == (tmp_path, True), "after the rename, or a power cut could take the name back"


@pytest.mark.parametrize("call", range(1, 8))
def test_a_full_disk_at_any_sync_leaves_the_last_good_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: int
) -> None:
    _save(tmp_path, 5)
    real, count = os.fsync, 0

    def full(descriptor: int) -> None:
        nonlocal count
        count += 1
        if count == call:
            raise OSError(28, "No space left on device")
        real(descriptor)

    monkeypatch.setattr(os, "fsync", full)
    failed = False
    try:
        _save(tmp_path, 10)
    except EnlaceError as error:
        failed = True
        assert "libera espacio" in str(error)
    monkeypatch.undo()
    assert failed == (call <= count)
    step, complaints = _newest(tmp_path)
    assert step in (5, 10) and not complaints
    assert not list(tmp_path.glob("*.tmp"))


def _in_a_process(work: Callable[[], object]) -> int:
    """Exit status of `work` in a process of its own: 1 for an error with its way out, negative for what killed it."""
    pid = os.fork()
    if pid == 0:
        status = 2
        try:
            work()
            status = 0
        except EnlaceError as error:
            status = int("libera espacio" in str(error))
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def _kill_at(call: int) -> None:
    """Let this process be killed as it comes to its `call`-th call that opens a file or does something to a folder."""
    left = call
    calls = {"open", "os.listdir", "os.mkdir", "os.remove", "os.rename", "os.rmdir", "os.scandir", "shutil.rmtree"}

    def hook(event: str, args: object) -> None:
        nonlocal left
        if event in calls:
            left -= 1
            if left < 0:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)


def test_a_kill_at_any_call_of_a_save_leaves_a_good_one_and_nothing_for_the_next_to_trip_on(tmp_path: Path) -> None:
    call, status = 0, -signal.SIGKILL
    while status == -signal.SIGKILL:
        run = tmp_path / str(call)
        for step in (5, 10):
            _save(run, step)
        status = _in_a_process(lambda: (_kill_at(call), _save(run, 15)))  # noqa: B023  called at once
        step, complaints = _newest(run)
        assert step in (10, 15) and not complaints, f"killed at call {call}"
        _save(run, 15)
        assert sorted(path.name for path in run.iterdir()) == ["step-00000010", "step-00000015"]
        call += 1
    assert status == 0 and call > 15


@pytest.mark.parametrize("size", [0, 1, 1000, 4000])
@pytest.mark.parametrize(("on_limit", "status"), [(signal.SIG_DFL, -signal.SIGXFSZ), (signal.SIG_IGN, 1)])
def test_killed_or_out_of_room_in_the_middle_of_a_file_the_last_good_one_stays(
    tmp_path: Path, size: int, on_limit: signal.Handlers, status: int
) -> None:
    _save(tmp_path, 5)

    def save() -> None:
        signal.signal(signal.SIGXFSZ, on_limit)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
        _save(tmp_path, 10)

    assert _in_a_process(save) == status
    assert _newest(tmp_path) == (5, [])


def test_a_left_over_temporary_folder_does_not_count(tmp_path: Path) -> None:
    _save(tmp_path, 5)
    left = tmp_path / "step-00000010.tmp"
    left.mkdir()
    (left / "state.pt").write_bytes(b"half")
    assert _newest(tmp_path) == (5, [])
    _save(tmp_path, 10)
    assert _newest(tmp_path) == (10, [])


def test_saving_the_same_step_again_replaces_it(tmp_path: Path) -> None:
    (_save(tmp_path, 5) / "state.pt").write_bytes(b"damaged")
    _save(tmp_path, 5)
    assert _newest(tmp_path) == (5, [])


def test_holds_nothing_that_could_run(tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self) -> Any:
            return (os.getcwd, ())

    checkpoint.save(tmp_path, 1, {"x": Evil()}, keep=Retention(2, None, 0))
    with pytest.raises(Exception, match=r"weights_only|Unsupported"):
        checkpoint.load_newest(tmp_path, CPU, print)
