from __future__ import annotations

import pytest

from enlace.eval.statistics import share


@pytest.mark.parametrize(
    ("right", "n", "low", "high"),  # Wilson (1927), as in R's prop.test(correct = FALSE)
    [(50, 100, 0.4038, 0.5962), (0, 20, 0.0, 0.1611), (20, 20, 0.8389, 1.0), (81, 263, 0.2553, 0.3662)],
)
def test_the_interval_is_wilsons(right: int, n: int, low: float, high: float) -> None:
    found = share([True] * right + [False] * (n - right))
    assert found.value == pytest.approx(right / n)
    assert (found.low, found.high) == (pytest.approx(low, abs=1e-4), pytest.approx(high, abs=1e-4))


def test_no_cases_have_no_share() -> None:
    with pytest.raises(ValueError, match="no cases"):
        share([])
