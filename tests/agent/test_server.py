"""`enlace serve`, in a process of its own, as programs use it."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncGenerator, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from starlette.testclient import TestClient

from enlace.agent import server
from enlace.config.load import load_config
from tests.agent.house import ANSWER, PAGES, Outside, outside, project, refused, serving
from tests.conftest import ROOT

TOKEN = "una-clave-de-24-letras-x"


@pytest.fixture(scope="module")
def world() -> Iterator[Outside]:
    with outside() as server:
        yield server


@pytest.fixture(scope="module")
def folder(world: Outside, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return project(tmp_path_factory.mktemp("casa"), world.server_port, waiting=2, request_kib=64)


@pytest.fixture(scope="module")
def address(folder: Path) -> Iterator[str]:
    with serving(folder) as address:
        yield address


@pytest.fixture
def client(address: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{address}/v1", api_key="ninguna", max_retries=0, timeout=60) as client:
        yield client


def _ask(text: str) -> Any:
    return [{"role": "user", "content": text}]


def _page(address: str, text: str, **more: Any) -> list[dict[str, Any]]:
    """Everything that the page is told."""
    events = []
    with httpx.stream("POST", f"{address}/api/chat", json={"messages": _ask(text), **more}, timeout=60) as answer:
        assert answer.status_code == 200, answer.read()
        for line in answer.iter_lines():
            if line:
                events.append(json.loads(line.removeprefix("data: ")))
    return events


# ── OpenAI's own client ──────────────────────────────────────────────────────────────────────────────────────────────


def test_the_model_is_listed(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["local"]


def test_a_whole_answer_with_its_sources(client: openai.OpenAI, world: Outside) -> None:
    answer = client.chat.completions.create(model="local", messages=_ask("¿Qué es el mate?"), max_tokens=50)
    message = answer.choices[0].message
    assert (message.role, message.content, answer.choices[0].finish_reason) == ("assistant", ANSWER, "stop")
    assert message.annotations and [a.url_citation.url for a in message.annotations] == [p["url"] for p in PAGES]
    assert answer.usage and answer.usage.prompt_tokens > 0 and answer.usage.completion_tokens > 0
    assert world.queries[-1] == "Qué es el mate"


def test_an_answer_in_pieces(client: openai.OpenAI) -> None:
    stream = client.chat.completions.create(
        model="lo-que-sea", messages=_ask("Hola"), stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    pieces = [chunk.choices[0].delta.content for chunk in chunks if chunk.choices]
    assert "".join(piece or "" for piece in pieces) == "De acuerdo."
    assert len([piece for piece in pieces if piece]) == 3
    assert chunks[-2].choices[0].finish_reason == "stop"
    assert chunks[-1].usage and chunks[-1].usage.total_tokens > 0
    assert len({chunk.id for chunk in chunks}) == 1 and {chunk.model for chunk in chunks} == {"local"}


def test_a_conversation_with_a_system_text_of_its_own(client: openai.OpenAI, world: Outside) -> None:
    messages: Any = [
        {"role": "system", "content": "Habla como un marinero."},
        {"role": "user", "content": [{"type": "text", "text": "Hola"}]},
        {"role": "assistant", "content": "¡Ah del barco!"},
        {"role": "user", "content": "Adiós"},
    ]
    client.chat.completions.create(model="local", messages=messages)
    system, *turns = world.prompts[-1]
    assert system["content"].startswith("Habla como un marinero.")
    assert [turn["content"] for turn in turns] == ["Hola", "¡Ah del barco!", "Adiós"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "assistant", "content": "x"}]}, "alternar"),
        ({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}, "último"),
        ({"messages": [{"role": "tool", "content": "x", "tool_call_id": "1"}]}, "messages.0.role"),
        ({"temperature": 9}, "temperature"),
        ({"n": 2}, "n:"),
        ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools"),
        ({"stop": ["."]}, "stop"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
    ],
)
def test_what_is_not_understood_is_refused(client: openai.OpenAI, change: dict[str, Any], message: str) -> None:
    with pytest.raises(openai.BadRequestError, match=message):
        client.chat.completions.create(**({"model": "local", "messages": _ask("Hola")} | change))


def test_a_model_that_fails_is_not_the_fault_of_who_asks(client: openai.OpenAI) -> None:
    with pytest.raises(openai.InternalServerError, match="no es una respuesta") as error:
        client.chat.completions.create(model="local", messages=_ask("Rompe"))
    assert error.value.status_code == 502
    with pytest.raises(openai.APIError, match="no es una respuesta"):
        list(client.chat.completions.create(model="local", messages=_ask("Rompe"), stream=True))


@pytest.mark.parametrize("stream", [False, True])
def test_a_question_that_does_not_fit_is_refused(client: openai.OpenAI, stream: bool) -> None:
    with pytest.raises(openai.BadRequestError, match="demasiado largo"):
        client.chat.completions.create(model="local", messages=_ask("hola " * 4000), stream=stream)


# ── What the page is told ────────────────────────────────────────────────────────────────────────────────────────────


def test_the_page_is_told_everything(address: str) -> None:
    events = _page(address, "¿Qué es la yerba mate?")
    kinds = [event["type"] for event in events]
    assert kinds[:4] == ["read", "searching", "searched", "read"] and kinds[-1] == "finished"
    assert events[1]["query"] == "Qué es la yerba mate"
    assert [source["url"] for source in events[3]["sources"]] == [page["url"] for page in PAGES]
    assert events[3]["sources"][0]["host"] == "es.example.org"
    assert "".join(event["text"] for event in events if event["type"] == "text") == ANSWER


def test_nothing_found_is_told_apart(address: str) -> None:
    events = _page(address, "¿Hay algo de nada?")
    assert [event["kind"] for event in events if event["type"] == "searched"] == ["no_results"]
    assert "".join(event["text"] for event in events if event["type"] == "text") == "No lo he encontrado."


def test_what_is_told_is_remembered_and_forgotten(address: str, client: openai.OpenAI) -> None:
    _page(address, "La alergia de Marta es a las nueces.")
    recalled = [event for event in _page(address, "¿Qué alergia tiene Marta?") if event["type"] == "remembered"]
    assert [memory["text"] for memory in recalled[0]["memories"]] == ["La alergia de Marta es a las nueces."]
    client.chat.completions.create(model="local", messages=_ask("Marta es de Lugo."))
    ids = [memory["id"] for memory in recalled[0]["memories"]]
    assert _forget(address, ids).json() == {"forgotten": 1}
    assert _forget(address, ids).json() == {"forgotten": 0}
    events = _page(address, "¿Qué alergia tiene Marta?")
    assert not [event for event in events if event["type"] == "remembered"], "nor what other programs asked"
    _page(address, "El perro se llama Toby.")
    assert _forget(address, "all").json()["forgotten"] >= 1
    assert not [event for event in _page(address, "¿El perro Toby?") if event["type"] == "remembered"]


def _forget(address: str, ids: Any) -> httpx.Response:
    return httpx.request("DELETE", f"{address}/api/memories", json={"ids": ids}, timeout=60)


@pytest.mark.parametrize("ids", [None, "todo", [1.5], ["1"], [True], {}, [2**63], [-1]])
def test_only_ids_can_be_forgotten(address: str, ids: Any) -> None:
    assert _forget(address, ids).status_code == 400


def test_json_without_an_end_to_its_depth_is_refused(address: str) -> None:
    content = '{"ids":' + "[" * 20_000
    answer = httpx.request(
        "DELETE", f"{address}/api/memories", content=content, headers={"Content-Type": "application/json"}
    )
    assert answer.status_code == 400


# ── Limits ───────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def counted_to(world: Outside, address: str) -> Iterator[httpx.Client]:
    """A client to whom the model is counting."""
    world.counting.clear(), world.stopped.clear(), world.go_on.clear()
    with httpx.Client(timeout=60) as client:
        yield client
    world.go_on.set()
    assert world.stopped.wait(30) or not world.counting.is_set()


@pytest.mark.parametrize(
    ("path", "stream"), [("/v1/chat/completions", False), ("/v1/chat/completions", True), ("/api/chat", True)]
)
def test_an_answer_that_nobody_waits_for_stops(
    world: Outside, address: str, counted_to: httpx.Client, path: str, stream: bool
) -> None:
    body = {"messages": _ask("Ponte a contar"), "stream": stream}
    if stream:
        with counted_to.stream("POST", address + path, json=body) as answer:
            lines = answer.iter_lines()
            next(lines)
            assert world.counting.wait(30)
    else:
        with pytest.raises(httpx.ReadTimeout):
            counted_to.post(address + path, json=body, timeout=2)
    assert world.stopped.wait(30), "the model is told to stop"
    events = _page(address, "Hola")
    assert events[-1]["type"] == "finished", "and the next is answered"


def test_one_at_a_time_and_not_too_many_waiting(world: Outside, address: str, counted_to: httpx.Client) -> None:
    world.most_at_once = 0
    with counted_to.stream("POST", f"{address}/api/chat", json={"messages": _ask("Ponte a contar")}) as answer:
        assert world.counting.wait(30)
        lines = answer.iter_lines()
        next(lines)
        with ThreadPoolExecutor(3) as pool:
            waiting = [pool.submit(_first_then_all, address) for _ in range(2)]
            heard = [future for future in waiting if future.exception(30) is None]
            assert len(heard) == 2
            full = httpx.post(f"{address}/v1/chat/completions", json={"messages": _ask("Hola")}, timeout=60)
            assert full.status_code == 503 and full.json()["error"]["code"] == "busy"
            world.go_on.set()
            for future in waiting:
                first, rest = future.result()
                assert first["type"] == "waiting" and first["ahead"] >= 1
                assert rest()[-1]["type"] == "finished"
        list(lines)
    world.counting.clear()
    assert world.most_at_once == 1


def _first_then_all(address: str) -> tuple[dict[str, Any], Any]:
    """The first event of an answer, and how to wait for the rest, read meanwhile by a thread."""
    first, events, arrived = [], [], threading.Event()

    def read() -> None:
        with httpx.stream("POST", f"{address}/api/chat", json={"messages": _ask("Hola")}, timeout=60) as answer:
            for line in answer.iter_lines():
                if line:
                    events.append(json.loads(line.removeprefix("data: ")))
                    first.append(events[0])
                    arrived.set()

    thread = threading.Thread(target=read)
    thread.start()
    assert arrived.wait(30)
    return first[0], lambda: (thread.join(60), events)[1]


def test_who_does_not_read_does_not_keep_the_others_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """A phone that fell asleep: its connection stays open, and takes nothing."""
    monkeypatch.setattr(server, "_READ_SECONDS", 0.05)
    stopped = False

    async def events() -> AsyncGenerator[str, None]:
        nonlocal stopped
        try:
            while True:
                yield "data: 1\n\n"
        finally:
            stopped = True

    async def receive() -> Any:
        await asyncio.Event().wait()

    async def send(message: Any) -> None:
        if message["type"] == "http.response.body":
            await asyncio.Event().wait()

    asyncio.run(asyncio.wait_for(server._Stream(events())({"type": "http"}, receive, send), 10))
    assert stopped


def test_what_breaks_is_told_as_clients_understand_it() -> None:
    app = server.make_app(None, "local", load_config(ROOT).agent.serve, "127.0.0.1", None)  # type: ignore[arg-type]
    with TestClient(app, "http://localhost", raise_server_exceptions=False) as client:
        answer = client.post("/v1/chat/completions", json={"messages": _ask("Hola")})
    assert answer.status_code == 500 and "ha fallado" in answer.json()["error"]["message"]


def test_a_request_too_large_is_refused(address: str) -> None:
    for content in (b"x" * 70_000, (piece for piece in [b"x" * 40_000, b"x" * 40_000])):
        headers = {"Content-Type": "application/json"}
        answer = httpx.post(f"{address}/v1/chat/completions", content=content, headers=headers, timeout=60)  # type: ignore[arg-type]
        assert answer.status_code == 413 and "64 KiB" in answer.json()["error"]["message"]


def test_only_json_is_taken(address: str) -> None:
    """A form of another site can be sent without asking; JSON cannot."""
    answer = httpx.post(f"{address}/api/chat", content=json.dumps({"messages": _ask("Hola")}))
    assert answer.status_code == 415
    for body in (b"{", b"[]", b"\xff", b'{"messages": 1}'):
        answer = httpx.post(f"{address}/api/chat", content=body, headers={"Content-Type": "application/json"})
        assert answer.status_code == 400 and answer.json()["error"]["message"]


def test_the_page_is_closed_to_the_outside(address: str) -> None:
    for path in ("/", "/page.js", "/page.css", "/icon.svg"):
        answer = httpx.get(address + path)
        assert answer.status_code == 200
        assert "default-src 'none'" in answer.headers["Content-Security-Policy"]
        assert "://" not in answer.text.replace("http://www.w3.org/2000/svg", ""), "nothing comes from elsewhere"
    assert httpx.get(f"{address}/otra").status_code == 404
    assert httpx.get(f"{address}/page/../server.py").status_code == 404
    assert httpx.get(f"{address}/api/chat").status_code == 405
    assert httpx.get(address, headers={"Host": "malo.org"}).status_code == 403


# ── Other addresses ──────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_whole_house_is_served_with_the_token_of_the_env_file(folder: Path) -> None:
    assert "SERVE_TOKEN" in refused(folder, "--host", "0.0.0.0")
    env = folder / ".env"
    env.write_text(f"SERVE_TOKEN={TOKEN}\n")
    try:
        with serving(folder, "--host", "0.0.0.0") as address:
            here = address.replace("0.0.0.0", "127.0.0.1")
            with pytest.raises(openai.AuthenticationError, match="SERVE_TOKEN"):
                openai.OpenAI(base_url=f"{here}/v1", api_key="otra", max_retries=0).models.list()
            client = openai.OpenAI(base_url=f"{here}/v1", api_key=TOKEN, max_retries=0)
            assert len(client.models.list().data) == 1
    finally:
        env.unlink()


def test_a_port_in_use_is_told(folder: Path, world: Outside) -> None:
    assert "Elige otro con --port" in refused(folder, "--port", str(world.server_port))
