from __future__ import annotations

from collections import Counter

import pytest
import torch

from enlace.config.schema import ModelConfig
from enlace.data.dedup import document_hash, is_held_out
from enlace.data.documents import Document
from enlace.data.shards import Shards
from enlace.data.tokenizer import Tokenizer
from enlace.eval.choices import CANDIDATES, Choice, choices_of, judge
from enlace.export.trained import Trained
from enlace.model.transformer import Transformer

DOCUMENTS = [
    Document(f"w:{i}", f"Texto número {i}.", "w", {"title": f"Título {i}", "description": f"descripción {i}"})
    for i in range(60)
]


def test_only_held_out_records_and_each_description_once_right_and_as_often_wrong() -> None:
    choices = choices_of(DOCUMENTS, 0.4, 500)
    held_out = {d.meta["title"] for d in DOCUMENTS if is_held_out(document_hash(d.text), 0.4)}
    assert {choice.title for choice in choices} == held_out and len(held_out) > 10
    right = Counter(choice.descriptions[0] for choice in choices)
    wrong = Counter(text for choice in choices for text in choice.descriptions[1:])
    assert set(right.values()) == {1} and set(wrong.values()) == {CANDIDATES - 1}
    for choice in choices:
        assert choice.descriptions[0] == choice.title.replace("Título", "descripción")
        assert len(set(choice.descriptions)) == CANDIDATES


def test_whatever_the_order_and_without_shared_descriptions() -> None:
    assert choices_of(DOCUMENTS[::-1], 0.4, 500) == choices_of(DOCUMENTS, 0.4, 500)
    twins = [Document(d.id, d.text, d.source, {**d.meta, "description": "pueblo"}) for d in DOCUMENTS[:30]]
    assert all("pueblo" not in choice.descriptions for choice in choices_of([*twins, *DOCUMENTS[30:]], 0.4, 500))
    assert choices_of(twins, 0.4, 500) == []
    assert choices_of([Document("a", "x", "s", {})], 0.4, 500) == [], "own text has no descriptions"


def test_a_model_that_knows_nothing_of_titles_is_at_chance_whatever_it_likes(
    model_config: ModelConfig, small_shards: Shards, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer = Tokenizer.load(small_shards.tokenizer_path)
    model = Transformer(model_config, tokenizer.vocab_size).initialise(torch.Generator().manual_seed(0)).eval()
    trained = Trained(model, tokenizer, 64)
    choices = choices_of(DOCUMENTS, 0.4, 8)
    right = judge(trained, choices)
    assert len(right) == 8
    scored = _by_hand(trained, choices[0])
    assert right[0] == (scored[0] > max(scored[1:]))


def _by_hand(trained: Trained, choice: Choice) -> list[float]:
    encode = trained.tokenizer.encode

    def log_p(given: list[int], text: list[int]) -> float:
        ids = torch.tensor([[*given, *text]])
        with torch.no_grad():
            found = trained.model.logits(trained.model(ids[:, :-1])).log_softmax(-1)[0]
        return sum(float(found[len(given) - 1 + i, id]) for i, id in enumerate(text))

    title = encode(choice.title + ":")
    return [log_p(title, encode(" " + d)) - log_p([0], encode(" " + d)) for d in choice.descriptions]
