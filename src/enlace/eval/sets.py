"""What was measured, as JSON Lines: the same questions for any other model, through lm-evaluation-harness.

The tasks of configs/lm_eval read these files.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from enlace.data.clean import normalise
from enlace.data.tokenizer import Tokenizer
from enlace.durable import write_atomic
from enlace.eval.choices import Choice
from enlace.eval.grounded import Question
from enlace.eval.minimal_pairs import Pair


def write_sets(
    folder: Path,
    tokenizer: Tokenizer,
    texts: Mapping[str, Sequence[npt.NDArray[np.uint16]]],
    pairs: Sequence[Pair],
    choices: Sequence[Choice],
    answerable: Sequence[Question],
    unanswerable: Sequence[Question],
) -> None:
    """Write the sets into `folder`: texts, pairs, choices, questions and unanswerable."""
    sets: dict[str, Iterable[dict[str, Any]]] = {
        "texts": (
            {"source": source, "text": tokenizer.decode(ids)}
            for source, documents in texts.items()
            for ids in documents
        ),
        "pairs": ({"phenomenon": pair.phenomenon, "good": pair.good, "bad": pair.bad} for pair in pairs),
        "choices": ({"title": choice.title, "descriptions": choice.descriptions} for choice in choices),
        "questions": map(_question, answerable),
        "unanswerable": map(_question, unanswerable),
    }
    for name, rows in sets.items():
        lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
        write_atomic(folder / f"{name}.jsonl", lines.encode())


def _question(question: Question) -> dict[str, Any]:
    *before, asked = question.prompt
    return {
        "system": "\n\n".join(normalise(message.content) for message in before),
        "user": normalise(asked.content),
        "answer": normalise(question.answer),
        "kind": question.kind,
    }
