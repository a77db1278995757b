"""Both search services on this machine, with the faults of the real ones."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs

HTML, JSON = "text/html; charset=UTF-8", "application/json"


@dataclass(frozen=True)
class Asked:
    """One request as it came."""

    path: str
    form: dict[str, str]
    headers: dict[str, str]  # names in lower case


@dataclass
class Reply:
    """What is sent back; `act`, where given, sends it in its own way."""

    body: bytes = b""
    status: int = 200
    content_type: str = HTML
    headers: dict[str, str] = field(default_factory=dict)
    act: Callable[[BaseHTTPRequestHandler], None] | None = None


class Service:
    """Answers with `replies`, one after another; the last one for ever."""

    def __init__(self) -> None:
        self.asked: list[Asked] = []
        self.replies = [Reply()]
        self.inside = self.most_inside = 0
        self.before_reply: Callable[[], object] = lambda: None
        lock = threading.Lock()
        service = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                sent = self.rfile.read(int(self.headers["Content-Length"])).decode()
                form = {name: values[0] for name, values in parse_qs(sent, keep_blank_values=True).items()}
                with lock:
                    service.asked.append(Asked(self.path, form, {k.lower(): v for k, v in self.headers.items()}))
                    reply = service.replies.pop(0) if len(service.replies) > 1 else service.replies[0]
                    service.inside += 1
                    service.most_inside = max(service.most_inside, service.inside)
                service.before_reply()
                self.close_connection = True
                if reply.act:
                    reply.act(self)
                else:
                    self.send_response(reply.status)
                    for name, value in {"Content-Type": reply.content_type, **reply.headers}.items():
                        self.send_header(name, value)
                    if "Content-Length" not in reply.headers:
                        self.send_header("Content-Length", str(len(reply.body)))
                    self.end_headers()
                    with suppress(OSError):  # whoever asked has had enough
                        self.wfile.write(reply.body)
                with lock:
                    service.inside -= 1

            def do_GET(self) -> None:
                raise AssertionError("nothing is asked by GET")

            def log_message(self, format: str, *args: object) -> None:
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.http.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.http.server_port}"

    def says(self, *replies: Reply) -> None:
        """Answer with these from now on."""
        self.replies = list(replies)
