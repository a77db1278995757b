from __future__ import annotations

import json
from typing import Any

import pytest

from enlace.agent.search import searxng
from enlace.agent.search.fetch import Answer
from enlace.agent.search.outcome import Outcome, Result
from enlace.config.schema import SearchConfig
from tests.agent.search.conftest import PAGES

OWN = json.loads((PAGES / "searxng.json").read_text(encoding="utf-8"))


def read(content: Any, status: int = 200, content_type: str = "application/json") -> Outcome:
    return searxng.read(Answer(status, content_type, content if isinstance(content, str) else json.dumps(content)))


def test_results_are_read_in_the_order_of_the_server() -> None:
    assert read(OWN).results == (
        Result(
            "El tiempo en Cádiz", "https://tiempo.example.org/cádiz/mañana", "Viento de levante & sol.", "2026-11-29"
        ),
        Result("www.playas.example.net", "https://www.playas.example.net/", "Escrito con <div> y &amp; a propósito"),
    )


@pytest.mark.parametrize("answers", [[], ["18 grados"], [{"answer": "18 grados", "url": "https://e.org"}]])
def test_both_generations_of_answers_and_of_counts_read_the_same(answers: list[Any]) -> None:
    assert read(OWN | {"answers": answers, "number_of_results": 0}).results == read(OWN).results


def test_every_engine_silent_is_a_block_and_not_an_empty_list() -> None:
    silent = read({"results": [], "unresponsive_engines": [["uno", "CAPTCHA"], ["dos", "expirado"]]})
    assert silent.kind == "blocked" and "uno, dos" in silent.detail
    assert read({"results": [], "unresponsive_engines": []}) == Outcome("no_results")
    assert read({"results": []}) == Outcome("no_results")


def test_json_switched_off_says_where_to_switch_it_on() -> None:
    outcome = read("<!doctype html><title>403 Forbidden</title>", 403, "text/html")
    assert outcome.kind == "unreadable" and "search.formats" in outcome.detail


@pytest.mark.parametrize(
    ("status", "content_type"), [(429, "text/html"), (302, "text/html"), (200, "text/html"), (429, "application/json")]
)
def test_the_limiter_is_a_block_with_its_hint(status: int, content_type: str) -> None:
    outcome = read("<html><title>SearXNG</title></html>", status, content_type)
    assert outcome.kind == "blocked" and "limiter" in outcome.detail


def test_a_bad_parameter_says_which() -> None:
    outcome = read({"error": "Invalid value 3 for parameter safesearch"}, 400)
    assert outcome.kind == "unreadable" and "safesearch" in outcome.detail


@pytest.mark.parametrize(
    "content", ["", "{", "[]", "null", '{"results": null}', '{"results": {}}', "[" * 100_000, "NaN"]
)
def test_what_is_not_its_answer_is_unreadable_and_not_an_exception(content: str) -> None:
    outcome = read(content)
    assert outcome.kind == "unreadable" and "base_url" in outcome.detail


@pytest.mark.parametrize("item", [None, 3, "x", [], {}, {"url": None}, {"url": 3}, {"url": "https://[::1"}])
def test_odd_results_are_passed_over(item: Any) -> None:
    assert len(read(OWN | {"results": [item, *OWN["results"]]}).results) == 2


def test_a_broken_character_is_dropped() -> None:
    (found,) = read('{"results": [{"url": "https://e.org/", "title": "a\\ud800b", "content": "\\u202ec"}]}').results
    assert (found.title, found.snippet) == ("ab", "c")


def test_a_failure_is_not_an_empty_list() -> None:
    assert read("Internal Server Error", 500, "text/html").kind == "unreachable"


def test_the_form_asks_for_spanish_and_json(shipped: SearchConfig) -> None:
    form = searxng.form("hola", shipped)
    assert (form["q"], form["format"], form["language"], form["safesearch"]) == ("hola", "json", "es-ES", "1")
    anywhere = shipped.model_copy(update={"searxng": shipped.searxng.model_copy(update={"region": "wt-wt"})})
    assert searxng.form("hola", anywhere)["language"] == "all"
