from __future__ import annotations

import pytest

from enlace import EnlaceError
from enlace.agent.search.query import key, prepare
from enlace.config.schema import SearchConfig


@pytest.mark.parametrize(
    ("query", "sent"),
    [
        ("!g hola", "g hola"),
        ("!!g hola", "g hola"),
        ("hola !w", "hola w"),
        ("\uff01g hola", "g hola"),
        ("\\hola", "hola"),
        ("! \\ hola", "hola"),
        ("\\!\\g hola", "g hola"),
        (":es hola", "es hola"),
        ("hola <10", "hola 10"),
        ("¡Hola! ¿qué tal?", "¡Hola ¿qué tal?"),
        ("C++ y a:b <- c", "C++ y a:b - c"),
        ("  uno\n\tdos ", "uno dos"),
        ("cafe\u0301", "café"),
        ("a & b = ñ #1", "a & b = ñ #1"),
    ],
)
def test_orders_for_the_service_become_plain_words(query: str, sent: str) -> None:
    assert prepare(query) == sent
    assert prepare(sent) == sent


@pytest.mark.parametrize("query", ["", "  ", "!!", "¿?", "\u200b", "!", "\\ : <"])
def test_a_query_without_words_is_refused(query: str) -> None:
    with pytest.raises(EnlaceError, match="No hay nada que buscar"):
        prepare(query)


def test_long_queries_are_cut_between_words_to_what_the_service_takes() -> None:
    assert prepare("palabra " * 100) == ("palabra " * 62).strip()
    assert prepare("a" * 499 + " b") == "a" * 499
    assert prepare("ñ" * 600) == "ñ" * 499


def test_case_and_spaces_share_a_key_and_accents_do_not(shipped: SearchConfig) -> None:
    def of(query: str) -> str:
        return key(prepare(query), shipped)

    assert of("  Tiempo   MADRID ") == of("tiempo madrid")
    assert of("cafe\u0301") == of("café") == of("CAFÉ")
    assert of("año") != of("ano")
    assert of("m²") != of("m2")


def test_whatever_changes_the_answer_is_in_the_key(shipped: SearchConfig) -> None:
    service = shipped.duckduckgo
    others = [
        {"backend": "searxng"},
        {"safe_search": "off"},
        {"duckduckgo": service.model_copy(update={"region": "mx-es"})},
        {"duckduckgo": service.model_copy(update={"base_url": "https://html.duckduckgo.com/html/"})},
    ]
    keys = {key("hola", shipped), *(key("hola", shipped.model_copy(update=other)) for other in others)}
    assert len(keys) == 5
    same = shipped.model_copy(update={"user_agent": "otro", "results": 3})
    assert key("hola", same) == key("hola", shipped)
