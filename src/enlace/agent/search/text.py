"""Text that comes from strangers, made plain: one line, NFC, nothing invisible, of bounded length."""

from __future__ import annotations

import re
import unicodedata

from enlace.agent.search.outcome import Result, host_of
from enlace.agent.search.unwrap import destination

# No page of results has more; a hostile answer must not fill the cache or the screen.
_MAX_TITLE, _MAX_SNIPPET, _MAX_URL = 300, 2000, 2000
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}(?=T|$)")


def clean(text: str) -> str:
    """`text` on one line: white space of any kind becomes one space; controls and format characters (directions,
    zero-width, tags) go.
    """
    text = " ".join(text.split())
    if not text.isprintable():
        text = "".join(c for c in text if unicodedata.category(c)[0] != "C")
    return unicodedata.normalize("NFC", " ".join(text.split()))


def shorten(text: str, chars: int) -> str:
    """`text` in at most `chars` characters: whole words and "…", or a part of the only word."""
    if len(text) <= chars:
        return text
    cut = text[: chars - 1]
    if text[chars - 1] != " " and " " in cut:
        cut = cut[: cut.rindex(" ")]
    return cut.rstrip(" ,;:.…") + "…"


def result(title: str, href: str, snippet: str = "", date: str = "") -> Result | None:
    """A `Result` of what a service says, made plain; None where the link leads to no result."""
    url = destination(href)
    if url is None or len(url) > _MAX_URL:
        return None
    found = _DATE.match(date.strip())
    return Result(
        shorten(clean(title), _MAX_TITLE) or host_of(url),
        url,
        shorten(clean(snippet), _MAX_SNIPPET),
        found[0] if found else "",
    )


def distinct(results: list[Result]) -> tuple[Result, ...]:
    """`results` in their order, each address where it comes first."""
    first: dict[str, Result] = {}
    for found in results:
        first.setdefault(found.url, found)
    return tuple(first.values())
