"""Questions about a passage, from documents held out of training: does the model find the answer?

Choice: among the right answer and answers to other questions of the same kind, which one does the passage make
likelier? Chance is 1 in `CANDIDATES`. Answers: what the model writes by itself, compared with the right answer word by
word, where that stands in the passage. Refusals: asked about a passage that does not say, does it say so?
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b

from enlace.console import progress
from enlace.data.chat import Message, encode_prompt
from enlace.data.clean import normalise
from enlace.data.conversations import Conversation
from enlace.eval.scoring import nats_after
from enlace.export.trained import Trained

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

    @property
    def passage(self) -> str:
        """What the person gave to read: all before the last blank line; may be empty."""
        return self.text.rpartition("\n\n")[0]

    @property
    def grounded(self) -> bool:
        """Whether the answer stands in the passage, but for case, signs and spaces."""
        return f" {' '.join(_words(self.answer))} " in f" {' '.join(_words(self.passage))} "

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
        return same_words(self.answer, self.question.answer)

    @property
    def f1(self) -> float:
        """Overlap of words with the right answer, from 0 to 1."""
        return word_f1(self.answer, self.question.answer)

    @property
    def refused(self) -> bool:
        """Whether it says that the text does not say."""
        return is_refusal(self.answer)


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


def judge(trained: Trained, sets: Sequence[tuple[Question, list[str]]]) -> list[bool]:
    """Whether the right answer of each question gains most from the passage; ties count as wrong.

    The gain is in bits per byte, with the passage against without it: some answers are likely after any text, and that
    says nothing of whether this one was read (Holtzman et al., arXiv 2104.08315).
    """
    read = answer_costs(trained, sets)
    unread = answer_costs(trained, [(question.without_passage(), candidates) for question, candidates in sets])
    right = []
    for costs, without in zip(read, unread, strict=True):
        first, *others = (b.bits_per_byte - a.bits_per_byte for a, b in zip(costs, without, strict=True))
        right.append(first > max(others))
    return right


@dataclass(frozen=True)
class Cost:
    """What an answer costs a model that reads the question; the token that ends the answer is not counted."""

    nats: float
    tokens: int
    bytes: int

    @property
    def bits_per_byte(self) -> float:
        """Comparable between tokenizers."""
        return self.nats / math.log(2) / self.bytes


def answer_costs(trained: Trained, asked: Sequence[tuple[Question, Sequence[str]]]) -> list[list[Cost]]:
    """The cost of each answer after its question; one that goes beyond the context is scored as far as it fits."""
    tokenizer = trained.tokenizer
    lengths = tokenizer.token_byte_lengths
    found = []
    with progress() as bar:
        for question, answers in bar.track(asked, description="Opciones"):
            prompt = encode_prompt(tokenizer, question.prompt)
            room = trained.context_length + 1 - len(prompt)
            said = [tokenizer.encode(normalise(answer))[:room] for answer in answers]
            costs = nats_after(trained.model, prompt, said)
            found.append([Cost(n, len(ids), int(lengths[ids].sum())) for n, ids in zip(costs, said, strict=True)])
    return found


def same_words(given: str, right: str) -> bool:
    """Whether two texts are equal but for case, signs and spaces."""
    return _words(given) == _words(right)


def word_f1(given: str, right: str) -> float:
    """F1 of the bags of words of two texts (SQuAD, arXiv 1606.05250)."""
    a, b = Counter(_words(given)), Counter(_words(right))
    common = (a & b).total()
    return 2 * common / (a.total() + b.total()) if common else 0.0


def unanswerable(questions: Sequence[Question], limit: int) -> list[Question]:
    """Up to `limit` questions about somebody else's passage, which does not say; always the same ones.

    The passage is that of another question, chosen by a hash among those that share no word of four letters or more
    with the question. Questions about whatever the text is ("¿De qué habla el texto?") any text answers; they are left
    out. The answer that they carry is the one that the passage does not give.
    """
    with_passage = [question for question in questions if question.passage]
    passages = [(frozenset(_long_words(question.passage)), question.passage) for question in with_passage]
    found = []
    for question in with_passage:
        alone = question.text.rpartition("\n\n")[2]
        asked = _long_words(alone) - _FRAME
        if not asked or _ABOUT_THE_TEXT & _long_words(alone):
            continue
        foreign = [passage for words, passage in passages if not asked & words]
        if foreign:
            other = min(foreign, key=lambda passage: blake2b(f"{question.text}\0{passage}".encode()).digest())
            message = Message("user", f"{other}\n\n{alone}")
            found.append(dataclasses.replace(question, prompt=(*question.prompt[:-1], message)))
    return sorted(found, key=lambda question: blake2b(question.text.encode()).digest())[:limit]


def is_refusal(text: str) -> bool:
    """Whether an answer says that the text does not say it, in any of the usual ways."""
    return bool(_REFUSAL.search(" ".join(text.casefold().split())))


_FRAME = frozenset({"pregunta"})
_ABOUT_THE_TEXT = frozenset({"texto", "pasaje", "menciona"})
_REFUSAL = re.compile(
    r"\bno (?:me )?(?:lo )?(?:dice|menciona|indica|especifica|explica|aclara|aparece|figura|consta|contiene|responde)\b"
    r"|\bno se (?:dice|menciona|indica|especifica|explica|aclara|sabe|puede saber)\b"
    r"|\bno (?:lo )?sé\b"
    r"|\bno (?:hay|tengo|da|ofrece|incluye) (?:esa |suficiente |ninguna |la )?(?:información|datos|respuesta)\b"
    r"|\bno (?:puedo|es posible|se puede) (?:responder|contestar|saber)\w*\b"
    r"|\bno está en el texto\b"
)


def _long_words(text: str) -> set[str]:
    return {word for word in _words(text) if len(word) >= 4}


def _words(text: str) -> list[str]:
    return re.findall(r"\w+", text.casefold())
