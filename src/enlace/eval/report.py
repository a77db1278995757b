"""Everything that is measured on a trained model, gathered: the figures, and what is shown beside them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
import numpy.typing as npt

from enlace.config.schema import EvalConfig
from enlace.data.clean import normalise
from enlace.data.conversations import Conversation
from enlace.data.dedup import is_held_out
from enlace.data.documents import Document
from enlace.data.shards import Shards, Stream
from enlace.eval import choices, grounded, minimal_pairs
from enlace.eval.bpb import bits_per_byte
from enlace.eval.choices import Choice
from enlace.eval.greedy import likeliest_turns
from enlace.eval.grounded import Answered, Question, answer_costs, fitting, with_distractors, word_f1
from enlace.eval.minimal_pairs import Pair, Phenomenon
from enlace.eval.statistics import Share, mean, share
from enlace.eval.written import SEED_TOKENS, distinct, longest_copies, repetition
from enlace.export.trained import Trained
from enlace.model.generate import Sampling, generate

SHOWN = 3
REPEATED = 4  # words: shorter ones repeat in good prose too

Figures = dict[str, float]


@dataclass(frozen=True)
class Written:
    """Texts that the model wrote from nothing."""

    texts: tuple[str, ...]
    copied: str  # the longest piece of them that stands in the training text


@dataclass(frozen=True)
class Measured:
    """The figures, and what they were measured on."""

    metrics: dict[str, Figures]
    shares: dict[str, Share]  # of pairs, by phenomenon
    samples: dict[str, list[dict[str, str]]]
    texts: dict[str, list[npt.NDArray[np.uint16]]]  # ids of held-out documents, by source
    pairs: list[Pair]
    choices: list[Choice]
    asked: list[Question]  # whose answer stands in the passage
    refused: list[Question]  # whose answer does not


def measure(
    trained: Trained,
    shards: Shards,
    phenomena: Mapping[str, Phenomenon],
    documents: Iterable[Document],
    conversations: Sequence[Conversation],
    val_fraction: float,
    settings: EvalConfig,
) -> Measured:
    """Measure a model on what was held out of its training.

    Args:
        documents: of the corpus, as fetched, with what their sources say of them.
        val_fraction: share of documents that was held out.
    """
    texts = held_out_texts(shards, settings.max_documents)
    pairs = minimal_pairs.generate_pairs(phenomena, settings.max_pairs)
    titles = choices.choices_of(documents, val_fraction, settings.max_choices)
    questions = [Question.of_conversation(each) for each in conversations if _is_held_out(each, val_fraction)]
    trained_on = [each for each in conversations if not _is_held_out(each, val_fraction)]
    shares = pair_shares(trained, pairs)
    question_metrics, answers = question_figures(trained, questions, settings)
    refusal_metrics, refusals = refusal_figures(trained, questions, answers, trained_on, settings)
    written_metrics, written = written_figures(trained, shards, texts, settings)
    metrics = {
        "bits_per_byte": text_figures(trained, texts),
        "pairs": pair_figures(shares),
        "phenomena": {name: each.value for name, each in shares.items()},
        "choices": choice_figures(trained, titles),
        "grounded": question_metrics,
        "refusal": refusal_metrics,
        "written": written_metrics,
    }
    shown = samples(trained, answers, refusals, written, settings)
    asked, refused = ([each.question for each in given] for given in (answers, refusals))
    return Measured(metrics, shares, shown, texts, pairs, titles, asked, refused)


def _is_held_out(conversation: Conversation, val_fraction: float) -> bool:
    return is_held_out(conversation.document_hash, val_fraction)


def held_out_texts(shards: Shards, limit: int) -> dict[str, list[npt.NDArray[np.uint16]]]:
    """Ids of up to `limit` held-out documents of each source of the corpus."""
    return {
        stream.name: [ids for ids, _ in islice(stream.documents(), limit)] for stream in shards.of_kind("val", "corpus")
    }


def text_figures(trained: Trained, texts: Mapping[str, Sequence[npt.NDArray[np.uint16]]]) -> Figures:
    """Bits per byte of the held-out documents of each source."""
    tokenizer = trained.tokenizer
    lengths = tokenizer.token_byte_lengths
    return {
        source: bits_per_byte(trained.model, documents, lengths, tokenizer.end_of_text_id, trained.context_length)
        for source, documents in texts.items()
    }


def tokens_per_byte(trained: Trained, shards: Shards) -> dict[str, float]:
    """Of each held-out loss of the training log, the tokens that it counts for each byte of text that they spell."""
    lengths = trained.tokenizer.token_byte_lengths
    counts: dict[str, Any] = {}  # tokens, bytes
    for stream in _streams(shards, "val"):
        name = "val_loss" if stream.kind == "corpus" else "val_chat_loss"
        for ids, mask in stream.documents():
            counted = ids if mask is None else ids[mask == 1]
            counts[name] = counts.get(name, 0) + np.array([len(counted), lengths[counted].sum()])
    return {name: float(tokens / n_bytes) for name, (tokens, n_bytes) in counts.items() if n_bytes}


def pair_shares(trained: Trained, pairs: Sequence[Pair]) -> dict[str, Share]:
    """Of each phenomenon, the share of pairs whose right sentence the model finds likelier."""
    right: dict[str, list[bool]] = defaultdict(list)
    for pair, judged in zip(pairs, minimal_pairs.judge(trained, pairs), strict=True):
        right[pair.phenomenon].append(judged)
    return {name: share(judged) for name, judged in right.items()}


def pair_figures(shares: Mapping[str, Share]) -> Figures:
    """All pairs together: the mean of the phenomena, so that none weighs more for having more pairs."""
    return {
        "accuracy": mean([each.value for each in shares.values()]),
        "accuracy_chance": 0.5,
        "pairs": sum(each.n for each in shares.values()),
    }


def choice_figures(trained: Trained, held_out: Sequence[Choice]) -> Figures:
    """The share of titles whose description is chosen among four; empty without records."""
    if not held_out:
        return {}
    right = share(choices.judge(trained, held_out))
    return {**right.figures("accuracy"), "accuracy_chance": 1 / choices.CANDIDATES, "choices": right.n}


def question_figures(
    trained: Trained, questions: Sequence[Question], settings: EvalConfig
) -> tuple[Figures, list[Answered]]:
    """Figures on held-out questions, each beside what chance would give, and the answers themselves.

    The loss is of all of them; what is written is compared only where the answer stands in the passage.
    """
    questions = fitting(trained, questions, settings.max_new_tokens)[: settings.max_conversations]
    sets = with_distractors(questions)
    if not sets:
        return {}, []  # too few that fit
    right = share(grounded.judge(trained, sets))
    costs = [cost for [cost] in answer_costs(trained, [(question, [question.answer]) for question in questions])]
    answers = _answers(trained, [question for question in questions if question.grounded], settings)
    # What an answer to another question of the same kind scores.
    by_chance = [word_f1(candidates[1], question.answer) for question, candidates in sets]
    figures = {
        "questions": len(questions),
        "choices": len(sets),
        **right.figures("choice_accuracy"),
        "choice_chance": 1 / grounded.CANDIDATES,
        "answer_loss": mean([cost.nats / cost.tokens for cost in costs]),
        "answer_bits_per_byte": mean([cost.bits_per_byte for cost in costs]),
        "written": len(answers),
        "f1_chance": mean(by_chance),
    }
    if answers:
        figures |= {"exact": mean([a.exact for a in answers]), "f1": mean([a.f1 for a in answers])}
    return figures, answers


def refusal_figures(
    trained: Trained,
    questions: Sequence[Question],
    answers: Sequence[Answered],
    trained_on: Iterable[Conversation],
    settings: EvalConfig,
) -> tuple[Figures, list[Answered]]:
    """How often the model says that the passage does not say: where it does not, and, wrongly, where it does.

    Args:
        questions: those held out, each of which is asked about a passage that does not answer it.
        answers: what the model wrote where the answer does stand in the passage.
        trained_on: the conversations of the training, to know how often they teach it.
    """
    asked = fitting(trained, grounded.unanswerable(questions, settings.max_unanswerable), settings.max_new_tokens)
    if not asked or not answers:
        return {}, []
    given = _answers(trained, asked, settings)
    figures = {
        "questions": len(given),
        **share([a.refused for a in given]).figures("refused"),
        "wrongly_refused": mean([a.refused for a in answers]),
        "taught": sum(grounded.is_refusal(conversation.messages[-1].content) for conversation in trained_on),
    }
    return figures, given


def _answers(trained: Trained, questions: Sequence[Question], settings: EvalConfig) -> list[Answered]:
    turns = likeliest_turns(trained, [question.prompt for question in questions], settings.max_new_tokens, "Respuestas")
    return [Answered(question, turn.strip()) for question, turn in zip(questions, turns, strict=True)]


def written_figures(
    trained: Trained, shards: Shards, texts: Mapping[str, Sequence[npt.NDArray[np.uint16]]], settings: EvalConfig
) -> tuple[Figures, Written]:
    """How varied and how copied is what the model writes from nothing, beside what people wrote (`_human`)."""
    decode, start = trained.tokenizer.decode, trained.tokenizer.end_of_text_id
    own = [np.array(_continued(trained, [start], settings, draw), np.int64) for draw in range(settings.samples)]
    human = [ids[:-1][: settings.max_new_tokens] for ids in _evenly(texts, settings.samples)]
    copies = longest_copies([*own, *human], (shard for stream in _streams(shards, "train") for shard in stream.tokens))
    figures: Figures = {"samples": len(own), "copy_least_tokens": SEED_TOKENS}
    for suffix, ids, found in (("", own, copies[: len(own)]), ("_human", human, copies[len(own) :])):
        words = [decode(text) for text in ids]
        figures |= {f"distinct_{n}{suffix}": distinct(words, n) for n in (1, 2, 3)}
        figures |= {
            f"repetition{suffix}": repetition(words, REPEATED),
            f"longest_copy_tokens{suffix}": max((copy.length for copy in found), default=0),
            f"mean_copy_tokens{suffix}": mean([copy.length for copy in found]) if found else 0,
        }
    longest, text = max(zip(copies, own), key=lambda pair: pair[0].length)
    copied = decode(text[longest.start : longest.start + longest.length])
    return figures, Written(tuple(decode(ids) for ids in own), copied)


def _evenly(texts: Mapping[str, Sequence[npt.NDArray[np.uint16]]], n: int) -> list[npt.NDArray[np.uint16]]:
    """Up to `n` documents, as many of each source as of another."""
    each = -(-n // max(1, len(texts)))
    return [ids for documents in texts.values() for ids in documents[:each]][:n]


def samples(
    trained: Trained, answers: Sequence[Answered], refusals: Sequence[Answered], written: Written, settings: EvalConfig
) -> dict[str, list[dict[str, str]]]:
    """What is shown to a person: answers to questions of different kinds, beginnings continued, free texts."""
    first_of_kind = list({a.question.kind: a for a in reversed(answers)}.values())
    shown = [*first_of_kind, *(a for a in answers if a not in first_of_kind)][:SHOWN]
    return {
        "answers": [_shown(a) for a in shown],
        "unanswerable": [_shown(a) | {"right": ""} for a in refusals[:SHOWN]],
        "continuations": [
            {"prompt": prompt, "text": continuation(trained, prompt, settings)} for prompt in settings.prompts
        ],
        "written": [{"text": text} for text in written.texts],
        "copied": [{"text": written.copied}],
    }


def _shown(answered: Answered) -> dict[str, str]:
    return {"question": answered.question.text, "answer": answered.answer, "right": answered.question.answer}


def continuation(trained: Trained, prompt: str, settings: EvalConfig) -> str:
    """How the model goes on after `prompt`."""
    ids = [trained.tokenizer.end_of_text_id, *trained.tokenizer.encode(normalise(prompt))][: trained.context_length - 1]
    return trained.tokenizer.decode(_continued(trained, ids, settings, 0))


def _continued(trained: Trained, ids: Sequence[int], settings: EvalConfig, draw: int) -> list[int]:
    sampling = Sampling(settings.max_new_tokens, settings.temperature, settings.top_p, settings.seed + draw)
    return list(generate(trained.model, ids, sampling, trained.stop_ids, trained.context_length))


def _streams(shards: Shards, split: str) -> list[Stream]:
    return [stream for stream in shards.streams if stream.split == split]
