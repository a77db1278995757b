"""One request to a search service: no proxy, cookie, credential or redirect, and an end to time and size."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass

import httpx

# A page of results has 40 kB. What is larger is no page of results, and must not fill the memory.
MAX_BYTES = 2 * 2**20


class Unreachable(Exception):
    """No whole answer came; the message says why, in Spanish, for the person."""


@dataclass(frozen=True)
class Answer:
    """What came back."""

    status: int
    content_type: str  # without parameters, in lower case; may be empty
    text: str
    sized: bool = True  # its length was told, so that it is known to be whole

    def __repr__(self) -> str:  # the whole page would be in every traceback
        return f"Answer({self.status}, {self.content_type!r}, {len(self.text)} characters)"


def post(url: str, form: Mapping[str, str], headers: Mapping[str, str], timeout: float) -> Answer:
    """POST `form` to `url`; the whole answer has `timeout` seconds.

    Raises:
        Unreachable: no connection, out of time, cut, too large.
    """
    deadline = time.monotonic() + timeout
    # A client of its own for each request: nothing, such as a cookie, ties one question of the household to the next.
    # `trust_env` would read proxies and .netrc from the environment.
    try:
        with (
            httpx.Client(trust_env=False, follow_redirects=False, timeout=timeout) as client,
            client.stream("POST", url, data=dict(form), headers=dict(headers)) as response,
        ):
            body = bytearray()
            for chunk in response.iter_bytes():
                body += chunk
                if len(body) > MAX_BYTES:
                    raise Unreachable(f"la respuesta pasa de {MAX_BYTES // 2**20} MB")
                if time.monotonic() > deadline:
                    raise Unreachable(f"no acabó de contestar en {timeout:g} s")
    except httpx.TimeoutException:
        raise Unreachable(f"no contestó en {timeout:g} s") from None
    except httpx.DecodingError:
        raise Unreachable("la respuesta llegó dañada") from None
    except httpx.RemoteProtocolError:
        raise Unreachable("la respuesta llegó cortada") from None
    except (httpx.HTTPError, httpx.InvalidURL):  # its own words are English, and may hold the address
        raise Unreachable("no hay conexión con él") from None
    sized = "content-length" in response.headers or "chunked" in response.headers.get("transfer-encoding", "")
    content_type = response.headers.get("content-type", "").partition(";")[0].strip().lower()
    return Answer(response.status_code, content_type, _decode(bytes(body), response.charset_encoding), sized)


def _decode(body: bytes, charset: str | None) -> str:
    try:
        return body.decode(charset or "utf-8", errors="replace")
    except LookupError:
        return body.decode("utf-8", errors="replace")
