"""How sure a share is, given how many cases it was measured on."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

_Z = 1.959964  # of the normal distribution, 95 %


@dataclass(frozen=True)
class Share:
    """A share of `n` independent cases and its 95 % interval."""

    value: float
    low: float
    high: float
    n: int

    def row(self) -> dict[str, float]:
        """As it stands in a CSV."""
        return {"accuracy": round(self.value, 4), "low": round(self.low, 4), "high": round(self.high, 4), "n": self.n}

    def figures(self, name: str) -> dict[str, float]:
        """As it stands in metrics.json."""
        return {name: self.value, f"{name}_low": self.low, f"{name}_high": self.high}


def share(right: Sequence[bool]) -> Share:
    """The share of true values with its Wilson score interval (1927), which holds near 0 and 1 too.

    Raises:
        ValueError: there are none.
    """
    if not (n := len(right)):
        raise ValueError("a share of no cases")
    p = sum(right) / n
    centre = (p + _Z**2 / (2 * n)) / (1 + _Z**2 / n)
    half = _Z * math.sqrt(p * (1 - p) / n + _Z**2 / (4 * n**2)) / (1 + _Z**2 / n)
    return Share(p, max(0.0, centre - half), min(1.0, centre + half), n)


def mean(values: Sequence[float]) -> float:
    """The mean; summed so that the order does not matter."""
    return math.fsum(values) / len(values)
