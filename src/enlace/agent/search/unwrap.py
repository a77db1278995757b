"""Where a link of a page of results really leads.

DuckDuckGo's links are direct or wrapped in its redirect (``//duckduckgo.com/l/?uddg=<where>&rut=<hash>``); what still
points at DuckDuckGo once unwrapped is an advertisement or a help page, whatever its class in the page says.
"""

from __future__ import annotations

from urllib.parse import SplitResult, parse_qs, urlsplit

_DUCKDUCKGO = "duckduckgo.com"


def destination(href: str) -> str | None:
    """The http(s) address that `href` leads to, as its page spells it; None for what is no result.

    The redirect is told by host and path, never by its parameter alone (an organic page may have one called uddg), and
    decoded once: what its target has escaped stays escaped.
    """
    href = href.strip()
    if href.startswith("/"):
        href = f"https:{href}" if href.startswith("//") else f"https://{_DUCKDUCKGO}{href}"
    if (url := _split(href)) and _is_duckduckgo(url) and url.path in ("/l", "/l/"):
        # Python replaces what is not UTF-8 once unescaped; such a target cannot be spelt, and is dropped below.
        href = parse_qs(url.query).get("uddg", [""])[0].strip()
        url = _split(href)
    if url is None or _is_duckduckgo(url) or "\ufffd" in href:
        return None
    return href.replace(" ", "%20")


def _split(href: str) -> SplitResult | None:
    """The parts of an absolute http(s) address; None for anything else.

    Control and direction characters, a user before the host and backslashes have no place in an honest address: they
    make it look as if it led elsewhere.
    """
    try:
        url = urlsplit(href)
        sound = url.scheme in ("http", "https") and bool(url.hostname) and url.port != 0
    except ValueError:  # "https://[::1", a port that is no number
        return None
    return url if sound and href.isprintable() and not set("@\\ ") & set(url.netloc) else None


def _is_duckduckgo(url: SplitResult) -> bool:
    host = (url.hostname or "").rstrip(".")
    return host == _DUCKDUCKGO or host.endswith(f".{_DUCKDUCKGO}")
