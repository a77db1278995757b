from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
import torch

from enlace import EnlaceError
from enlace.agent.speakers import KEY_VARIABLE, SEARCH_INSTRUCTIONS, OwnModel, ServerModel
from enlace.config.schema import HomeServer, ModelConfig
from enlace.data.chat import Message, encode_prompt
from enlace.data.shards import Shards
from enlace.data.tokenizer import Tokenizer
from enlace.export.trained import Trained
from enlace.model.generate import Sampling
from enlace.model.transformer import Transformer

SAMPLING = Sampling(max_new_tokens=12, temperature=1.0, top_p=0.95, seed=0)
QUESTION = [Message("system", "Breve."), Message("user", "¿Qué come el perro?")]


@pytest.fixture
def trained(model_config: ModelConfig, small_shards: Shards) -> Trained:
    model = Transformer(model_config, small_shards.manifest.vocab_size).initialise(torch.Generator().manual_seed(0))
    return Trained(model.eval(), Tokenizer.load(small_shards.tokenizer_path), 96)


def _spoken(speech: Iterator[str]) -> tuple[str, str]:
    pieces = []
    while True:
        try:
            pieces.append(next(speech))
        except StopIteration as end:
            return "".join(pieces), end.value


def test_the_own_model_counts_what_it_will_read(trained: Trained) -> None:
    speaker = OwnModel(trained)
    counted = sum(map(speaker.count, QUESTION)) + speaker.overhead
    assert counted == len(encode_prompt(trained.tokenizer, QUESTION))


def test_an_answer_says_why_it_ended(trained: Trained) -> None:
    speaker = OwnModel(trained)
    text, finish = _spoken(speaker.speak(QUESTION, SAMPLING))
    assert text and finish == "length"
    again = _spoken(speaker.speak(QUESTION, SAMPLING))
    assert again == (text, finish), "the same seed says the same"


# ── A server at home ─────────────────────────────────────────────────────────────────────────────────────────────────

Serve = Callable[..., str]


class _Home(BaseHTTPRequestHandler):
    """Answers as told, and keeps what it was asked."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        server: Any = self.server
        body = self.rfile.read(int(self.headers["Content-Length"]))
        server.asked.append((self.path, self.headers.get("Authorization"), json.loads(body)))
        self.send_response(server.status)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Content-Length", str(len(server.answer)))
        self.end_headers()
        self.wfile.write(server.answer)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def home() -> Iterator[Any]:
    server: Any = ThreadingHTTPServer(("127.0.0.1", 0), _Home)
    server.asked, server.status, server.answer = [], 200, b""
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def _sse(*events: object) -> bytes:
    lines = [event if isinstance(event, str) else json.dumps(event) for event in events]
    return "".join(f"data: {line}\n\n" for line in lines).encode()


def _delta(content: str | None, finish: str | None = None) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": {"content": content} if content else {}, "finish_reason": finish}]}


def _model(home: Any, searches: bool = True) -> ServerModel:
    url = f"http://127.0.0.1:{home.server_port}/v1/"
    return ServerModel(HomeServer(base_url=url, model="casa", context_length=2048, timeout_seconds=5), searches)


def test_a_server_is_read_as_it_speaks(home: Any) -> None:
    usage = {"choices": [], "usage": {"prompt_tokens": 3}}
    home.answer = b": comentario\n\n" + _sse(
        _delta("Pan "), _delta("con aceite"), _delta(None, "stop"), usage, "[DONE]"
    )
    assert _spoken(_model(home).speak(QUESTION, SAMPLING)) == ("Pan con aceite", "stop")
    home.answer = _sse(_delta("Pan", "length"), "[DONE]")
    assert _spoken(_model(home).speak(QUESTION, SAMPLING)) == ("Pan", "length")


def test_a_server_is_told_how_to_search_and_gets_results_in_a_box(home: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KEY_VARIABLE, "clave-de-casa")
    home.answer = _sse(_delta("Pan"), "[DONE]")
    turns = [*QUESTION, Message("assistant", "buscar: perro"), Message("tool", "[1] Perro (e.org): Come pan.")]
    _spoken(_model(home).speak(turns, SAMPLING))
    path, authorization, body = home.asked[0]
    assert (path, authorization) == ("/v1/chat/completions", "Bearer clave-de-casa")
    assert body["messages"] == [
        {"role": "system", "content": f"Breve.\n\n{SEARCH_INSTRUCTIONS}"},
        {"role": "user", "content": "¿Qué come el perro?"},
        {"role": "assistant", "content": "buscar: perro"},
        {"role": "user", "content": "<resultados>\n[1] Perro (e.org): Come pan.\n</resultados>"},
    ]
    assert (body["stream"], body["max_tokens"], body["model"]) == (True, 12, "casa")
    _spoken(_model(home, searches=False).speak(QUESTION, SAMPLING))
    assert home.asked[1][2]["messages"][0] == {"role": "system", "content": "Breve."}


@pytest.mark.parametrize(
    ("status", "answer", "message"),
    [
        (401, b"", "estado 401.*AGENT_SERVER_KEY"),
        (404, b"", "estado 404.*«casa»"),
        (500, b"<html>", "estado 500"),
        (200, b"data: <html>\n\n", "no es una respuesta"),
        (200, _sse({"error": {"message": "roto"}}), "no es una respuesta"),
        (200, _sse({"choices": [{"delta": "pan"}]}), "no es una respuesta"),
        (200, _sse({"choices": [1]}), "no es una respuesta"),
        (200, _sse(_delta("Pan con")), "llegó cortada"),
        (200, b"", "llegó cortada"),
        (200, _sse([1]), "no es una respuesta"),
    ],
)
def test_a_server_that_fails_is_told_about(home: Any, status: int, answer: bytes, message: str) -> None:
    home.status, home.answer = status, answer
    with pytest.raises(EnlaceError, match=message):
        _spoken(_model(home).speak(QUESTION, SAMPLING))


@pytest.mark.parametrize("port", [9, 99_999])
def test_a_server_that_is_not_there_is_told_about(port: int) -> None:
    config = HomeServer(base_url=f"http://127.0.0.1:{port}/v1", model="casa", context_length=2048, timeout_seconds=1)
    with pytest.raises(EnlaceError, match=r"no se puede hablar con el servidor.*answers: own"):
        _spoken(ServerModel(config, searches=True).speak(QUESTION, SAMPLING))
