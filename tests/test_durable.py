"""Files written whole or not at all, and locks."""

from __future__ import annotations

import errno
import fcntl
import os
import resource
import threading
from pathlib import Path

import pytest

from enlace import EnlaceError
from enlace.durable import is_locked, locked, reason, write_atomic


def test_a_file_is_replaced_whole(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b.json"
    write_atomic(path, b"uno")
    write_atomic(path, b"dos")
    assert path.read_bytes() == b"dos"
    assert [p.name for p in path.parent.iterdir()] == ["b.json"]


def test_a_failed_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "b.json"
    write_atomic(path, b"uno")

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(EnlaceError, match=r"b\.json.*disco lleno"):
        write_atomic(path, b"dos")
    assert path.read_bytes() == b"uno"
    assert [p.name for p in tmp_path.iterdir()] == ["b.json"]


def test_a_lock_is_held_by_one(tmp_path: Path) -> None:
    path = tmp_path / "sub" / "LOCK"
    with locked(path, "ocupado"), pytest.raises(EnlaceError, match=rf"ocupado.*{os.getpid()}"), locked(path, "ocupado"):
        pass
    with locked(path, "ocupado"):
        assert path.read_text() == str(os.getpid())


def test_who_only_looks_whether_it_is_locked_is_in_nobodys_way(tmp_path: Path) -> None:
    path = tmp_path / "LOCK"
    path.touch()
    looking = path.open("rb")
    fcntl.flock(looking, fcntl.LOCK_SH)  # what `is_locked` has for an instant
    threading.Timer(0.05, looking.close).start()
    with locked(path, "ocupado"):
        assert is_locked(path)
    assert not is_locked(path)


def test_an_impossible_lock_is_refused(tmp_path: Path) -> None:
    (tmp_path / "LOCK").mkdir()
    with pytest.raises(EnlaceError, match="cerrojo"), locked(tmp_path / "LOCK", "ocupado"):
        pass


def test_a_folder_that_is_a_file_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("")
    with pytest.raises(EnlaceError, match=r"a/b\.json.*no se puede escribir"):
        write_atomic(tmp_path / "a" / "b.json", b"uno")


def test_a_full_disk_still_locks(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        with locked(tmp_path / "LOCK", "ocupado"):
            held = True
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert held


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (FileNotFoundError(errno.ENOENT, "No such file"), "no existe"),
        (OSError(errno.ENOSPC, "No space"), "disco lleno"),
        (OSError(errno.EEXIST, "File exists"), "ya existe"),
        (OSError(errno.EPIPE, "Broken pipe"), "Broken pipe"),
        (OSError("sin número"), "sin número"),
        (TimeoutError(), "TimeoutError"),
    ],
)
def test_reasons_are_in_spanish(error: OSError, says: str) -> None:
    assert reason(error) == says
