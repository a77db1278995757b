"""DuckDuckGo's pages without scripts: what is posted, and what the page that comes back says.

Both layouts are read, the one of lite.duckduckgo.com/lite/ and the one of html.duckduckgo.com/html/, since either may
be the one that answers. The challenge for bots comes with status 202 or 200, and a page echoes what was asked: so it is
parsed first, and the challenge looked for, by its elements and never by its words, only where there are no results.
"""

from __future__ import annotations

from collections.abc import Iterator

from selectolax.lexbor import LexborHTMLParser, LexborNode

from enlace.agent.search.fetch import Answer
from enlace.agent.search.outcome import Outcome, host_of
from enlace.agent.search.text import clean, distinct, result, shorten
from enlace.agent.search.unwrap import destination
from enlace.config.schema import SearchConfig

_SAFE_SEARCH = {"strict": "1", "moderate": "-1", "off": "-2"}  # kp
_BLOCKED = (202, 400, 403, 418, 429)
# What is looked at: the boxes, titles, snippets and dates of lite, and then of html.
_PARTS = (
    "tr, a.result-link, td.result-snippet, span.timestamp, "
    "div.result, a.result__a, .result__snippet, .result__extras__url > span"
)
_MAX_PARTS = 1000  # a page has a hundred or two; none may cost more than a few times that
_CHALLENGE = "form#challenge-form, form#img-form, [class*='anomaly-modal__']"
_NO_RESULTS = "div.result--no-result, div.no-results, div.no-results__message"
_NO_RESULTS_TEXTS = ("No more results.", "No results.")  # of the lite layout, in a cell by itself


def form(query: str, config: SearchConfig) -> dict[str, str]:
    """The fields that its own form posts for a first page."""
    return {"q": query, "b": "", "kl": config.duckduckgo.region, "kp": _SAFE_SEARCH[config.safe_search]}


def read(answer: Answer) -> Outcome:
    """What the page says."""
    if answer.status >= 500:
        return Outcome("unreachable", detail=f"DuckDuckGo falla (HTTP {answer.status}). Prueba más tarde.")
    if 300 <= answer.status < 400:
        return Outcome("unreadable", detail=f"DuckDuckGo no contestó y envió a otra página (HTTP {answer.status}).")
    tree = LexborHTMLParser(answer.text)
    good = 200 <= answer.status < 300
    rows = list(_rows(tree)) if good else []
    results = distinct([found for row in rows if row and not _is_end(row) and (found := result(*row))])
    if results:
        return Outcome("results", results)
    if tree.css_first(_CHALLENGE) or answer.status in _BLOCKED:
        return Outcome(
            "blocked",
            detail="DuckDuckGo no contesta: cree que pregunta un robot. Suele durar unas decenas de minutos; mientras "
            "tanto sirve lo que ya se buscó, o un SearxNG propio (search.backend en configs/agent).",
        )
    if good and (tree.css_first(_NO_RESULTS) or any(row and _is_end(row) for row in rows) or _says_nothing(tree)):
        return Outcome("no_results")
    title = tree.css_first("title")
    return Outcome(
        "unreadable",
        detail=f"DuckDuckGo contestó algo que no se sabe leer (HTTP {answer.status}, {len(answer.text)} caracteres, "
        f"título «{shorten(clean(title.text()), 60) if title else ''}»). Puede que haya cambiado sus páginas.",
    )


Row = tuple[str, str, str, str]  # title, href, snippet, date; as in the page


def _rows(tree: LexborHTMLParser) -> Iterator[Row | None]:
    """Results of either layout, in the order of the page. In lite nothing encloses one: it goes from its link to the
    next one, over table rows of which any may be missing. What is advertised ends the one before.
    """
    row: Row | None = None
    advertised = False
    for node in tree.css(_PARTS)[:_MAX_PARTS]:
        classes = (node.attributes.get("class") or "").split()
        if node.tag == "tr" or "result" in classes:
            if node.tag == "div":  # html's own box
                yield row
                row = None
            advertised = "result-sponsored" in classes or "result--ad" in classes
        elif advertised or "result-link" in classes or "result__a" in classes:
            yield row
            row = None if advertised else (node.text(), _href(node), "", "")
        elif row and ("result-snippet" in classes or "result__snippet" in classes):
            row = (row[0], row[1], row[2] or node.text(), row[3])
        elif row:
            row = (row[0], row[1], row[2], row[3] or clean(node.text()))
    yield row


def _href(link: LexborNode) -> str:
    return link.attributes.get("href") or ""


def _is_end(row: Row) -> bool:
    """The pseudo-result that closes an empty list: titled EOF, it leads to a Google search."""
    url = destination(row[1])
    return row[0].strip() == "EOF" and url is not None and "google" in host_of(url).split(".")


def _says_nothing(tree: LexborHTMLParser) -> bool:
    return any(clean(cell.text(deep=False)) in _NO_RESULTS_TEXTS for cell in tree.css("td, p"))
