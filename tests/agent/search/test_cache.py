from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from enlace.agent.search.cache import Cache
from enlace.agent.search.outcome import Outcome, Result
from tests.agent.search.conftest import Clock

FOUND = Outcome("results", (Result("Año", "https://e.org/ñ", "un texto", "2026-01-02"), Result("b", "https://e.org/b")))
EMPTY = Outcome("no_results")


def cache(folder: Path, clock: Clock, ttl: float = 100, empty_ttl: float = 10, entries: int = 50) -> Cache:
    return Cache(folder / "agent" / "search.db", ttl, empty_ttl, entries, clock)


def test_an_answer_survives_a_restart_and_tells_its_age(tmp_path: Path, clock: Clock) -> None:
    cache(tmp_path, clock).put("k", FOUND)
    clock.now += 40
    again = cache(tmp_path, clock).get("k")
    assert again and (again.kind, again.results, again.age_seconds) == ("results", FOUND.results, 40)


def test_an_answer_as_old_as_its_time_to_live_has_expired(tmp_path: Path, clock: Clock) -> None:
    kept = cache(tmp_path, clock)
    kept.put("k", FOUND)
    clock.now += 99
    assert kept.get("k")
    clock.now += 1
    assert kept.get("k") is None
    clock.now += 100
    assert cache(tmp_path, clock).get("k") is None, "nor does a new process find it fresh"


def test_a_time_to_live_of_zero_never_serves(tmp_path: Path, clock: Clock) -> None:
    kept = cache(tmp_path, clock, ttl=0, empty_ttl=0)
    kept.put("k", FOUND)
    assert kept.get("k") is None


def test_an_answer_from_the_future_has_expired(tmp_path: Path, clock: Clock) -> None:
    """The machine's clock was set back."""
    kept = cache(tmp_path, clock)
    kept.put("k", FOUND)
    clock.now -= 1
    assert kept.get("k") is None


def test_an_empty_answer_lives_shorter(tmp_path: Path, clock: Clock) -> None:
    kept = cache(tmp_path, clock)
    kept.put("k", EMPTY)
    clock.now += 9
    assert (kept.get("k") or FOUND).kind == "no_results"
    clock.now += 1
    assert kept.get("k") is None


@pytest.mark.parametrize("kind", ["blocked", "unreadable", "unreachable"])
def test_what_is_no_answer_is_not_kept(kind: str, tmp_path: Path, clock: Clock) -> None:
    kept = cache(tmp_path, clock)
    kept.put("k", Outcome(kind, detail="no"))  # type: ignore[arg-type]
    assert kept.get("k") is None


def test_the_size_is_bounded_and_the_oldest_go_first(tmp_path: Path, clock: Clock) -> None:
    kept = cache(tmp_path, clock, entries=3)
    for i in range(6):
        clock.now += 1
        kept.put(str(i), FOUND)
    assert [i for i in range(6) if kept.get(str(i))] == [3, 4, 5]


def test_what_expired_does_not_stay_on_the_disk(tmp_path: Path, clock: Clock) -> None:
    kept = cache(tmp_path, clock)
    kept.put("k", Outcome("results", (Result("secreto", "https://e.org/"),)))
    clock.now += 100
    kept.put("otra", FOUND)
    assert b"secreto" not in (tmp_path / "agent/search.db").read_bytes()


@pytest.mark.parametrize("content", [b"no es una base de datos" * 100, b""])
def test_a_damaged_cache_is_an_empty_one(content: bytes, tmp_path: Path, clock: Clock) -> None:
    kept = cache(tmp_path, clock)
    kept.put("k", FOUND)
    (tmp_path / "agent/search.db").write_bytes(content)
    assert kept.get("k") is None
    kept.put("k", FOUND)
    assert kept.get("k")


def test_a_row_that_is_none_is_passed_over(tmp_path: Path, clock: Clock) -> None:
    kept = cache(tmp_path, clock)
    for i, text in enumerate(["{", "null", "[3]", '[{"title": 1}]', '[{"nada": 1}]']):
        kept.put(str(i), FOUND)
        with sqlite3.connect(tmp_path / "agent/search.db") as connection:
            connection.execute("UPDATE answers SET results = ? WHERE key = ?", (text, str(i)))
        connection.close()
        assert kept.get(str(i)) is None, text


def test_a_cache_that_cannot_be_written_is_an_empty_one(tmp_path: Path, clock: Clock) -> None:
    (tmp_path / "agent").write_text("un archivo donde iría la carpeta")
    kept = cache(tmp_path, clock)
    kept.put("k", FOUND)
    assert kept.get("k") is None


def test_a_cache_held_by_another_program_is_an_empty_one(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = cache(tmp_path, clock)
    kept.put("k", FOUND)
    monkeypatch.setattr("enlace.agent.search.cache._BUSY_SECONDS", 0.01)
    other = sqlite3.connect(tmp_path / "agent/search.db", isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    assert kept.get("k") is None
    kept.put("k", FOUND)
    other.close()
    assert kept.get("k")


def test_only_its_owner_reads_what_the_household_searches(tmp_path: Path, clock: Clock) -> None:
    cache(tmp_path, clock).put("k", FOUND)
    assert (tmp_path / "agent/search.db").stat().st_mode & 0o077 == 0
    assert (tmp_path / "agent").stat().st_mode & 0o077 == 0
