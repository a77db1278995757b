from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from enlace.config.schema import ModelConfig, PhaseMixture, TrainConfig
from enlace.data.chat import Message, encode_prompt
from enlace.data.conversations import Conversation
from enlace.data.shards import Shards
from enlace.eval.grounded import (
    CANDIDATES,
    Answered,
    Cost,
    Question,
    answer_costs,
    fitting,
    is_refusal,
    judge,
    unanswerable,
    with_distractors,
    word_f1,
)
from enlace.eval.report import question_figures, refusal_figures
from enlace.export.trained import Trained, load_trained
from enlace.export.weights import save_weights
from enlace.train.run import make_trainer
from tests.eval.conftest import SETTINGS
from tests.train.test_trainer import cpu_runtime


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
            (Message("user", f"{t[:12]}\n\n¿Quién {t[3:20]}?"), Message("assistant", t[:12])), "0" * 16, "quién"
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

    def costs(bonus: float, asked: list[tuple[Question, list[str]]]) -> list[list[Cost]]:
        return [
            [
                Cost(math.log(2) * (habit[answer] - bonus * (f"Texto: {answer}" in question.text)), 1, 1)
                for answer in answers
            ]
            for question, answers in asked
        ]

    monkeypatch.setattr("enlace.eval.grounded.answer_costs", lambda trained, asked: costs(2.0, asked))
    assert judge(trained, with_distractors(questions)) == [True] * 4
    monkeypatch.setattr("enlace.eval.grounded.answer_costs", lambda trained, asked: costs(0.0, asked))
    assert judge(trained, with_distractors(questions)) == [False] * 4, "a model that does not read gains nothing"


def test_only_the_words_of_the_answer_are_scored(trained: Trained) -> None:
    question, tokenizer = _questions(1)[0], trained.tokenizer
    answer_ids = tokenizer.encode("el perro")
    prompt = encode_prompt(tokenizer, question.prompt)
    with torch.no_grad():
        log_p = trained.model.logits(trained.model(torch.tensor([prompt + answer_ids]))).log_softmax(-1)[0]
    nats = -sum(float(log_p[len(prompt) - 1 + i, id]) for i, id in enumerate(answer_ids))
    [[cost, other]] = answer_costs(trained, [(question, ["el perro", "un gato de la vecina de al lado"])])
    assert other.tokens > cost.tokens, "answers of different lengths do not see each other's padding"
    assert cost.nats == pytest.approx(nats, rel=1e-5)
    assert (cost.tokens, cost.bytes) == (len(answer_ids), len("el perro"))
    assert cost.bits_per_byte == pytest.approx(nats / math.log(2) / len("el perro"), rel=1e-5)


def test_questions_that_leave_no_room_are_left_out(trained: Trained) -> None:
    long = Question((Message("user", "perro " * 100),), "sí", "x")
    assert fitting(trained, [*_questions(2), long], 8) == _questions(2)


def test_an_answer_is_grounded_where_it_stands_in_the_passage_as_words() -> None:
    def grounded(passage: str, answer: str) -> bool:
        return Question((Message("user", f"Texto: {passage}\n\nPregunta: ¿Qué?"),), answer, "qué").grounded

    assert grounded("Fue un poeta, y médico, de Lima.", "un poeta y médico")
    assert not grounded("Fue un poetastro de Lima.", "un poeta")
    assert not Question((Message("user", "¿Qué es un poeta?"),), "un poeta", "qué").grounded, "nothing to read"


def _asked(passage: str, question: str, answer: str) -> Question:
    return Question((Message("user", f"Texto: {passage}\n\nPregunta: {question}"),), answer, "x")


def test_the_foreign_passage_says_nothing_of_what_is_asked() -> None:
    questions = [
        _asked("La sopa hierve veinte minutos.", "¿Cuánto hierve la sopa?", "veinte minutos"),
        _asked("La sopa de ajo lleva pan.", "¿Qué lleva la sopa de ajo?", "pan"),
        _asked("El Ebro nace en Fontibre.", "¿Dónde nace el Ebro?", "Fontibre"),
        _asked("El Tajo pasa por Toledo.", "¿De qué habla el texto?", "El Tajo"),
    ]
    found = unanswerable(questions, 10)
    assert found == unanswerable(questions[::-1], 10), "whatever the order"
    assert len(found) == 3, "any text says what it speaks of"
    for question in found:
        topic = "sopa" if "sopa" in question.text.rpartition("Pregunta:")[2] else "nace"
        assert topic not in question.passage
        assert not question.grounded
    assert len(unanswerable(questions, 2)) == 2


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("El texto no lo dice.", True),
        ("No lo sé.", True),
        ("Eso no aparece en el pasaje.", True),
        ("El texto no menciona dónde nació.", True),
        ("Lo siento, no tengo información sobre eso.", True),
        ("No puedo responder con este texto.", True),
        ("No.", False),
        ("un poeta que no publicó nada", False),
        ("el veinte de mayo", False),
        ("una ciudad que no tiene salida al mar", False),
    ],
)
def test_what_counts_as_a_refusal(text: str, expected: bool) -> None:
    assert is_refusal(text) == expected


def test_refusals_are_counted_where_they_are_right_and_where_they_are_wrong(
    trained: Trained, monkeypatch: pytest.MonkeyPatch
) -> None:
    questions = [_asked(f"El {name} tiene dueño.", f"¿Quién cuida al {name}?", "nadie") for name in ("perro", "gato")]
    monkeypatch.setattr("enlace.eval.report.fitting", lambda trained, questions, room: list(questions))
    monkeypatch.setattr(
        "enlace.eval.report.likeliest_turns", lambda trained, prompts, *_: ["El texto no lo dice."] * len(prompts)
    )
    answers = [Answered(questions[0], "nadie"), Answered(questions[1], "No lo sé.")]
    taught = Conversation((Message("user", "¿Y?"), Message("assistant", "El texto no lo dice.")), "f" * 16)
    figures, given = refusal_figures(trained, questions, answers, [taught], SETTINGS)
    assert (figures["refused"], figures["wrongly_refused"], figures["taught"]) == (1, 0.5, 1)
    assert figures["questions"] == len(given) == 2


def test_without_questions_there_are_no_figures(trained: Trained) -> None:
    assert question_figures(trained, [], SETTINGS) == ({}, [])


@pytest.mark.parametrize(
    ("given", "right", "expected"),
    [("El río Ebro.", "el río ebro", 1.0), ("el Ebro", "el río Ebro", 0.8), ("nada", "todo", 0.0), ("", "algo", 0.0)],
)
def test_word_f1(given: str, right: str, expected: float) -> None:
    assert word_f1(given, right) == pytest.approx(expected)
