from __future__ import annotations

import json
import random
import signal
import sqlite3
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from enlace import EnlaceError
from enlace.agent.memory import Episode, Memory
from enlace.config.load import load_config
from tests.conftest import ROOT

NOW = 1_800_000_000.0
DAY = 86_400.0
HALF_LIFE = 30.0

SAID = [
    "Mi hija Lucía tiene alergia a las nueces.",
    "El médico nos espera el martes a las 18:30.",
    "Programo en C++ y guardo lo mío en la carpeta a-b.",
    "AND es una palabra inglesa.",
    "El año pasado fuimos a Cádiz.",
    "La canción de cuna de la abuela.",
    "La sesión de cine empieza tarde.",
]


@pytest.fixture
def memory(tmp_path: Path) -> Memory:
    return Memory(tmp_path / "agent" / "memory.db", HALF_LIFE, lambda: NOW)


@pytest.fixture
def full(memory: Memory) -> Memory:
    for text in SAID:
        memory.write(said(text))
    return memory


def said(text: str, days_ago: float = 0, speaker: str = "user", source: str = "hoy") -> Episode:
    return Episode(NOW - days_ago * DAY, speaker, text, source)


def texts(memory: Memory, query: str, k: int = 10, exclude: tuple[str, ...] = ()) -> list[str]:
    return [episode.text for episode in memory.recall(query, k, exclude)]


def bytes_on_disk(memory: Memory) -> bytes:
    return b"".join(path.read_bytes() for path in memory.path.parent.iterdir())


# Write and recall.


def test_an_episode_comes_back_whole(memory: Memory) -> None:
    episode = Episode(NOW - 1.25, "web", "El gazpacho lleva tomate.\nY pan.", "https://e.org/año?a=1")
    assert memory.write(episode) is True
    assert memory.recall("tomates", 3) == [replace(episode, id=1)]
    assert Memory(memory.path, HALF_LIFE).episodes() == [replace(episode, id=1)], "after a restart too"


@pytest.mark.parametrize(
    ("query", "number"),
    [
        ("médico?", 1),
        ("MEDICO", 1),
        ("18:30", 1),
        ("C++", 2),
        ("a-b", 2),
        ("AND", 3),
        ("cancion", 5),
        ("cancio\u0301n", 5),
        ("sesión", 6),
        ("sesion OR (", 6),
        ("nueces*", 0),
        ('"nueces', 0),
        ("nueces' --", 0),
        ("^nueces", 0),
        ("texto:nueces", 0),
        ("{nueces}", 0),
        ("NEAR(nueces, 3)", 0),
        ("alérgica", 0),
        ("¿a qué es alérgica mi hija?", 0),
        ("año", 4),
    ],
)
def test_what_a_person_writes_is_never_syntax_and_finds_what_it_says(full: Memory, query: str, number: int) -> None:
    assert texts(full, query)[0] == SAID[number]


@pytest.mark.parametrize("query", ["", "¿?", '"', "*", "()", "\x00", "👍", "ano", "zzz"])
def test_a_query_that_matches_nothing_recalls_nothing(full: Memory, query: str) -> None:
    """Not the newest episode, nor one whose ñ was taken for an n."""
    assert texts(full, query) == []


def test_function_words_alone_can_still_be_asked_for(full: Memory) -> None:
    full.write(said("¿Qué?"))
    assert texts(full, "¿qué?") == ["¿Qué?"]


def test_recall_prefers_the_relevant_and_among_those_the_newer(memory: Memory) -> None:
    for text, days in (
        ("La llave está en el cajón", 200),
        ("La llave está en la maceta", 1),
        ("Compra pan y leche", 0),
    ):
        memory.write(said(text, days))
    assert texts(memory, "¿dónde está la llave?") == ["La llave está en la maceta", "La llave está en el cajón"]
    memory.write(said("En el cajón hay pilas", 0))
    assert texts(memory, "llave del cajón")[0] == "La llave está en el cajón", "what was said long ago is still known"
    assert len(memory.recall("llave", 1)) == 1 and memory.recall("llave", 0) == []


def test_an_episode_from_the_future_is_only_new(memory: Memory) -> None:
    memory.write(said("La llave está aquí", -10_000))
    assert texts(memory, "llave") == ["La llave está aquí"]


def test_five_copies_of_a_memory_are_one_and_leave_room(memory: Memory) -> None:
    for i in range(5):
        new = memory.write(said("A Lucía le sientan mal las nueces", 5 - i, source=f"conversación {i}"))
        assert new == (i == 0)
    memory.write(said("  a lucía LE sientan mal las nueces ", 7))
    memory.write(said("A Lucia le sientan mal las nueces.", 0, "assistant"))
    memory.write(said("Las nueces se guardan en la despensa"))
    assert len(memory.episodes()) == 3
    recalled = texts(memory, "nueces Lucía", 5)
    assert len(recalled) == 2 and "Las nueces se guardan en la despensa" in recalled
    (kept,) = (episode for episode in memory.episodes() if episode.text == "A Lucía le sientan mal las nueces")
    assert (kept.time, kept.source) == (NOW - DAY, "conversación 4"), "the newest time, and where it was said then"


def test_accents_make_another_memory(memory: Memory) -> None:
    assert memory.write(said("tiene un año")) and memory.write(said("tiene un ano"))


def test_what_is_in_the_context_already_is_not_recalled(full: Memory) -> None:
    turn = "¿Recuerdas que mi hija Lucía tiene alergia a las nueces? ¿Y las avellanas?"
    full.write(said(turn))
    assert texts(full, turn, exclude=(turn,)) == [], "neither itself nor what it quotes"
    assert texts(full, turn, exclude=(turn.upper().replace("?", ""),)) == []
    assert texts(full, turn, exclude=("nueces", ""))[0] == turn


@pytest.mark.parametrize("text", ["", "  ", "👍", "\u200b", "..."])
def test_what_has_no_words_is_not_remembered(memory: Memory, text: str) -> None:
    assert memory.write(said(text)) is False and memory.episodes() == []


def test_text_is_kept_in_its_canonical_spelling(memory: Memory) -> None:
    memory.write(said("cancio\u0301n\x00 \ud800triste"))
    assert memory.episodes()[0].text == "canción triste"


def test_find_wants_every_word_and_gives_the_newest_first(memory: Memory) -> None:
    for i, text in enumerate(["Lucía come nueces", "Lucía duerme", "nueces y pan", "LUCIA, ¿nueces?"]):
        memory.write(said(text, i))
    assert [e.text for e in memory.find("nueces lucía")] == ["Lucía come nueces", "LUCIA, ¿nueces?"]
    assert memory.find("¿?") == [] and memory.find("nuez") == []


# Forgetting.


def test_what_is_forgotten_leaves_the_disk(full: Memory) -> None:
    full.write(said("El código de la alarma es xilófono4711 " + "y nada más " * 2000))
    assert b"4711" in bytes_on_disk(full)
    assert full.forget([e.id for e in full.find("xilófono4711") if e.id]) == 1
    left = bytes_on_disk(full)
    for trace in ("xilófono4711", "xilofono4711", "xilofono", "xil", "alarma", "ófono4711"):
        assert trace.encode() not in left, trace
    assert texts(full, "alarma xilófono4711 código") == []
    assert texts(full, "nueces") == [SAID[0]] and len(full.episodes()) == len(SAID)


def test_a_word_that_others_share_stays_with_them(full: Memory) -> None:
    full.write(said("La abuela canta"))
    assert full.forget([e.id for e in full.find("abuela canta") if e.id]) == 1
    assert texts(full, "abuela") == [SAID[5]]


def test_forgetting_leaves_the_disk_also_while_another_has_the_memory_open(full: Memory) -> None:
    with closing(sqlite3.connect(full.path)) as other:  # idle, as between two of its calls
        other.execute("SELECT count(*) FROM episodes").fetchone()
        assert full.forget([1]) == 1
        assert b"nueces" not in bytes_on_disk(full)


def test_somebody_in_the_way_of_forgetting_is_told_and_repeating_it_ends_the_work(
    full: Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("enlace.agent.memory._BUSY_SECONDS", 0.05)
    with closing(sqlite3.connect(full.path, isolation_level=None)) as other:
        other.execute("BEGIN")
        other.execute("SELECT count(*) FROM episodes").fetchone()
        with pytest.raises(EnlaceError, match="olvidado, pero otro programa"):
            full.forget([1])
        other.execute("COMMIT")
        assert full.forget([]) == 0
        assert b"nueces" not in bytes_on_disk(full)


def test_forgetting_what_is_not_there_is_nothing_and_numbers_are_not_given_again(full: Memory) -> None:
    assert full.forget([]) == 0 and full.forget([999]) == 0
    last = len(SAID)
    assert full.forget([last, last, 1]) == 2
    full.write(said("otra cosa"))
    assert [e.id for e in full.find("otra cosa")] == [last + 1], "a page that still shows the old number forgets nobody"


def test_everything_can_be_forgotten(full: Memory) -> None:
    assert full.forget([e.id for e in full.episodes() if e.id]) == len(SAID)
    assert full.episodes() == []
    assert all(word not in bytes_on_disk(full) for word in (b"nueces", b"medico", b"cuna"))


# Export and import.


def test_export_and_import_keep_everything(full: Memory, tmp_path: Path) -> None:
    full.write(Episode(NOW + 0.123456, "web", "dos\nlíneas \u2028 y más", "https://e.org/ñ"))
    assert full.export(tmp_path / "copia.jsonl") == len(SAID) + 1
    assert (tmp_path / "copia.jsonl").read_bytes().count(b"\n") == len(SAID) + 1
    other = Memory(tmp_path / "otra.db", HALF_LIFE)
    assert other.import_(tmp_path / "copia.jsonl") == (len(SAID) + 1, len(SAID) + 1)
    assert [replace(e, id=None) for e in other.episodes()] == [replace(e, id=None) for e in full.episodes()]
    assert other.import_(tmp_path / "copia.jsonl") == (len(SAID) + 1, 0), "twice adds nothing"


def test_an_export_does_not_write_over_anything(full: Memory, tmp_path: Path) -> None:
    (tmp_path / "copia.jsonl").write_text("lo de ayer")
    with pytest.raises(EnlaceError, match="ya existe"):
        full.export(tmp_path / "copia.jsonl")
    assert (tmp_path / "copia.jsonl").read_text() == "lo de ayer"


@pytest.mark.parametrize(
    "line",
    [
        "{",
        "[]",
        "{}",
        '{"time": "ayer", "speaker": "user", "text": "a"}',
        '{"time": 3, "speaker": "user", "text": "a"}',
        '{"time": "2026-11-30", "speaker": null, "text": "a"}',
        '{"time": "2026-11-30", "speaker": "user"}',
        '{"time": "2026-11-30", "speaker": "user", "text": ["a"]}',
        '{"time": "2026-11-30", "speaker": "user", "text": "a", "source": 3}',
    ],
)
def test_one_bad_line_imports_nothing_and_is_named(full: Memory, tmp_path: Path, line: str) -> None:
    good = json.dumps({"time": "2026-11-30T09:00:00Z", "speaker": "user", "text": "vale"})
    (tmp_path / "malo.jsonl").write_text(f"{good}\n\n{line}\n{good}\n")
    with pytest.raises(EnlaceError, match=r"malo\.jsonl:3: "):
        full.import_(tmp_path / "malo.jsonl")
    assert len(full.episodes()) == len(SAID)


# Kills, company and damage.


def test_a_kill_in_the_middle_of_a_write_loses_nothing_and_tears_nothing(tmp_path: Path) -> None:
    path = tmp_path / "memory.db"
    chance = random.Random(0)
    told = 0
    for round in range(4):
        command = [sys.executable, "-m", "tests.agent.memory_child", str(path), f"voz{round}"]
        child = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
        assert child.stdout
        written = [child.stdout.readline() for _ in range(chance.randrange(1, 12))]
        child.send_signal(signal.SIGKILL)
        written += child.stdout.readlines()
        child.wait()
        memory = Memory(path, HALF_LIFE)
        kept = [episode for episode in memory.episodes() if episode.speaker == f"voz{round}"]
        assert len(kept) in (len(written), len(written) + 1), "the last one may not have been told"
        assert all(e.text == f"voz{round} dice la frase {i} {'larga ' * 400}".strip() for i, e in enumerate(kept))
        told += len(kept)
        with closing(sqlite3.connect(path)) as connection:
            assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
            connection.execute("INSERT INTO words(words) VALUES ('integrity-check')")
            rows = connection.execute("SELECT count(*), sum(id IN (SELECT rowid FROM words)) FROM episodes").fetchone()
            assert rows == (told, told), "each episode has its words"
        assert memory.write(said(f"después de la ronda {round}", speaker="otra"))
        told += 1


def test_two_processes_write_at_once_into_a_memory_that_neither_finds(tmp_path: Path) -> None:
    path = tmp_path / "nueva" / "memory.db"
    command = [sys.executable, "-m", "tests.agent.memory_child", str(path)]
    children = [subprocess.Popen([*command, f"voz{i}", "25"], cwd=ROOT, stdout=subprocess.DEVNULL) for i in range(2)]
    memory = Memory(path, HALF_LIFE, lambda: NOW)
    while any(child.poll() is None for child in children):
        memory.recall("frase", 3)  # a reader is in nobody's way
    assert [child.returncode for child in children] == [0, 0]
    assert len(memory.episodes()) == 50 and len(memory.find("voz1")) == 25


def test_threads_share_a_memory(memory: Memory) -> None:
    with ThreadPoolExecutor(8) as threads:
        assert all(threads.map(lambda i: memory.write(said(f"frase número {i}")), range(40)))
        assert all(threads.map(lambda i: memory.recall(f"{i}", 1), range(40)))
    assert len(memory.episodes()) == 40


def test_two_that_write_the_same_at_once_write_it_once(memory: Memory) -> None:
    with ThreadPoolExecutor(8) as threads:
        assert sum(threads.map(lambda _: memory.write(said("la misma frase")), range(16))) == 1


@pytest.mark.parametrize("content", [b"esto no es una base de datos" * 200, b"SQLite format 3\0" + b"\xff" * 5000])
def test_what_is_no_memory_is_told_and_not_touched(memory: Memory, content: bytes) -> None:
    memory.path.parent.mkdir()
    memory.path.write_bytes(content)
    for use in (lambda: memory.write(said("hola")), lambda: memory.recall("hola", 1), lambda: memory.forget([1])):
        with pytest.raises(EnlaceError, match=r"memory\.db: no es una memoria"):
            use()
    assert memory.path.read_bytes() == content


def test_somebody_else_s_database_is_told_and_not_touched(memory: Memory) -> None:
    memory.path.parent.mkdir()
    with closing(sqlite3.connect(memory.path)) as other:
        other.execute("CREATE TABLE fotos (nombre TEXT)")
        other.commit()
    with pytest.raises(EnlaceError, match="no es una memoria de ENLACE"):
        memory.write(said("hola"))
    with closing(sqlite3.connect(memory.path)) as other:
        assert other.execute("SELECT name FROM sqlite_schema").fetchall() == [("fotos",)]


def test_a_busy_memory_is_told(full: Memory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("enlace.agent.memory._BUSY_SECONDS", 0.05)
    with closing(sqlite3.connect(full.path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(EnlaceError, match="ocupada"):
            full.write(said("hola"))
        assert texts(full, "nueces") == [SAID[0]], "reading goes on"
        other.execute("ROLLBACK")
    assert full.write(said("hola"))


def test_a_memory_where_nothing_can_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "agent").write_text("un archivo")
    with pytest.raises(EnlaceError, match=r"agent/memory\.db"):
        Memory(tmp_path / "agent/memory.db", HALF_LIFE).episodes()


def test_only_its_owner_reads_it(full: Memory) -> None:
    assert full.path.stat().st_mode & 0o077 == 0


def test_it_is_where_the_configuration_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("AGENT_DIR", str(tmp_path / "otro"))
    assert Memory.from_config(load_config(ROOT).agent.memory).path == tmp_path / "otro/memory.db"
