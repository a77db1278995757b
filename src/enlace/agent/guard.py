"""Who may talk to the server: no page of another site, no name that was bound to this machine (DNS rebinding), and from
outside the machine, only who has the token.
"""

from __future__ import annotations

import hmac
import ipaddress
import socket
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from enlace import EnlaceError

TOKEN_VARIABLE = "SERVE_TOKEN"
_SHORTEST_TOKEN = 16


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches what listens there."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def check_token(host: str, token: str | None) -> None:
    """Raises EnlaceError where `host` can be reached from outside and there is no good token."""
    if is_loopback(host):
        return
    if not token:
        raise EnlaceError(
            f"Para escuchar en {host}, y no solo en este equipo, hace falta una clave: pon {TOKEN_VARIABLE} en .env. "
            f'Una buena: python -c "import secrets; print(secrets.token_urlsafe(24))"'
        )
    if len(token) < _SHORTEST_TOKEN or not token.isascii():
        raise EnlaceError(
            f"La clave {TOKEN_VARIABLE} de .env tiene que llevar al menos {_SHORTEST_TOKEN} letras o cifras, sin "
            f'acentos. Una buena: python -c "import secrets; print(secrets.token_urlsafe(24))"'
        )


class Guard:
    """ASGI middleware. Files of the page are for everybody; the rest asks for the token, where there is one."""

    def __init__(self, app: ASGIApp, host: str, token: str | None) -> None:
        self._app = app
        self._names = {"localhost"}
        self._local = is_loopback(host)
        self._token = None if self._local else token
        if not self._local:
            name = socket.gethostname().casefold()
            self._names |= {name, f"{name}.local"}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let through what may go through."""
        refusal = self._refusal(scope) if scope["type"] == "http" else None
        await (refusal or self._app)(scope, receive, send)

    def _refusal(self, scope: Scope) -> Response | None:
        headers = Headers(scope=scope)
        host = headers.get("host", "")
        if not self._is_ours(host):
            return refusal(403, "Este nombre no es el de este equipo; entra por su dirección IP o por localhost.")
        origin = headers.get("origin")
        if origin is not None and _netloc(origin) != host:
            return refusal(403, "Una página de otro sitio no puede hablar con este equipo.")
        if scope["path"].startswith(("/api/", "/v1/")) and not self._has_token(headers):
            answer = refusal(401, "Hace falta la clave de este equipo (SERVE_TOKEN).", "invalid_api_key")
            answer.headers["WWW-Authenticate"] = "Bearer"
            return answer
        return None

    def _is_ours(self, host: str) -> bool:
        """A name may be bound to any address by whoever owns it; an address is what it is."""
        try:
            name = (urlsplit(f"//{host}").hostname or "").casefold()
        except ValueError:
            return False
        try:
            return ipaddress.ip_address(name).is_loopback or not self._local
        except ValueError:
            return name in self._names

    def _has_token(self, headers: Headers) -> bool:
        if self._token is None:
            return True
        scheme, _, given = headers.get("authorization", "").partition(" ")
        right = hmac.compare_digest(given.strip().encode(), self._token.encode())
        return right and scheme.casefold() == "bearer"


def _netloc(origin: str) -> str | None:
    try:
        return urlsplit(origin).netloc
    except ValueError:
        return None


def refusal(status: int, message: str, code: str | None = None) -> JSONResponse:
    """An error as OpenAI's clients understand it."""
    kind = "server_error" if status >= 500 else "invalid_request_error"
    return JSONResponse({"error": {"message": message, "type": kind, "param": None, "code": code}}, status)
