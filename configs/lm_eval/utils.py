"""What the tasks of ENLACE compute beyond what lm-evaluation-harness has: figures by phenomenon, words in common."""

from __future__ import annotations

from typing import Any

from enlace.eval.grounded import is_refusal, same_words, word_f1


def by_phenomenon(doc: dict[str, Any], results: list[tuple[float, bool]]) -> dict[str, float]:
    """Whether the right sentence is likelier than the wrong one, in all and under its phenomenon."""
    (good, _), (bad, _) = results
    right = float(good > bad)
    return {"acc": right, doc["phenomenon"]: right}


def compared(doc: dict[str, Any], results: list[str]) -> dict[str, float]:
    """What was written, against the right answer."""
    written = results[0].strip()
    return {
        "exact": float(same_words(written, doc["answer"])),
        "f1": word_f1(written, doc["answer"]),
        "refused": float(is_refusal(written)),
    }


def refused(doc: dict[str, Any], results: list[str]) -> dict[str, float]:
    """Whether what was written says that the passage does not say."""
    return {"refused": float(is_refusal(results[0]))}
