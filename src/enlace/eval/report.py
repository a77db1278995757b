"""Everything that is measured on a trained model, gathered: the figures, the samples and the pictures."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import islice

from enlace.config.schema import EvalConfig
from enlace.console import progress
from enlace.data.conversations import Conversation
from enlace.data.dedup import is_held_out
from enlace.data.shards import Shards
from enlace.eval.bpb import bits_per_byte
from enlace.eval.grounded import (
    CANDIDATES,
    Answered,
    Question,
    answer,
    answer_bits_per_byte,
    binomial_interval,
    choice_accuracy,
    fitting,
    with_distractors,
    word_f1,
)
from enlace.export.trained import Trained
from enlace.model.generate import Sampling, generate

SHOWN = 3


def text_figures(trained: Trained, shards: Shards, max_documents: int) -> dict[str, float]:
    """Bits per byte of the held-out documents of each source."""
    return {
        stream.name: bits_per_byte(
            trained.model,
            (ids for ids, _ in islice(stream.documents(), max_documents)),
            trained.tokenizer.token_byte_lengths,
            trained.tokenizer.end_of_text_id,
            trained.context_length,
        )
        for stream in shards.streams
        if stream.split == "val" and stream.kind == "corpus"
    }


def held_out_questions(conversations: Iterable[Conversation], val_fraction: float) -> list[Question]:
    """The questions about documents that were held out of training."""
    return [
        Question.of_conversation(conversation)
        for conversation in conversations
        if is_held_out(conversation.document_hash, val_fraction)
    ]


def question_figures(
    trained: Trained, questions: Sequence[Question], settings: EvalConfig
) -> tuple[dict[str, float], list[Answered]]:
    """Figures on grounded questions, each beside what chance would give, and the answers themselves."""
    questions = fitting(trained, questions, settings.max_new_tokens)[: settings.max_conversations]
    sets = with_distractors(questions)
    if not sets:
        return {}, []  # too few that fit
    accuracy = choice_accuracy(trained, sets)
    with progress() as bar:
        answers = [
            answer(trained, question, settings.max_new_tokens)
            for question in bar.track(questions, description="Respuestas")
        ]
    # What an answer to another question of the same kind scores.
    by_chance = [word_f1(candidates[1], question.answer) for question, candidates in sets]
    figures = {
        "questions": len(questions),
        "choices": len(sets),
        "choice_accuracy": accuracy,
        "choice_interval": binomial_interval(accuracy, len(sets)),
        "choice_chance": 1 / CANDIDATES,
        "answer_bits_per_byte": _mean([answer_bits_per_byte(trained, q, q.answer) for q in questions]),
        "exact": _mean([float(a.exact) for a in answers]),
        "f1": _mean([a.f1 for a in answers]),
        "f1_chance": _mean(by_chance),
    }
    return figures, answers


def score_bars(figures: Mapping[str, float]) -> tuple[dict[str, float], dict[str, float]]:
    """Scores and levels of chance by their name for people; empty without figures."""
    names = {"choice_accuracy": "elige la buena de 4", "f1": "F1 de la respuesta"}
    chance = {"choice_accuracy": "choice_chance", "f1": "f1_chance"}
    measured = {key: name for key, name in names.items() if key in figures}
    return (
        {name: figures[key] for key, name in measured.items()},
        {name: figures[chance[key]] for key, name in measured.items()},
    )


def samples(trained: Trained, answers: Sequence[Answered], settings: EvalConfig) -> dict[str, list[dict[str, str]]]:
    """What is shown to a person: answers to held-out questions of different kinds, and beginnings continued."""
    first_of_kind = list({a.question.kind: a for a in reversed(answers)}.values())
    shown = [*first_of_kind, *(a for a in answers if a not in first_of_kind)][:SHOWN]
    return {
        "answers": [{"question": a.question.text, "answer": a.answer, "right": a.question.answer} for a in shown],
        "continuations": [
            {"prompt": prompt, "text": continuation(trained, prompt, settings)} for prompt in settings.prompts
        ],
    }


def continuation(trained: Trained, prompt: str, settings: EvalConfig) -> str:
    """How the model goes on after `prompt`."""
    tokenizer = trained.tokenizer
    sampling = Sampling(settings.max_new_tokens, settings.temperature, settings.top_p, settings.seed)
    ids = [tokenizer.end_of_text_id, *tokenizer.encode(prompt)][: trained.context_length - 1]
    return tokenizer.decode(generate(trained.model, ids, sampling, trained.stop_ids, trained.context_length))


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
