from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from enlace.config.schema import EvalConfig, ModelConfig, PhaseMixture, TrainConfig
from enlace.data.chat import Message, encode_prompt
from enlace.data.conversations import Conversation
from enlace.data.shards import Shards
from enlace.data.tokenizer import Tokenizer
from enlace.eval.grounded import (
    CANDIDATES,
    Question,
    answer_bits_per_byte,
    binomial_interval,
    choice_accuracy,
    fitting,
    with_distractors,
    word_f1,
)
from enlace.eval.report import held_out_questions, question_figures, samples, score_bars, text_figures
from enlace.export.card import model_card
from enlace.export.trained import Trained, load_trained
from enlace.export.weights import save_weights
from enlace.model.transformer import Transformer
from enlace.train.run import make_trainer
from tests.train.test_trainer import cpu_runtime

SETTINGS = EvalConfig(
    max_documents=50,
    max_conversations=40,
    max_new_tokens=8,
    temperature=0.8,
    top_p=0.9,
    seed=1,
    prompts=("El perro come",),
)


@pytest.fixture
def trained(model_config: ModelConfig, small_shards: Shards) -> Trained:
    model = Transformer(model_config, small_shards.manifest.vocab_size).initialise(torch.Generator().manual_seed(0))
    return Trained(model.eval(), Tokenizer.load(small_shards.tokenizer_path), 64)


def _questions(n: int) -> list[Question]:
    asked = [(Message("user", f"El {i} ladra.\n\n¿Quién es el {i}?"),) for i in range(n)]
    return [Question(prompt, f"el perro {i}", "quién") for i, prompt in enumerate(asked)]


def test_the_right_answer_is_first_and_the_others_are_of_its_kind_and_fixed() -> None:
    questions = [*_questions(6), Question((Message("user", "Fue ayer.\n\n¿Cuándo?"),), "ayer", "cuándo")]
    sets = with_distractors(questions)
    assert len(sets) == 6, "a kind with too few answers cannot be a choice"
    for question, candidates in sets:
        assert candidates[0] == question.answer
        assert len(set(candidates)) == CANDIDATES
        assert "ayer" not in candidates
    assert sets == with_distractors(questions)


def test_a_question_without_a_passage_is_no_choice() -> None:
    """Nothing is gained from a text that is not there: every such question would count as wrong."""
    alone = [question.without_passage() for question in _questions(6)]
    assert with_distractors(alone) == []
    assert len(with_distractors([*alone, *_questions(6)])) == 6


def test_a_model_that_learnt_the_answers_gives_them(
    model_config: ModelConfig, train_config: TrainConfig, mixture: PhaseMixture, small_shards: Shards, tmp_path: Path
) -> None:
    train = train_config.model_copy(update={"steps": 120, "decay_steps": 120, "seq_len": 64, "batch_tokens": 1024})
    trainer = make_trainer(model_config, train, mixture, small_shards, cpu_runtime(), 16, tmp_path / "run")
    trainer.fit()
    save_weights(tmp_path / "m", trainer.model, small_shards.tokenizer_path.read_bytes(), 64, {"model": "x"})
    trained = load_trained(tmp_path / "m")
    conversations = [
        Conversation(
            (Message("user", f"Cuento.\n\n¿Quién {t[3:20]}?"), Message("assistant", t[:12])), "0" * 16, "quién"
        )
        for t in (
            "El perro come pan con aceite en el corral",
            "El gato canta al amanecer junto al río",
            "El zorro mira la lluvia bajo la encina",
            "El tejón busca a sus crías en la plaza",
        )
    ]
    questions = [Question.of_conversation(c) for c in conversations]
    figures, answers = question_figures(trained, questions, SETTINGS)
    assert figures["f1"] > figures["f1_chance"]
    assert len(answers) == 4


def test_the_choice_is_the_answer_that_the_passage_makes_likelier(
    trained: Trained, monkeypatch: pytest.MonkeyPatch
) -> None:
    questions = [
        Question((Message("user", f"Texto: {name} canta.\n\n¿Quién canta?"),), name, "quién")
        for name in ("Ana", "Luis", "Marta", "Pedro")
    ]
    habit = {"Ana": 1.0, "Luis": 5.0, "Marta": 7.0, "Pedro": 9.0}  # bits: "Ana" is likely after any text

    def reads(trained: Trained, question: Question, answer: str) -> float:
        return habit[answer] - (2.0 if f"Texto: {answer}" in question.text else 0.0)

    monkeypatch.setattr("enlace.eval.grounded.answer_bits_per_byte", reads)
    assert choice_accuracy(trained, with_distractors(questions)) == 1
    monkeypatch.setattr("enlace.eval.grounded.answer_bits_per_byte", lambda trained, question, answer: habit[answer])
    assert choice_accuracy(trained, with_distractors(questions)) == 0, "a model that does not read gains nothing"


def test_only_the_words_of_the_answer_are_scored(trained: Trained) -> None:
    question, tokenizer = _questions(1)[0], trained.tokenizer
    answer_ids = tokenizer.encode("el perro")
    prompt = encode_prompt(tokenizer, question.prompt)
    with torch.no_grad():
        log_p = trained.model.logits(trained.model(torch.tensor([prompt + answer_ids]))).log_softmax(-1)[0]
    nats = -sum(float(log_p[len(prompt) - 1 + i, id]) for i, id in enumerate(answer_ids))
    expected = nats / math.log(2) / len("el perro")
    assert answer_bits_per_byte(trained, question, "el perro") == pytest.approx(expected, rel=1e-5)


def test_questions_that_leave_no_room_are_left_out(trained: Trained) -> None:
    long = Question((Message("user", "perro " * 100),), "sí", "x")
    assert fitting(trained, [*_questions(2), long], 8) == _questions(2)


def test_only_questions_about_held_out_documents_are_asked() -> None:
    turns = (Message("user", "¿Sí?"), Message("assistant", "Sí."))
    low, high = Conversation(turns, "0" * 16), Conversation(turns, "f" * 16)
    assert len(held_out_questions([low, high], 0.05)) == 1


def test_figures_samples_and_card_of_a_whole_model(trained: Trained, small_shards: Shards) -> None:
    bpb = text_figures(trained, small_shards, 50)
    assert set(bpb) == {"cuentos"}
    figures, answers = question_figures(trained, _questions(6), SETTINGS)
    assert 0 <= figures["choice_accuracy"] <= 1 and figures["choice_chance"] == 0.25
    shown = samples(trained, answers, SETTINGS)
    assert len(shown["answers"]) == 3 and shown["continuations"][0]["prompt"] == "El perro come"
    source = {"name": "cuentos", "documents": 3, "license": "CC BY-SA 4.0", "attribution": "De todos."}
    run = {
        "model": "mini",
        "precision": "float32",
        "hardware": "cpu",
        "train": {"steps": 10, "batch_tokens": 100, "seq_len": 64},
    }
    card = model_card(trained.model, run, {"bits_per_byte": bpb}, [source])
    assert all(text in card for text in ("CC BY-SA 4.0", "De todos.", "cuentos", f"| {bpb['cuentos']} |"))


def test_without_questions_there_are_no_figures(trained: Trained) -> None:
    assert question_figures(trained, [], SETTINGS) == ({}, [])
    assert score_bars({}) == ({}, {})


@pytest.mark.parametrize(
    ("given", "right", "expected"),
    [("El río Ebro.", "el río ebro", 1.0), ("el Ebro", "el río Ebro", 0.8), ("nada", "todo", 0.0), ("", "algo", 0.0)],
)
def test_word_f1(given: str, right: str, expected: float) -> None:
    assert word_f1(given, right) == pytest.approx(expected)


def test_binomial_interval() -> None:
    assert binomial_interval(0.5, 100) == pytest.approx(0.098)
