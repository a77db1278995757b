"""What a person asks, made safe to send, and the key under which its answer is kept."""

from __future__ import annotations

import hashlib
import json
import re
import unicodedata

from enlace import EnlaceError
from enlace.agent.search.text import clean
from enlace.config.schema import SearchConfig

# DuckDuckGo refuses longer ones, and SearxNG's engine for it then answers an empty list.
MAX_CHARS = 499
# Both services take "!g" (also in full width) for an order to go elsewhere; a leading backslash is DuckDuckGo's "first
# result at once", and SearxNG takes ":es" for a language and "<10" for a time limit. None of them means anything else
# in a search.
_BANG = re.compile("[!\uff01]+")
_LEADING = "\\:<"


def prepare(query: str) -> str:
    """`query` as it is sent: one line, NFC, no orders for the service in it, at most 499 characters.

    Raises:
        EnlaceError: there is nothing left to search for.
    """
    words = [word.lstrip(_LEADING) for word in _BANG.sub(" ", clean(query)).split()]
    words = [word for word in words if word]
    if not any(c.isalnum() for word in words for c in word):
        raise EnlaceError("No hay nada que buscar. Escribe palabras, como: receta de gazpacho")
    text = " ".join(words)
    if len(text) > MAX_CHARS:
        text = text[: MAX_CHARS + 1].rpartition(" ")[0] or text[:MAX_CHARS]
    return text


def key(query: str, config: SearchConfig) -> str:
    """The key of a prepared `query`: everything that changes the answer.

    Case is folded; accents stay, since "año" and "ano" are different searches. A digest, so that the cache does not
    spell what the household asks.
    """
    service = getattr(config, config.backend)
    folded = unicodedata.normalize("NFC", unicodedata.normalize("NFC", query).casefold())
    parts = [config.backend, service.base_url, service.region, config.safe_search, folded]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()
