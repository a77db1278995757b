import errno
from pathlib import Path

import pytest

from enlace import EnlaceError
from enlace.data.folder import whole_folder


def test_a_folder_is_there_whole_or_not_at_all(tmp_path: Path) -> None:
    """marin-community/marin#2725: half-written output taken as finished."""
    (tmp_path / "out.tmp").mkdir()
    (tmp_path / "out.tmp" / "de-una-vez-anterior").touch()
    with whole_folder(tmp_path / "out") as folder:
        (folder / "uno").write_text("1")
        assert not (tmp_path / "out").exists()
    with pytest.raises(ZeroDivisionError), whole_folder(tmp_path / "out") as folder:
        (folder / "dos").write_text("2")
        raise ZeroDivisionError
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["out", "out.lock.tmp", "uno"]
    with pytest.raises(EnlaceError, match="no se puede escribir"), whole_folder(tmp_path / "out" / "uno" / "dos"):
        pass


def _write(path: Path, content: str) -> None:
    with whole_folder(path) as folder:
        (folder / "uno").write_text(content)


@pytest.mark.parametrize("failing", [1, 2, 3])
def test_a_failed_exchange_leaves_the_old_folder_or_the_new_one_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: int
) -> None:
    """Of the renames — old aside, new in, old to be deleted — each fails in its turn."""
    _write(tmp_path / "out", "viejo")
    rename, calls = Path.rename, iter(range(1, 9))

    def unreliable(source: Path, target: Path) -> Path:
        if next(calls) == failing:
            raise OSError(errno.EIO, "Input/output error")
        return rename(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", unreliable)
        with pytest.raises(EnlaceError, match="out: no se puede escribir"):
            _write(tmp_path / "out", "nuevo")
    assert (tmp_path / "out" / "uno").read_text() == ("nuevo" if failing == 3 else "viejo")
    _write(tmp_path / "out", "otro")
    assert (tmp_path / "out" / "uno").read_text() == "otro"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "out.lock.tmp"]


def test_what_a_kill_left_aside_comes_back(tmp_path: Path) -> None:
    _write(tmp_path / "out", "viejo")
    (tmp_path / "out").rename(tmp_path / "out.old.tmp")
    with pytest.raises(ZeroDivisionError), whole_folder(tmp_path / "out"):
        raise ZeroDivisionError
    assert (tmp_path / "out" / "uno").read_text() == "viejo"
    assert not (tmp_path / "out.old.tmp").exists()


def test_two_writers_do_not_share_a_folder(tmp_path: Path) -> None:
    with whole_folder(tmp_path / "out") as folder:
        (folder / "uno").write_text("1")
        with pytest.raises(EnlaceError, match=r"out: otro proceso lo está escribiendo"):
            _write(tmp_path / "out", "2")
    assert (tmp_path / "out" / "uno").read_text() == "1"


def test_a_failure_of_the_block_is_not_taken_for_one_of_the_folder(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), whole_folder(tmp_path / "out"):
        (tmp_path / "nada").read_text()
    with pytest.raises(EnlaceError, match=r"out: no se puede escribir \(disco lleno\)"), whole_folder(tmp_path / "out"):
        raise OSError(errno.ENOSPC, "No space left on device")
    assert [path.name for path in tmp_path.iterdir()] == ["out.lock.tmp"]
