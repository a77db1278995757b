from __future__ import annotations

import json
from pathlib import Path

from enlace.data.chat import encode_prompt
from enlace.data.conversations import Conversation
from enlace.data.shards import Shards
from enlace.eval.minimal_pairs import FILE, load_phenomena
from enlace.eval.report import Measured, measure, tokens_per_byte
from enlace.eval.sets import write_sets
from enlace.export.card import model_card
from enlace.export.trained import Trained
from tests.conftest import ROOT
from tests.eval.conftest import SETTINGS, conversations


def test_every_group_of_figures_is_there_beside_its_chance(measured: Measured) -> None:
    metrics = measured.metrics
    assert set(metrics["bits_per_byte"]) == {"cuentos"}
    assert metrics["pairs"]["pairs"] == 4 * len(metrics["phenomena"]) == len(measured.pairs)
    assert metrics["choices"]["choices"] == 10 and metrics["choices"]["accuracy_chance"] == 0.25
    grounded = metrics["grounded"]
    assert grounded["questions"] == grounded["written"] == 9 and grounded["choice_chance"] == 0.25
    assert 0 <= grounded["choice_accuracy_low"] <= grounded["choice_accuracy"] <= grounded["choice_accuracy_high"] <= 1
    assert grounded["answer_loss"] > 0 and {"exact", "f1", "f1_chance"} <= set(grounded)
    assert metrics["refusal"]["questions"] == 4 and metrics["refusal"]["taught"] == 0
    written = metrics["written"]
    assert written["samples"] == len(measured.samples["written"]) == 3
    assert written["longest_copy_tokens_human"] >= written["copy_least_tokens"], "the stories are alike"
    assert {"answers", "unanswerable", "continuations", "written", "copied"} == set(measured.samples)
    assert measured.samples["continuations"][0]["prompt"] == "El perro come"


def test_the_same_model_has_the_same_figures_to_the_bit(
    trained: Trained, small_shards: Shards, measured: Measured
) -> None:
    again = measure(trained, small_shards, load_phenomena(ROOT / FILE), [], conversations(), 0.1, SETTINGS)
    assert again.metrics | {"choices": {}} == measured.metrics | {"choices": {}}
    assert again.samples == measured.samples


def test_what_was_trained_on_is_not_asked(measured: Measured, trained: Trained, small_shards: Shards) -> None:
    only_trained = [Conversation(c.messages, "f" * 16, c.kind) for c in conversations()]
    phenomena = load_phenomena(ROOT / FILE)
    found = measure(trained, small_shards, phenomena, [], only_trained, 0.1, SETTINGS)
    assert found.metrics["grounded"] == found.metrics["refusal"] == found.metrics["choices"] == {}
    assert found.asked == [] and found.samples["answers"] == []


def test_tokens_per_byte_counts_what_each_loss_counts(trained: Trained, small_shards: Shards) -> None:
    found = tokens_per_byte(trained, small_shards)
    stream = small_shards.stream("val", "cuentos")
    assert found["val_loss"] == stream.n_tokens / stream.n_bytes, "end-of-text tokens are counted, and spell nothing"
    chat = small_shards.stream("val", "chat")
    said = [trained.tokenizer.decode(ids[mask == 1]) for ids, mask in chat.documents()]
    trained_tokens = sum(int(mask.sum()) for _, mask in chat.documents())
    assert found["val_chat_loss"] == trained_tokens / sum(len(text.encode()) for text in said)


def test_the_sets_are_what_was_measured(measured: Measured, trained: Trained, tmp_path: Path) -> None:
    write_sets(
        tmp_path, trained.tokenizer, measured.texts, measured.pairs, measured.choices, measured.asked, measured.refused
    )
    sets = {
        path.stem: [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        for path in tmp_path.glob("*.jsonl")
    }
    assert set(sets) == {"texts", "pairs", "choices", "questions", "unanswerable"}
    encoded = [trained.tokenizer.encode(row["text"]) for row in sets["texts"]]
    assert encoded == [[*map(int, ids[:-1])] for ids in measured.texts["cuentos"]], "and tokenise to the same"
    assert [(row["good"], row["bad"]) for row in sets["pairs"]] == [(p.good, p.bad) for p in measured.pairs]
    assert [row["descriptions"][0] for row in sets["choices"]] == [c.descriptions[0] for c in measured.choices]
    assert [row["user"] for row in sets["questions"]] == [q.text for q in measured.asked]
    assert len(sets["unanswerable"]) == 4
    assert all(len(encode_prompt(trained.tokenizer, q.prompt)) < trained.context_length for q in measured.asked)


def test_the_card_says_what_was_measured(measured: Measured, trained: Trained) -> None:
    source = {"name": "cuentos", "documents": 3, "license": "CC BY-SA 4.0", "attribution": "De todos."}
    run = {
        "run": "abc",
        "model": "mini",
        "precision": "float32",
        "hardware": "cpu",
        "train": {"steps": 10, "batch_tokens": 100, "seq_len": 64},
    }
    card = model_card(trained.model, run, measured.metrics, [source])
    bpb = measured.metrics["bits_per_byte"]["cuentos"]
    assert all(text in card for text in ("CC BY-SA 4.0", "De todos.", "cuentos", f"| {bpb} |"))
