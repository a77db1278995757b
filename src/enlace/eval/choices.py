"""Which of four descriptions is that of a title? From records of the corpus that were held out of training.

Chance is 1 in `CANDIDATES`, whatever a model knows of descriptions alone: each is the right one once and a wrong one as
often as any other.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import blake2b

from enlace.data.clean import normalise
from enlace.data.dedup import document_hash, is_held_out
from enlace.data.documents import Document
from enlace.eval.scoring import Span, nats
from enlace.export.trained import Trained

CANDIDATES = 4


@dataclass(frozen=True)
class Choice:
    """A title and descriptions of it and of others, the right one first."""

    title: str
    descriptions: tuple[str, ...]


def choices_of(documents: Iterable[Document], val_fraction: float, limit: int) -> list[Choice]:
    """Up to `limit` choices out of the held-out documents with a title and a description; always the same ones.

    The wrong descriptions are those of the next records in an order decided by a hash, round and round. A description
    that two records share is left out, as it would be right for both.
    """
    records: dict[str, str] = {}
    for document in documents:
        title, description = (normalise(document.meta.get(key, "")) for key in ("title", "description"))
        if title and description and is_held_out(document_hash(document.text), val_fraction):
            records[title] = description
    seen = Counter(description.casefold() for description in records.values())
    titles = sorted(
        (title for title, description in records.items() if seen[description.casefold()] == 1),
        key=lambda title: blake2b(title.encode()).digest(),
    )
    if len(titles) < CANDIDATES:
        return []
    return [
        Choice(title, tuple(records[titles[(i + step) % len(titles)]] for step in range(CANDIDATES)))
        for i, title in enumerate(titles)
    ][:limit]


def judge(trained: Trained, choices: Sequence[Choice]) -> list[bool]:
    """Whether each title makes its own description gain most; ties count as wrong.

    The gain is the log-likelihood of the description after "title:", less that of the description alone: what
    lm-evaluation-harness calls `acc_mutual_info` (Holtzman et al., arXiv 2104.08315).
    """
    encode, start = trained.tokenizer.encode, trained.tokenizer.end_of_text_id
    spans = []
    for choice in choices:
        title = encode(f"{choice.title}:")
        for description in choice.descriptions:
            ids = encode(f" {description}")
            spans += [_span(title, ids, trained.context_length), _span([start], ids, trained.context_length)]
    costs = nats(trained.model, spans)
    gains = [alone - after for after, alone in zip(costs[::2], costs[1::2], strict=True)]
    sets = [gains[i : i + CANDIDATES] for i in range(0, len(gains), CANDIDATES)]
    return [right > max(wrong) for right, *wrong in sets]


def _span(given: Sequence[int], scored: Sequence[int], context_length: int) -> Span:
    """As lm-evaluation-harness does: what does not fit is cut off at the left."""
    ids = (*given, *scored)[-(context_length + 1) :]
    return Span(ids, max(1, len(ids) - len(scored)))
