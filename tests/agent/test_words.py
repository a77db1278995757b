from __future__ import annotations

import sqlite3

import pytest

from enlace.agent.words import all_of, any_of, loose, words


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Médicos: ¿sesión?", ["medicos", "sesion"]),
        ("cancio\u0301n", ["cancion"]),
        ("año ano AÑO an\u0303o", ["año", "ano", "año", "año"]),
        ("pingüino façade Çırağan", ["pinguino", "facade", "cıragan"]),
        ("snake_case C++ a-b 18:30", ["snake", "case", "c", "a", "b", "18", "30"]),
        ("Straße", ["strasse"]),
        ("¿?", []),
    ],
)
def test_accents_and_case_fold_and_the_enie_stays(text: str, expected: list[str]) -> None:
    assert words(text) == expected


def test_function_words_are_looked_for_only_where_there_is_nothing_else() -> None:
    assert any_of("¿qué?") == '"que"'
    assert any_of("¿qué come el perro?") == '"come" OR "come" * OR "perro" OR "perr" *'
    assert any_of("¿te gusta el té?") == '"gusta" OR "gust" * OR "te"', "the tea is none of them"
    assert any_of("¿?") is None and all_of("") is None
    assert all_of("¿Qué come?") == '"que" AND "come"'


def test_a_page_pasted_as_a_query_is_still_one() -> None:
    assert (any_of(" ".join(f"palabra{i}" for i in range(100_000))) or "").count(" OR ") < 200


def test_what_says_the_same_but_for_punctuation_is_the_same() -> None:
    assert loose("¡Mañana, médico!") == loose("mañana   MEDICO") != loose("manana medico")


def test_fts5_would_fold_the_enie_by_itself() -> None:
    """Why the words are folded here."""
    connection = sqlite3.connect(":memory:")
    connection.execute("CREATE VIRTUAL TABLE t USING fts5(x)")
    connection.execute("INSERT INTO t VALUES ('año')")
    assert connection.execute("SELECT count(*) FROM t WHERE t MATCH 'ano'").fetchone() == (1,)
    connection.close()
