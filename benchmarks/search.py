"""Pages of results read here (selectolax) beside BeautifulSoup, which most tools use: pages per CPU second.

Both read the same page, title, address and snippet of each result, and must find the same. Without an argument the
page is one of the tests', made as long as a real one.

python -m benchmarks.search [PAGE.html]
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from bs4 import BeautifulSoup

from enlace import EnlaceError
from enlace.agent.search import duckduckgo
from enlace.agent.search.fetch import Answer
from enlace.agent.search.text import result
from enlace.config.paths import project_root
from enlace.console import run_main, say

SECONDS = 2.0
Found = list[tuple[str, str, str]]


def main() -> None:
    """Time both in turns, so that the load of the machine falls on both."""
    name = Path(sys.argv[1]) if len(sys.argv) > 1 else project_root() / "tests/fixtures/search/lite.html"
    try:
        text = name.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        raise EnlaceError(f"{name}: no es una página guardada que se pueda leer.") from None
    if len(sys.argv) == 1:
        start = text.index("    <tr>\n      <td valign")
        end = text.index("    <tr><td colspan=2>")
        rows = text[start:end]
        text = text[:start] + "".join(rows.replace("example.", f"n{i}.example.") for i in range(4)) + text[end:]
    if not (here := _here(text)) or here != _beautiful_soup(text):
        raise EnlaceError(f"{name}: no se encuentra lo mismo de las dos maneras; ¿es una página de resultados?")
    spent = {_here: [0, 0.0], _beautiful_soup: [0, 0.0]}
    while min(seconds for _, seconds in spent.values()) < SECONDS:
        for read, totals in spent.items():
            start_seconds = time.process_time()
            for _ in range(5):
                read(text)
            totals[0] += 5
            totals[1] += time.process_time() - start_seconds
    ours, theirs = (pages / seconds for pages, seconds in spent.values())
    say(f"{len(text):,} characters, {len(here)} results: {ours:.0f} pages per CPU second here,")
    say(f"{theirs:.0f} with BeautifulSoup (html.parser): {ours / theirs:.1f} times as many here")


def _here(text: str) -> Found:
    outcome = duckduckgo.read(Answer(200, "text/html", text))
    return [(r.title, r.url, r.snippet) for r in outcome.results]


def _beautiful_soup(text: str) -> Found:
    """The same work, as it is commonly written."""
    soup = BeautifulSoup(text, "html.parser")
    found = {}
    for link in soup.select("a.result-link, a.result__a"):
        box = link.find_parent("div", class_="result") or link.find_parent("tr")
        if box is None or {"result-sponsored", "result--ad"} & set(box.get("class") or []):
            continue
        if box.name == "tr":
            after = box.find_next_sibling("tr")
            snippet = after.select_one("td.result-snippet") if after else None
        else:
            snippet = box.select_one(".result__snippet")
        page = result(link.get_text(), str(link.get("href")), snippet.get_text() if snippet else "")
        if page:
            found.setdefault(page.url, (page.title, page.url, page.snippet))
    return list(found.values())


if __name__ == "__main__":
    run_main(main)
