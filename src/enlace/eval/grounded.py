"""Questions about a passage, from documents held out of training: does the model find the answer?

Two measures. Choice: among the right answer and answers to other questions of the same kind, which one does the
passage make likelier? Chance is 1 in `CANDIDATES`. Answers: what the model writes by itself, compared with the right
answer word by word.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b

import torch

from enlace.data.chat import Message, encode_conversation, encode_prompt
from enlace.data.clean import normalise
from enlace.data.conversations import Conversation
from enlace.export.trained import Trained
from enlace.model.generate import Sampling, generate
from enlace.train.loss import loss_sums

CANDIDATES = 4


@dataclass(frozen=True)
class Question:
    """A held-out conversation of one question."""

    prompt: tuple[Message, ...]
    answer: str
    kind: str

    @classmethod
    def of_conversation(cls, conversation: Conversation) -> Question:
        """Of a distilled conversation, whose last turn is the right answer."""
        *prompt, last = conversation.messages
        return cls(tuple(prompt), last.content, conversation.kind)

    @property
    def text(self) -> str:
        """What the person asked."""
        return self.prompt[-1].content

    def without_passage(self) -> Question:
        """The same question alone: what follows the last blank line of what the person asked."""
        alone = Message("user", self.text.rpartition("\n\n")[2])
        return dataclasses.replace(self, prompt=(*self.prompt[:-1], alone))


@dataclass(frozen=True)
class Answered:
    """What the model answered by itself."""

    question: Question
    answer: str

    @property
    def exact(self) -> bool:
        """Whether it is the right answer, but for case, signs and spaces."""
        return _words(self.answer) == _words(self.question.answer)

    @property
    def f1(self) -> float:
        """Overlap of words with the right answer, from 0 to 1."""
        return word_f1(self.answer, self.question.answer)


def fitting(trained: Trained, questions: Sequence[Question], room: int) -> list[Question]:
    """Those whose prompt leaves `room` tokens of the context for the answer."""
    limit = trained.context_length - room
    return [q for q in questions if len(encode_prompt(trained.tokenizer, q.prompt)) < limit]


def with_distractors(questions: Sequence[Question]) -> list[tuple[Question, list[str]]]:
    """Each question about a passage with `CANDIDATES` answers, the right one first.

    Those with too few other answers of their kind, or without a passage to read, are left out.
    The others are the right answers of other questions of the same kind, in an order decided by a hash, so that
    nothing is drawn at random and the set is the same in every run.
    """
    chosen = []
    for question in questions:
        if question.without_passage() == question:
            continue
        others = {q.answer for q in questions if q.kind == question.kind and q.answer != question.answer}
        ordered = sorted(others, key=lambda other: blake2b(f"{question.text}\0{other}".encode()).digest())
        if len(ordered) >= CANDIDATES - 1:
            chosen.append((question, [question.answer, *ordered[: CANDIDATES - 1]]))
    return chosen


def choice_accuracy(trained: Trained, sets: Sequence[tuple[Question, list[str]]]) -> float:
    """Share of the questions whose right answer gains most from the passage; ties count as wrong.

    The gain is in bits per byte, with the passage against without it: some answers are likely after any text, and that
    says nothing of whether this one was read (Holtzman et al., arXiv 2104.08315).
    """
    right = 0
    for question, candidates in sets:
        alone = question.without_passage()
        costs = [
            answer_bits_per_byte(trained, question, candidate) - answer_bits_per_byte(trained, alone, candidate)
            for candidate in candidates
        ]
        right += costs[0] < min(costs[1:])
    return right / len(sets)


@torch.inference_mode()
def answer_bits_per_byte(trained: Trained, question: Question, answer: str) -> float:
    """Bits per byte of `answer` after the question; the tokens that end it are not scored."""
    ids, mask = encode_conversation(trained.tokenizer, [*question.prompt, Message("assistant", answer)])
    ids, mask = ids[: trained.context_length + 1], mask[: trained.context_length + 1]
    tokens = torch.tensor([ids], device=trained.model.embed_tokens.weight.device)
    scored = torch.tensor([mask], device=tokens.device, dtype=torch.bool) & (tokens != trained.tokenizer.im_end_id)
    logits = trained.model.logits(trained.model(tokens[:, :-1]))
    nats = float(loss_sums(logits, tokens[:, 1:], scored[:, 1:]).cross_entropy)
    return nats / math.log(2) / len(normalise(answer).encode())


def answer(trained: Trained, question: Question, max_new_tokens: int) -> Answered:
    """The likeliest answer, token by token."""
    sampling = Sampling(max_new_tokens, temperature=0, top_p=1, seed=0)
    prompt = encode_prompt(trained.tokenizer, question.prompt)
    ids = list(generate(trained.model, prompt, sampling, trained.stop_ids, trained.context_length))
    return Answered(question, trained.tokenizer.decode(ids).strip())


def word_f1(given: str, right: str) -> float:
    """F1 of the bags of words of two texts (SQuAD, arXiv 1606.05250)."""
    a, b = Counter(_words(given)), Counter(_words(right))
    common = (a & b).total()
    return 2 * common / (a.total() + b.total()) if common else 0.0


def binomial_interval(share: float, n: int) -> float:
    """Half width of the 95 % interval of a share measured on `n` independent cases."""
    return 1.96 * math.sqrt(share * (1 - share) / n)


def _words(text: str) -> list[str]:
    return re.findall(r"\w+", text.casefold())
