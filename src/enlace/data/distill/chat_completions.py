"""Questions to an OpenAI-compatible chat server: ask, wait and ask again, and put each answer in the protocol's shape.

The wire format is that of ``POST /v1/chat/completions``, as llama.cpp, vLLM and ollama serve it. A failure of one
request becomes its answer; a failure that every request would share (nobody listens, the key or the model is wrong) is
raised, so that a misspelt name does not turn ten thousand requests into errors.
"""

from __future__ import annotations

import asyncio
import random
import re
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any

import httpx

from enlace.data.distill.errors import DistillError

if TYPE_CHECKING:
    from enlace.config.schema import ServerConfig

Row = dict[str, Any]

KEY = "COMPATIBLE_API_KEY"
_LONGEST_BACKOFF = 60.0  # seconds
# So many requests failing one after another, whatever for, say that the server or its configuration is at fault.
_GIVE_UP_AFTER = 20
_STOPS = {"stop": "end_turn", "length": "max_tokens", "content_filter": "refusal", "tool_calls": "tool_use"}
_ERRORS = {408: "timeout_error", 413: "request_too_large", 429: "rate_limit_error", 503: "overloaded_error"}
_WORTH_REPEATING = {408, 409, 425, 429}  # and every 5xx
# Reasoning models write their thoughts first; some servers leave them in the text.
_THOUGHTS = re.compile(r"\s*<think>.*?(?:</think>\s*|\Z)", re.DOTALL)


class _Failure(Exception):
    """One try that did not bring an answer."""

    def __init__(self, error_type: str, message: str, *, again: bool = True, wait: float | None = None) -> None:
        super().__init__(message)
        self.error_type, self.again, self.wait = error_type, again, wait


class _NobodyListens(_Failure):
    """The server could not be reached at all."""


class ChatServer:
    """An open connection to a chat server; `async with` opens and closes it."""

    def __init__(self, server: ServerConfig, model: str, key: str) -> None:
        """`key` is sent as a bearer token, unless it is empty; it never reaches a message.

        Raises:
            DistillError: the key has characters that no header can carry.
        """
        if key and not re.fullmatch(r"[!-~]+", key):
            raise DistillError(f"{KEY}: tiene espacios, saltos de línea o letras que no son ASCII. Corrígela en .env.")
        self._server, self._model, self._key = server, model, key
        self._base = server.base_url.rstrip("/")
        self._failed_in_a_row = 0
        # The proxies and the .netrc of the environment are for the internet, not for a machine of the house.
        self._http = httpx.AsyncClient(
            headers={"Authorization": f"Bearer {key}"} if key else {},
            timeout=httpx.Timeout(server.timeout_seconds, connect=server.connect_timeout_seconds),
            limits=httpx.Limits(max_connections=server.concurrency),
            trust_env=False,
        )

    async def __aenter__(self) -> ChatServer:
        return self

    async def __aexit__(self, *failure: object) -> None:
        await self._http.aclose()

    async def greet(self) -> None:
        """See that somebody listens and that the key is good, before anything is asked.

        Raises:
            DistillError: they do not.
        """
        try:
            response = await self._http.get(f"{self._base}/models", timeout=self._server.connect_timeout_seconds)
            self._require_access(response)
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            raise self._nobody(error) from error
        except httpx.HTTPError:
            pass  # not every server has this address; the first question will tell

    async def answer(self, custom_id: str, body: Row) -> Row:
        """The answer to one request, as a row of the protocol; asked again while that may help.

        Raises:
            DistillError: nobody listens, the key or the model is wrong, or request after request fails.
        """
        for attempt in range(self._server.retries + 1):
            try:
                row = await self._ask(body)
                self._failed_in_a_row = 0
                return {"custom_id": custom_id, **row}
            except _Failure as error:
                failure = error
            if not failure.again or attempt == self._server.retries:
                break
            await asyncio.sleep(failure.wait if failure.wait is not None else self._backoff(attempt))
        if isinstance(failure, _NobodyListens):
            raise self._nobody(failure) from failure
        self._failed_in_a_row += 1
        if self._failed_in_a_row >= _GIVE_UP_AFTER:
            raise DistillError(
                f"{self._base}: {_GIVE_UP_AFTER} peticiones seguidas han fallado; la última: {failure}. Mira el "
                "registro del servidor y configs/distill/compatible.yaml. Lo respondido está guardado: repite y sigue."
            )
        return {
            "custom_id": custom_id,
            "type": "errored",
            "error_type": failure.error_type,
            "error_message": str(failure),
        }

    async def _ask(self, body: Row) -> Row:
        """One try."""
        try:
            # httpx counts the seconds between bytes, so that a server that drips would never be late.
            async with asyncio.timeout(self._server.timeout_seconds):
                response = await self._http.post(f"{self._base}/chat/completions", json=body)
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            raise _NobodyListens("api_error", self._said(str(error))) from error
        except (TimeoutError, httpx.TimeoutException) as error:
            late = f"sin respuesta en {self._server.timeout_seconds:g} s (timeout_seconds)"
            raise _Failure("timeout_error", late) from error
        except httpx.HTTPError as error:
            cut = f"se cortó la conexión ({type(error).__name__}: {error})"
            raise _Failure("api_error", self._said(cut)) from error
        self._require_access(response)
        if response.status_code == 404:
            raise await self._not_found(response)
        if response.status_code != 200:
            raise self._refused(response)
        try:
            return _row(response.json())
        except (ValueError, RecursionError) as error:
            what = self._said(response.text) or "nada"
            raise _Failure("malformed", f"el servidor no contestó con JSON de chat, sino con: {what}") from error

    def _require_access(self, response: httpx.Response) -> None:
        if response.status_code in (401, 403):
            state = "no vale para este servidor" if self._key else "falta, y este servidor la pide"
            raise DistillError(f"{self._base}: la clave {state}. Pon {KEY}=... en .env.")

    async def _not_found(self, response: httpx.Response) -> DistillError:
        """Neither the address nor the model can be told apart by the status, so both are named."""
        have = ""
        try:
            models = (await self._http.get(f"{self._base}/models")).json()["data"]
            have = f" Los que tiene: {', '.join(str(model['id']) for model in models[:20])}."
        except (httpx.HTTPError, ValueError, LookupError, TypeError):
            pass
        return DistillError(
            f"{self._base}: el servidor no encuentra el modelo «{self._model}», o la dirección no es la de su API "
            f"(suele acabar en /v1). Dice: {self._said(_message(response))}.{have} Corrige model o server.base_url en "
            "configs/distill/compatible.yaml."
        )

    def _refused(self, response: httpx.Response) -> _Failure:
        status = response.status_code
        unknown = "api_error" if status >= 500 or status < 400 else "invalid_request_error"
        return _Failure(
            _ERRORS.get(status, unknown),
            f"HTTP {status}: {self._said(_message(response))}",
            again=status in _WORTH_REPEATING or status >= 500,
            wait=_retry_after(response.headers.get("retry-after", "")),
        )

    def _nobody(self, error: Exception) -> DistillError:
        return DistillError(
            f"{self._base}: nadie contesta en esa dirección ({self._said(str(error))}). Arranca el servidor, o corrige "
            "server.base_url en configs/distill/compatible.yaml. Lo respondido está guardado: repite y sigue."
        )

    def _backoff(self, attempt: int) -> float:
        """Seconds, doubling; half of them at random, so that those who failed together do not come back together."""
        longest: float = min(self._server.backoff_seconds * 2**attempt, _LONGEST_BACKOFF)
        return longest * (0.5 + random.random() / 2)

    def _said(self, text: str) -> str:
        """What the server said, for a message: in one line, not long, without the key, should it repeat it."""
        short = " ".join(text.split())[:300]
        return short.replace(self._key, "***") if self._key else short


def _row(completion: Any) -> Row:
    """The protocol's row for the body of a good response; ValueError when it is none."""
    try:
        choice = completion["choices"][0]
        message = choice["message"]
        text, refusal = message.get("content") or "", message.get("refusal")
        finish = choice.get("finish_reason")
    except (LookupError, TypeError, AttributeError) as error:
        raise ValueError("no chat completion") from error
    if not isinstance(text, str):
        raise ValueError("no text")
    # An allow-list: what is not known to be a whole answer goes on under its own name, and is not taken for one.
    stop_reason = "refusal" if refusal else _STOPS.get(str(finish), f"finish_reason={finish}")
    usage = _usage(completion.get("usage"))
    return {"type": "succeeded", "text": _THOUGHTS.sub("", text, 1), "stop_reason": stop_reason, "usage": usage}


def _usage(usage: Any) -> dict[str, int]:
    """Counts of tokens under the protocol's names; input_tokens are those that no cache spared."""

    def count(*keys: str) -> int:
        value = usage
        for key in keys:
            value = value.get(key) if isinstance(value, dict) else None
        return value if isinstance(value, int) and value >= 0 else 0

    prompt = count("prompt_tokens")
    cached = min(count("prompt_tokens_details", "cached_tokens"), prompt)
    return {
        "input_tokens": prompt - cached,
        "output_tokens": count("completion_tokens"),
        "cache_read_input_tokens": cached,
        "cache_creation_input_tokens": 0,
    }


def _message(response: httpx.Response) -> str:
    """The explanation inside an error's body: ``{"error": {"message"}}``, ``{"error": text}``, ``{"message"}``."""
    try:
        body = response.json()
        error = body.get("error", body)
        return str(error["message"] if isinstance(error, dict) else error)
    except (ValueError, LookupError, AttributeError, RecursionError):
        return response.text


def _retry_after(value: str) -> float | None:
    """Seconds that a Retry-After header asks for, given as such or as a date; None when it asks for none."""
    if value.strip().isdecimal():
        return float(value)
    try:
        return max(0.0, (parsedate_to_datetime(value) - datetime.now(UTC)).total_seconds())
    except (ValueError, TypeError):  # no date, or one without its zone
        return None
