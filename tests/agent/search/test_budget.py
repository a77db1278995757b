from __future__ import annotations

import pytest

from enlace.agent.search.budget import fit, for_model
from enlace.agent.search.outcome import Kind, Outcome, Result
from enlace.config.schema import SearchConfig
from enlace.data.shards import Shards
from enlace.data.tokenizer import Tokenizer

RESULTS = tuple(
    Result(
        f"Título {i}: todo lo que hay que saber de las máquinas de coser antiguas y de cómo se arreglan en casa",
        f"https://www.sitio{i}.example.org/una/ruta/larga?con=parametros&muchos={i}",
        f"Fragmento {i}. " + "La lanzadera se limpia con un paño seco y una gota de aceite, y después se prueba. " * 4,
        "2026-10-01" if i == 2 else "",
    )
    for i in range(1, 9)
)
FOUND = Outcome("results", RESULTS)


def words(text: str) -> int:
    return len(text.split())


def test_five_trimmed_results_with_hosts_and_without_addresses(shipped: SearchConfig) -> None:
    text = for_model(FOUND, words, 10_000, shipped)
    assert [line[:3] for line in text.split("\n")[::2]] == ["1. ", "2. ", "3. ", "4. ", "5. "]
    assert "(sitio1.example.org)" in text and "(sitio2.example.org, 2026-10-01)" in text
    assert "https:" not in text and "ruta" not in text
    for shown in fit(RESULTS, words, 10_000, shipped):
        assert len(shown.title) <= shipped.title_chars and len(shown.snippet) <= shipped.snippet_chars
        assert shown.url == RESULTS[int(shown.title.split()[1][0]) - 1].url, "the source of what is shown"
        assert f"{shown.snippet.removesuffix('…')} " in RESULTS[int(shown.title.split()[1][0]) - 1].snippet


def test_whole_results_go_from_the_end_before_the_first_is_cut(shipped: SearchConfig) -> None:
    everything = fit(RESULTS, words, 10_000, shipped)
    lengths = []
    for budget in range(words(for_model(FOUND, words, 10_000, shipped)) + 2, 0, -1):
        shown = fit(RESULTS, words, budget, shipped)
        lengths.append(len(shown))
        if len(shown) > 1:
            assert shown == everything[: len(shown)], "nothing is cut while there is another to drop"
    assert lengths == sorted(lengths, reverse=True) and {1, 2, 3, 4, 5} <= set(lengths)


@pytest.mark.parametrize("budget", [0, 1, 5, 12, 20, 33, 60, 100, 250, 1000])
def test_the_budget_holds_in_the_project_s_own_tokens(budget: int, small_shards: Shards, shipped: SearchConfig) -> None:
    tokenizer = Tokenizer.load(small_shards.tokenizer_path)

    def count(text: str) -> int:
        return len(tokenizer.encode(text))

    text = for_model(FOUND, count, budget, shipped)
    assert count(text) <= budget
    assert text == "" or text.startswith("1. Título")
    assert "\ufffd" not in text


def test_the_only_result_is_cut_word_by_word_and_its_title_goes_last(shipped: SearchConfig) -> None:
    one = fit(RESULTS, words, 20, shipped)
    assert len(one) == 1 and one[0].snippet.endswith("…") and one[0].title == fit(RESULTS, words, 999, shipped)[0].title
    (least,) = fit(RESULTS, words, 3, shipped)
    assert (least.title, least.snippet) == ("Título…", "")


def test_a_giant_result_does_not_empty_the_window(shipped: SearchConfig) -> None:
    giant = Outcome("results", (Result("a" * 50_000, "https://e.org/", "b" * 50_000),))
    assert 0 < len(for_model(giant, len, 300, shipped)) <= 300


def test_only_no_results_says_sin_resultados(shipped: SearchConfig) -> None:
    kinds: list[Kind] = ["no_results", "blocked", "unreadable", "unreachable"]
    texts = {kind: for_model(Outcome(kind), words, 50, shipped) for kind in kinds}
    assert texts.pop("no_results") == "Sin resultados."
    assert len(set(texts.values())) == 3
    assert all(text and "resultados" not in text.lower() for text in texts.values())
    assert for_model(Outcome("blocked"), words, 3, shipped) == "", "never half a sentence that says something else"
