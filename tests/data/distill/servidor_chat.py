"""A small chat server on this machine: the endpoints of an OpenAI-compatible one, and faults on demand."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Body = dict[str, Any]


def completion(text: str | None, finish: str = "stop", **message: Any) -> Body:
    usage = {"prompt_tokens": 9, "completion_tokens": 4, "prompt_tokens_details": {"cached_tokens": 2}}
    choice = {"index": 0, "message": {"role": "assistant", "content": text, **message}, "finish_reason": finish}
    return {"id": "chatcmpl-1", "object": "chat.completion", "choices": [choice], "usage": usage}


class Chat(BaseHTTPRequestHandler):
    """One connection; what a fault may do with it."""

    server: Any

    def do_POST(self) -> None:
        data = self.rfile.read(length := int(self.headers["Content-Length"]))
        if len(data) == length:  # else whoever asked was killed meanwhile
            self.server.chat.asked(self, json.loads(data))

    def do_GET(self) -> None:
        chat: ServidorChat = self.server.chat
        chat.credentials.add(self.headers.get("Authorization"))
        self.reply(chat.get_status, {"data": [{"id": "modelo-de-casa"}]})

    def reply(self, status: int, body: Any, **headers: str) -> None:
        data = body if isinstance(body, bytes) else json.dumps(body, ensure_ascii=False).encode()
        self.send_response(status)
        for name, value in {"Content-Length": str(len(data)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(data)

    def cut(self, body: Body) -> None:
        """Half of a good answer, and the line goes dead."""
        data = json.dumps(body).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data[: len(data) // 2])
        self.wfile.flush()
        self.connection.shutdown(socket.SHUT_RDWR)
        self.close_connection = True

    def log_message(self, format: str, *args: object) -> None:
        pass


class ServidorChat:
    """Answers "eco: <question>"; `fault` may answer in its place, and says so by returning true."""

    def __init__(self) -> None:
        self.bodies: list[Body] = []
        self.credentials: set[str | None] = set()
        self.at_once = self.most_at_once = 0
        self.get_status = 200
        self.fault: Callable[[Chat, str, int], bool] = lambda chat, question, time: False
        self.answered: list[str] = []
        self._lock = threading.Lock()
        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Chat)
        self.http.daemon_threads = True
        self.http.chat = self  # type: ignore[attr-defined]
        self.url = f"http://127.0.0.1:{self.http.server_port}/v1"

    def times(self, question: str) -> int:
        return sum(body["messages"][-1]["content"] == question for body in self.bodies)

    def asked(self, chat: Chat, body: Body) -> None:
        question = body["messages"][-1]["content"]
        with self._lock:
            self.bodies.append(body)
            self.credentials.add(chat.headers.get("Authorization"))
            self.at_once += 1
            self.most_at_once = max(self.at_once, self.most_at_once)
            time = self.times(question)
        try:
            if not self.fault(chat, question, time):
                with self._lock:
                    self.answered.append(question)
                chat.reply(200, completion(f"eco: {question}"))
        except OSError:
            pass  # the other side is gone
        finally:
            with self._lock:
                self.at_once -= 1
