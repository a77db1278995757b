"""SearxNG, the search server that one can run at home: what is posted to its JSON interface, and what it answers."""

from __future__ import annotations

import html
import json
import re
from typing import Any

from enlace.agent.search.fetch import Answer
from enlace.agent.search.outcome import Outcome, Result
from enlace.agent.search.text import clean, distinct, result, shorten
from enlace.config.schema import SearchConfig

_SAFE_SEARCH = {"strict": "2", "moderate": "1", "off": "0"}
# Snippets are plain text by contract, but some engines leave these in.
_EMPHASIS = re.compile(r"</?(?:b|strong|em)>")
_LIMITED = (
    "El SearxNG limita las peticiones de programas. Si es tuyo, pon server.limiter: false en su settings.yml, o deja "
    "pasar a esta máquina (botdetection.ip_lists.pass_ip en limiter.toml)."
)
_NO_JSON = "El SearxNG no da JSON: añade json a search.formats en su settings.yml y reinícialo."


def form(query: str, config: SearchConfig) -> dict[str, str]:
    """The parameters of a first page of web results, as JSON."""
    country, language = config.searxng.region.split("-")
    return {
        "q": query,
        "format": "json",
        "categories": "general",
        "language": "all" if country == "wt" else f"{language}-{country.upper()}",
        "safesearch": _SAFE_SEARCH[config.safe_search],
        "pageno": "1",
    }


def read(answer: Answer) -> Outcome:
    """What the server says. The type of the answer is looked at before it is read: refusals are HTML pages."""
    if answer.status >= 500:
        return Outcome("unreachable", detail=f"El SearxNG falla (HTTP {answer.status}). Mira su registro.")
    if answer.status == 403:
        return Outcome("unreadable", detail=_NO_JSON)
    # Where the limiter distrusts somebody, it sends them to the front page instead of refusing.
    if answer.status == 429 or 300 <= answer.status < 400 or (answer.status == 200 and "html" in answer.content_type):
        return Outcome("blocked", detail=_LIMITED)
    content = _object(answer.text)
    if answer.status != 200:
        why = f": «{shorten(clean(str(content['error'])), 100)}»" if content and "error" in content else ""
        return Outcome("unreadable", detail=f"El SearxNG rechaza la petición (HTTP {answer.status}{why}).")
    if content is None or not isinstance(content.get("results"), list):
        return Outcome(
            "unreadable",
            detail=f"Lo que contesta en search.searxng.base_url no es un SearxNG ({answer.content_type or 'sin tipo'}, "
            f"{len(answer.text)} caracteres). Mira la dirección en configs/agent.",
        )
    if results := distinct([found for item in content["results"] if (found := _result(item))]):
        return Outcome("results", results)
    if silent := content.get("unresponsive_engines"):
        return Outcome("blocked", detail=f"Al SearxNG no le contesta ningún buscador ({_names(silent)}).")
    return Outcome("no_results")


def _object(text: str) -> dict[str, Any] | None:
    try:
        content = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return content if isinstance(content, dict) else None


def _result(item: Any) -> Result | None:
    if not isinstance(item, dict):
        return None
    # Other kinds of result (images, key and value) may lack any of these, or have null.
    title, url, snippet, date = (str(item.get(key) or "") for key in ("title", "url", "content", "publishedDate"))
    return result(_plain(title), url, _plain(snippet), date)


def _plain(text: str) -> str:
    bare, marks = _EMPHASIS.subn("", text)
    return html.unescape(bare) if marks else text


def _names(engines: Any) -> str:
    """Their names, without the reasons: those come translated."""
    names = [engine[0] if isinstance(engine, list) and engine else engine for engine in engines]
    return shorten(", ".join(clean(str(name)) for name in names), 100)
