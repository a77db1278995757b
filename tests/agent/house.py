"""A house to test in: `enlace serve` in a process of its own, and a loopback server as its model and its web."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import yaml

from tests.conftest import ROOT

PAGES = [
    {
        "title": "Mate (infusión)",
        "url": "https://es.example.org/wiki/Mate",
        "content": "El mate es una infusión de hojas de yerba mate. <b>Se toma caliente</b>.",
    },
    {"title": "Yerba mate", "url": "https://plantas.example.net/yerba", "content": "Árbol de América del Sur."},
]
ANSWER = "Una infusión de hojas de yerba mate, que se toma caliente."


class Outside(ThreadingHTTPServer):
    """The model and the search engine. The model talks without end when asked to "contar"."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.queries: list[str] = []
        self.prompts: list[list[dict[str, str]]] = []
        self.counting = threading.Event()  # somebody is being counted to
        self.stopped = threading.Event()  # and hung up
        self.go_on = threading.Event()  # set: the count ends
        self.at_once = 0
        self.most_at_once = 0
        self.lock = threading.Lock()

    def handle_error(self, request: object, client_address: object) -> None:
        """Clients that hang up are part of the tests."""


class _Handler(BaseHTTPRequestHandler):
    server: Outside

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"])).decode()
        if not self.path.endswith("/chat/completions"):
            query = parse_qs(body)["q"][0]
            self.server.queries.append(query)
            results = [] if "nada" in query else PAGES
            self._send("application/json", json.dumps({"query": query, "results": results}).encode())
            return
        messages = json.loads(body)["messages"]
        self.server.prompts.append(messages)
        with self.server.lock:
            self.server.at_once += 1
            self.server.most_at_once = max(self.server.most_at_once, self.server.at_once)
        try:
            self._talk(messages[-1]["content"])
        finally:
            with self.server.lock:
                self.server.at_once -= 1

    def _talk(self, asked: str) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        if "contar" in asked:
            self._count()
        elif "Yerba" in asked:
            self._say(*ANSWER.replace(" ", " |").split("|"))
        elif asked.startswith("<resultados>"):
            self._say("No lo he encontrado.")
        elif asked.startswith("¿"):
            self._say("buscar:", " ", asked.strip("¿?"))
        elif asked == "Rompe":
            self.wfile.write(b"data: <html>\n\n")
        else:
            self._say("De ", "acuerdo", ".")
        self.wfile.write(b"data: [DONE]\n\n")

    def _count(self) -> None:
        self.server.counting.set()
        number = 0
        try:
            while not self.server.go_on.wait(0.02):
                number += 1
                self._say(f"{number} ")
        except OSError:
            self.server.stopped.set()
            raise

    def _say(self, *pieces: str) -> None:
        for piece in pieces:
            event = {"choices": [{"index": 0, "delta": {"content": piece}, "finish_reason": None}]}
            self.wfile.write(f"data: {json.dumps(event)}\n\n".encode())
            self.wfile.flush()

    def _send(self, kind: str, body: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def outside() -> Iterator[Outside]:
    """The loopback server, running."""
    server = Outside()
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server
    finally:
        server.go_on.set()
        server.shutdown()
        thread.join()
        server.server_close()


def project(folder: Path, port: int, **serve: Any) -> Path:
    """A project whose model and web are at `port` of this machine."""
    shutil.copytree(ROOT / "configs", folder / "configs")
    shutil.copy(ROOT / "params.yaml", folder)
    path = folder / "configs" / "agent" / "basico.yaml"
    agent = yaml.safe_load(path.read_text())
    agent["answers"] = "server"
    agent["server"]["base_url"] = f"http://127.0.0.1:{port}/v1"
    agent["search"]["backend"] = "searxng"
    agent["search"]["searxng"]["base_url"] = f"http://127.0.0.1:{port}"
    agent["serve"] |= serve
    path.write_text(yaml.safe_dump(agent, allow_unicode=True))
    return folder


@contextmanager
def serving(folder: Path, *arguments: str, **environment: str) -> Iterator[str]:
    """`enlace serve` in `folder`, on a free port; gives its address."""
    process = subprocess.Popen(
        [sys.executable, "-m", "enlace.cli", "serve", "--port", "0", *arguments],
        cwd=folder,
        env=environment_of(folder, environment),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout and process.stderr
        line = process.stdout.readline()
        assert line.startswith("La página está en http://"), line + process.stderr.read()
        yield line.split()[4]
    finally:
        process.terminate()
        _, errors = process.communicate(timeout=60)
    assert "Traceback" not in errors, errors
    assert process.returncode in (0, -15), errors


def refused(folder: Path, *arguments: str, **environment: str) -> str:
    """What `enlace serve` says when it does not start."""
    done = subprocess.run(
        [sys.executable, "-m", "enlace.cli", "serve", "--port", "0", *arguments],
        cwd=folder,
        env=environment_of(folder, environment),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 1, done
    return done.stderr


def environment_of(folder: Path, changes: dict[str, str]) -> dict[str, str]:
    """This one, without what the person at this machine has set; the agent keeps its things in `folder`."""
    kept = {name: value for name, value in os.environ.items() if name not in ("SERVE_TOKEN", "AGENT_DIR", "DVC_ROOT")}
    return kept | {"PYTHONPATH": str(ROOT / "src"), "AGENT_DIR": str(folder / "agente")} | changes
