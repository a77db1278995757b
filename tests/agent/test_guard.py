from __future__ import annotations

import socket

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from starlette.testclient import TestClient

from enlace import EnlaceError
from enlace.agent.guard import Guard, check_token, is_loopback

TOKEN = "una-clave-de-24-letras-x"


def _client(host: str, token: str | None = None) -> TestClient:
    async def hello(_: Request) -> PlainTextResponse:
        return PlainTextResponse("hola")

    app = Starlette(routes=[Route("/", hello), Route("/v1/models", hello), Route("/api/chat", hello)])
    return TestClient(Guard(app, host, token))


@pytest.mark.parametrize(
    ("host", "local"),
    [("127.0.0.1", True), ("127.8.9.1", True), ("::1", True), ("localhost", True), ("0.0.0.0", False), ("::", False),
     ("192.168.1.7", False), ("localhost.evil.org", False), ("", False)],
)  # fmt: skip
def test_what_only_this_machine_reaches(host: str, local: bool) -> None:
    assert is_loopback(host) == local


def test_other_addresses_need_a_good_token() -> None:
    check_token("127.0.0.1", None)
    check_token("0.0.0.0", TOKEN)
    for token, message in [(None, "hace falta una clave"), ("", "hace falta"), ("corta", "al menos 16")]:
        with pytest.raises(EnlaceError, match=message) as error:
            check_token("0.0.0.0", token)
        assert "SERVE_TOKEN" in str(error.value) and "corta" not in str(error.value)


@pytest.mark.parametrize(
    ("bound", "host", "status"),
    [
        ("127.0.0.1", "127.0.0.1:8000", 200),
        ("127.0.0.1", "localhost:8000", 200),
        ("127.0.0.1", "LOCALHOST", 200),
        ("127.0.0.1", "[::1]:8000", 200),
        ("127.0.0.1", "malo.org:8000", 403),
        ("127.0.0.1", "localhost.malo.org", 403),
        ("127.0.0.1", "127.0.0.1.malo.org", 403),
        ("127.0.0.1", "192.168.1.7", 403),
        ("127.0.0.1", "[::1", 403),
        ("127.0.0.1", "", 403),
        ("0.0.0.0", "192.168.1.7:8000", 200),
        ("0.0.0.0", "localhost", 200),
        ("0.0.0.0", socket.gethostname(), 200),
        ("0.0.0.0", f"{socket.gethostname()}.local:8000", 200),
        ("0.0.0.0", "malo.org", 403),
    ],
)
def test_only_names_of_this_machine_are_answered(bound: str, host: str, status: int) -> None:
    """DNS rebinding: a name of somebody else's that was bound to an address of this house."""
    assert _client(bound, TOKEN).get("/", headers={"Host": host}).status_code == status


@pytest.mark.parametrize(
    ("origin", "status"),
    [
        (None, 200),
        ("http://127.0.0.1:8000", 200),
        ("http://127.0.0.1:9000", 403),
        ("https://malo.org", 403),
        ("null", 403),
        ("http://[", 403),
        ("", 403),
    ],
)
def test_pages_of_other_sites_are_refused(origin: str | None, status: int) -> None:
    headers = {"Host": "127.0.0.1:8000"} | ({"Origin": origin} if origin is not None else {})
    assert _client("127.0.0.1").get("/v1/models", headers=headers).status_code == status


@pytest.mark.parametrize(
    ("authorization", "status"),
    [
        (f"Bearer {TOKEN}", 200),
        (f"bearer  {TOKEN}", 200),
        (None, 401),
        ("Bearer", 401),
        ("Bearer otra-clave", 401),
        (f"Bearer {TOKEN}x", 401),
        (f"Basic {TOKEN}", 401),
        ("Bearer ñandú".encode(), 401),
    ],
)
def test_from_outside_the_token_is_asked_for(authorization: str | bytes | None, status: int) -> None:
    client = _client("0.0.0.0", TOKEN)
    headers: dict[str, str | bytes] = {"Host": "192.168.1.7"}
    if authorization is not None:
        headers["Authorization"] = authorization
    for path in ("/v1/models", "/api/chat"):
        answer = client.get(path, headers=headers)
        assert answer.status_code == status
        assert TOKEN not in answer.text
    assert client.get("/", headers={"Host": "192.168.1.7"}).status_code == 200, "the page itself holds no secret"


def test_this_machine_alone_needs_no_token() -> None:
    assert _client("127.0.0.1", TOKEN).get("/v1/models", headers={"Host": "localhost"}).status_code == 200
