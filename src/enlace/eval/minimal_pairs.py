"""Minimal pairs of Spanish: does the model find a right sentence likelier than the same one with a wrong word?

The sentences are generated from configs/eval/minimal_pairs.yaml, whose groups are quads: two contexts and two words,
each right in one context and wrong in the other. So every word is right as often as wrong, and what a model knows of
the frequency of words alone is worth exactly one half. After BLiMP (Warstadt et al., arXiv 1912.00582).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from enlace import EnlaceError
from enlace.config import yaml12
from enlace.config.load import wrong
from enlace.data.clean import normalise
from enlace.eval.scoring import Span, nats
from enlace.export.trained import Trained

GAP = "___"
FILE = Path("configs/eval/minimal_pairs.yaml")

_Two = Annotated[tuple[str, str], Field(strict=False)]


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class Group(_Part):
    """Contexts and words that go together: each context with each pair of words is a quad."""

    words: tuple[_Two, ...] = Field(strict=False, min_length=1)
    contexts: tuple[_Two, ...] = Field(strict=False, min_length=1)

    @model_validator(mode="after")
    def _one_gap(self) -> Group:
        for context in itertools.chain.from_iterable(self.contexts):
            if context.count(GAP) != 1:
                raise ValueError(f"«{context}» tiene que llevar el hueco {GAP} una vez")
        for first, second in self.words:
            if first == second:
                raise ValueError(f"«{first}» no puede ser a la vez la palabra buena y la mala")
        return self


class Phenomenon(_Part):
    """One rule of the grammar."""

    about: str = Field(min_length=1, description="The rule, in a line.")
    slots: dict[str, tuple[str, ...]] = Field(default={}, strict=False, description="Fillers of the names in braces.")
    groups: tuple[Group, ...] = Field(strict=False, min_length=1)


@dataclass(frozen=True)
class Pair:
    """Two sentences that differ in one word; `good` is right."""

    phenomenon: str
    good: str
    bad: str


def load_phenomena(path: Path) -> dict[str, Phenomenon]:
    """The phenomena by name. Raises EnlaceError naming the file and what is wrong in it."""
    raw = yaml12.load(path)
    if not isinstance(raw, dict) or not raw:
        raise EnlaceError(f"{path}: tiene que ser una lista de fenómenos, cada uno con su nombre")
    found = {}
    for name, value in raw.items():
        try:
            found[name] = Phenomenon.model_validate(value, strict=False)
        except ValidationError as error:
            details = (f"{'.'.join(map(str, (name, *each['loc'])))}: {wrong(each)}" for each in error.errors())
            raise EnlaceError(f"{path}: {'; '.join(details).replace('Value error, ', '')}") from error
    return found


def generate_pairs(phenomena: Mapping[str, Phenomenon], max_pairs: int) -> list[Pair]:
    """The pairs of all phenomena, up to `max_pairs` of each; always the same ones.

    Whole quads are taken, in an order decided by a hash, so that a part of them is balanced too.
    """
    return [
        pair
        for name, phenomenon in phenomena.items()
        for pair in _of_phenomenon(name, phenomenon, max(1, max_pairs // 2))
    ]


def _of_phenomenon(name: str, phenomenon: Phenomenon, max_quads: int) -> Iterator[Pair]:
    quads = sorted(set(_quads(phenomenon)), key=lambda quad: blake2b("\0".join(quad).encode()).digest())
    for first, second, one, other in quads[:max_quads]:
        yield Pair(name, first.replace(GAP, one), first.replace(GAP, other))
        yield Pair(name, second.replace(GAP, other), second.replace(GAP, one))


def _quads(phenomenon: Phenomenon) -> Iterator[tuple[str, str, str, str]]:
    for group in phenomenon.groups:
        for contexts, words in itertools.product(group.contexts, group.words):
            used = [name for name in phenomenon.slots if f"{{{name}}}" in "".join(contexts)]
            for fillers in itertools.product(*(phenomenon.slots[name] for name in used)):
                first, second = (_filled(context, dict(zip(used, fillers, strict=True))) for context in contexts)
                yield first, second, *words


def _filled(context: str, fillers: Mapping[str, str]) -> str:
    for name, filler in fillers.items():
        context = context.replace(f"{{{name}}}", filler)
    return context[0].upper() + context[1:]


def judge(trained: Trained, pairs: Sequence[Pair]) -> list[bool]:
    """Whether the model finds the right sentence of each pair likelier than the wrong one; ties count as wrong."""
    start = trained.tokenizer.end_of_text_id
    spans = [
        Span((start, *trained.tokenizer.encode(normalise(sentence))), 1)
        for pair in pairs
        for sentence in (pair.good, pair.bad)
    ]
    costs = nats(trained.model, spans)
    return [good < bad for good, bad in zip(costs[::2], costs[1::2], strict=True)]
