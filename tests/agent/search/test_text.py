from __future__ import annotations

from enlace.agent.search.outcome import Result
from enlace.agent.search.text import distinct


def test_an_address_that_comes_again_stays_where_it_came_first() -> None:
    results = [
        Result(title, url, "", "") for title, url in [("1", "a"), ("2", "b"), ("3", "a"), ("4", "c"), ("5", "b")]
    ]
    assert [result.title for result in distinct(results)] == ["1", "2", "4"]
