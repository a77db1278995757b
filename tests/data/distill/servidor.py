"""A small server on this machine with the batch endpoints of Anthropic's API."""

from __future__ import annotations

import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Servidor:
    """Accepts batches and answers them; `status` is what a submission gets, accepted or not, and `get_status`
    what a question gets."""

    def __init__(self) -> None:
        self.posts: list[dict[str, Any]] = []
        self.credentials: set[str] = set()
        self.gets = 0
        self.status = self.get_status = 200
        self.results = b""
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                server.credentials.add(self.headers.get("X-Api-Key") or self.headers["Authorization"].split()[-1])
                server.posts.append(body)
                error = {"type": "error", "error": {"type": "api_error", "message": "algo pasó"}}
                self.reply(server.status, server.batch(self) if server.status == 200 else error)

            def do_GET(self) -> None:
                server.gets += 1
                if server.get_status != 200:
                    self.reply(server.get_status, {"type": "error", "error": {"type": "api_error", "message": "uf"}})
                elif self.path.endswith("/results"):
                    self.send_response(200)
                    self.end_headers()
                    self.wfile.write(server.results)
                else:
                    self.reply(200, server.batch(self))

            def reply(self, status: int, body: dict[str, Any]) -> None:
                data = json.dumps(body).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, format: str, *args: object) -> None:
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_port}"

    def batch(self, handler: BaseHTTPRequestHandler) -> dict[str, Any]:
        return {
            "id": "msgbatch_01",
            "type": "message_batch",
            "processing_status": "ended",
            "request_counts": {"processing": 0, "succeeded": 2, "errored": 1, "canceled": 0, "expired": 1},
            "created_at": "2026-11-01T10:00:00Z",
            "expires_at": "2026-11-02T10:00:00Z",
            "ended_at": "2026-11-01T11:00:00Z",
            "cancel_initiated_at": None,
            "archived_at": None,
            "results_url": f"{self.url}/v1/messages/batches/msgbatch_01/results",
        }
