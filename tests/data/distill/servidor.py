"""A server with the batch endpoints of Anthropic's API, in a process of its own: it remembers what was paid for while
its clients are killed, and misbehaves as told.

What each request gets is written in it: `[[refusal:cyber]]`, `[[max_tokens]]`, `[[errored:api_error:mensaje]]`,
`[[expired]]`, `[[canceled]]`, `[[empty]]`, `[[thinking]]`, `[[missing]]`, `[[text:...]]`, `[[big:5000]]`, and any of
them only the first time with `[[once:...]]`. What each call gets is told by `Servidor.faults`: per endpoint (create,
retrieve, list, results, cancel) a list of faults, one a call, or one fault for all calls.
"""

from __future__ import annotations

import json
import random
import re
import subprocess
import sys
import threading
import time
import urllib.request
from collections import Counter
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

Json = dict[str, Any]
USAGE = {
    "input_tokens": 7,
    "output_tokens": 3,
    "cache_read_input_tokens": None,
    "cache_creation_input_tokens": 0,
    "cache_creation": None,
    "service_tier": "batch",
}


class Servidor:
    """The server as its tests see it."""

    def __init__(self) -> None:
        self._process = subprocess.Popen([sys.executable, __file__], stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        self.url = f"http://127.0.0.1:{int(self._process.stdout.readline())}"

    def faults(self, **faults: Any) -> None:
        """Misbehave from now on; endpoints that are not named stay as they are."""
        self._call("/_faults", faults)

    def reset(self) -> None:
        """Forget all batches and faults."""
        self._call("/_reset", {})

    def state(self) -> Json:
        """``posts`` (batch id or null, custom_ids, requests), ``calls`` per endpoint, ``credentials``, ``open``."""
        return self._call("/_state")

    @property
    def paid(self) -> Counter[str]:
        """In how many accepted batches each custom_id is."""
        return Counter(id for post in self.state()["posts"] if post["id"] for id in post["custom_ids"])

    @property
    def posts(self) -> list[Json]:
        """Every submission, accepted or not."""
        return self.state()["posts"]

    def stop(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.communicate()

    def _call(self, path: str, body: Json | None = None) -> Json:
        data = None if body is None else json.dumps(body).encode()
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(urllib.request.Request(self.url + path, data), timeout=60) as answer:
            return json.loads(answer.read())


class _World:
    """What the server remembers."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.reset()

    def reset(self) -> None:
        self.faults: Json = {}
        self.batches: dict[str, Json] = {}
        self.posts: list[Json] = []
        self.calls: Counter[str] = Counter()
        self.credentials: set[str] = set()
        self.times: Counter[str] = Counter()

    def fault(self, endpoint: str) -> Json:
        """What is to go wrong in this call."""
        with self.lock:
            self.calls[endpoint] += 1
            planned = self.faults.get(endpoint, {})
            if isinstance(planned, list):
                return planned.pop(0) if planned else {}
            return planned

    def accept(self, requests: list[Json]) -> str:
        with self.lock:
            id = f"msgbatch_{len(self.batches) + 1:02}"
            rows = []
            for request in requests:
                self.times[request["custom_id"]] += 1
                rows.append(_result(request, self.times[request["custom_id"]]))
            created = datetime(2026, 11, 1, tzinfo=UTC) + timedelta(seconds=len(self.batches))
            self.batches[id] = {"created": created, "rows": rows, "looks": 0, "n": len(requests), "canceled": False}
            return id


WORLD = _World()


def _result(request: Json, time_: int) -> Json | None:
    """The line that a request gets; None if it gets none."""
    user = request["params"]["messages"][0]["content"]
    directive = ""
    if found := re.search(r"\[\[(once:)?(.*?)\]\]", user, re.DOTALL):
        directive = found[2] if not found[1] or time_ == 1 else ""
    kind, _, detail = directive.partition(":")
    if kind == "missing":
        return None
    if kind in ("expired", "canceled"):
        return _line(request, {"type": kind})
    if kind == "errored":
        name, _, words = detail.partition(":")
        error = {"type": "error", "error": {"type": name, "message": words or "uf"}, "request_id": "req_1"}
        return _line(request, {"type": "errored", "error": error})
    text, stop, details = f"eco: {user}", "end_turn", None
    if kind == "refusal":
        text, stop, details = "", "refusal", {"category": detail or None, "explanation": "no"}
    elif kind in ("max_tokens", "model_context_window_exceeded", "pause_turn"):
        stop = kind
    elif kind == "empty":
        text = ""
    elif kind == "text":
        text = detail
    elif kind == "big":
        text = "ñandú " * (int(detail) // 7)
    content: list[Json] = [{"type": "thinking", "thinking": "mmm", "signature": "x"}]
    if kind != "thinking":
        content.append({"type": "text", "text": text})
    message = {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": request["params"]["model"],
        "content": content,
        "stop_reason": stop,
        "stop_sequence": None,
        "stop_details": details,
        "usage": USAGE,
    }
    return _line(request, {"type": "succeeded", "message": message})


def _line(request: Json, result: Json) -> Json:
    return {"custom_id": request["custom_id"], "result": result}


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)) or b"{}")
        path = urlsplit(self.path).path
        if path == "/_faults":
            WORLD.faults |= body
            self.reply(200, {})
        elif path == "/_reset":
            WORLD.reset()
            self.reply(200, {})
        elif path.endswith("/cancel"):
            self.cancel(path.split("/")[-2])
        elif self.known_credential():
            self.create(body)

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        parts = url.path.split("/")
        if url.path == "/_state":
            state = {"posts": WORLD.posts, "calls": WORLD.calls, "open": threading.active_count() - 2}
            self.reply(200, state | {"credentials": sorted(WORLD.credentials)})
        elif not self.known_credential():
            pass
        elif url.path == "/v1/messages/batches":
            self.list({key: values[0] for key, values in parse_qs(url.query).items()})
        elif parts[-1] == "results":
            self.results(parts[-2])
        else:
            self.retrieve(parts[-1])

    def known_credential(self) -> bool:
        """Both ways of giving a key are taken; one key is wrong."""
        key = self.headers.get("X-Api-Key") or self.headers.get("Authorization", " ").split()[-1]
        WORLD.credentials.add(key)
        if key == "mala":
            self.error(401, "authentication_error", "invalid x-api-key")
        return key != "mala"

    # Endpoints

    def create(self, body: Json) -> None:
        fault = WORLD.fault("create")
        requests = body["requests"]
        ids = [request["custom_id"] for request in requests]
        reply = fault.get("reply", 200)
        limit = fault.get("max_requests", 100_000)
        wrong = (
            not 0 < len(ids) <= 100_000
            or len(set(ids)) != len(ids)
            or not all(re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", id) for id in ids)
            or any({"stream", "speed"} & request["params"].keys() for request in requests)
            or any(request["params"]["max_tokens"] < 1 for request in requests)
        )
        if len(ids) > limit:
            reply = 413
        elif wrong and reply == 200:
            reply = 400
        accepted = fault.get("accept", reply == 200)
        id = WORLD.accept(requests) if accepted else None
        keep = {} if len(ids) > 1000 else {"requests": requests}
        WORLD.posts.append({"id": id, "custom_ids": ids, **keep})
        if reply == "hang":
            time.sleep(3600)
        elif reply == "drop":
            self.close_connection = True
        elif reply == "garbage":
            self.send(200, b"<html>ups")
        elif reply == 200 and id is not None:
            self.reply(200, self.batch(id))
        else:
            after = {"retry-after": str(fault["retry_after"])} if "retry_after" in fault else {}
            self.error(int(reply), "api_error", "algo pasó", after)

    def retrieve(self, id: str) -> None:
        fault = WORLD.fault("retrieve")
        if fault.get("reply") == "drop":
            self.close_connection = True
        elif "reply" in fault:
            after = {"retry-after": str(fault["retry_after"])} if "retry_after" in fault else {}
            self.error(fault["reply"], "api_error", "uf", after)
        elif id not in WORLD.batches:
            self.error(404, "not_found_error", "no such batch")
        else:
            WORLD.batches[id]["looks"] += 1
            self.reply(200, self.batch(id))

    def list(self, query: dict[str, str]) -> None:
        fault = WORLD.fault("list")
        if "reply" in fault:
            return self.error(fault["reply"], "api_error", "uf")
        ids = list(WORLD.batches)[::-1][fault.get("hide", 0) :]
        if "after_id" in query:
            ids = ids[ids.index(query["after_id"]) + 1 :]
        page = ids[: int(query.get("limit", 20))]
        ends = {"first_id": page[0] if page else None, "last_id": page[-1] if page else None}
        self.reply(200, {"data": [self.batch(id) for id in page], "has_more": len(page) < len(ids), **ends})

    def cancel(self, id: str) -> None:
        WORLD.fault("cancel")
        batch = WORLD.batches[id]
        half = len(batch["rows"]) * 3 // 10  # these had run already
        for i, row in enumerate(batch["rows"]):
            if i >= half and row:
                batch["rows"][i] = {"custom_id": row["custom_id"], "result": {"type": "canceled"}}
        batch["canceled"] = True
        self.reply(200, self.batch(id))

    def results(self, id: str) -> None:
        fault = WORLD.fault("results")
        if "reply" in fault:
            return self.error(fault["reply"], "api_error", "uf")
        if "body" in fault:
            return self.send(200, fault["body"].encode())
        rows = [row for row in WORLD.batches[id]["rows"] if row]
        rows = rows[fault.get("skip", 0) :]
        if fault.get("duplicate"):
            rows = [*rows, rows[0]]
        if fault.get("foreign"):
            rows = [*rows, rows[0] | {"custom_id": "de-otro"}]
        if order := fault.get("order"):
            rows = rows[::-1] if order == "reverse" else random.Random(order).sample(rows, len(rows))
        end = "\r\n" if fault.get("crlf") else "\n"
        lines = [json.dumps(row, ensure_ascii=False).encode() + end.encode() for row in rows]
        if fault.get("blank"):
            lines.append(end.encode())
        if fault.get("no_last_end"):
            lines[-1] = lines[-1].rstrip()
        cut = fault.get("cut")
        if cut == "hang":  # half of it, and then nothing
            self.start_stream({"Transfer-Encoding": "chunked"})
            self.chunk(b"".join(lines)[: sum(map(len, lines)) // 2])
            time.sleep(3600)
        elif cut == "chunked":
            self.start_stream({"Transfer-Encoding": "chunked"})
            self.chunk(b"".join(lines[:-1]))
        elif cut == "length":
            whole = b"".join(lines)
            self.start_stream({"Content-Length": str(len(whole))})
            self.wfile.write(whole[: len(whole) // 2])
            self.close_connection = True
        else:
            self.start_stream({"Connection": "close"})
            for line in lines[:-1] if cut == "boundary" else lines:
                self.wfile.write(line[: len(line) // 2] if cut == "midline" and line is lines[-1] else line)
        self.close_connection = True

    # Answers

    def batch(self, id: str) -> Json:
        batch = WORLD.batches[id]
        ended = batch["looks"] > WORLD.faults.get("ends_after", 0) or batch["canceled"]
        kinds = Counter(row["result"]["type"] for row in batch["rows"] if row)
        done = dict.fromkeys(("succeeded", "errored", "canceled", "expired"), 0)
        counts = {"processing": 0, **done, **kinds} if ended else {"processing": batch["n"], **done}
        if ended and (lost := batch["n"] - sum(counts.values())):
            counts["succeeded"] += lost  # the counts know of answers that the download lacks
        created = batch["created"]
        return {
            "id": id,
            "type": "message_batch",
            "processing_status": "ended" if ended else "in_progress",
            "request_counts": counts,
            "created_at": created.isoformat(),
            "expires_at": (created + timedelta(days=1)).isoformat(),
            "ended_at": created.isoformat() if ended else None,
            "cancel_initiated_at": None,
            "archived_at": created.isoformat() if WORLD.faults.get("archived") else None,
            "results_url": f"http://{self.headers['Host']}/v1/messages/batches/{id}/results" if ended else None,
        }

    def error(self, status: int, kind: str, message: str, headers: dict[str, str] | None = None) -> None:
        self.reply(status, {"type": "error", "error": {"type": kind, "message": message}}, headers)

    def reply(self, status: int, body: Json, headers: dict[str, str] | None = None) -> None:
        self.send(status, json.dumps(body).encode(), headers)

    def send(self, status: int, data: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {
            "Content-Type": "application/json",
            "Content-Length": str(len(data)),
            **(headers or {}),
        }.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)

    def start_stream(self, headers: dict[str, str]) -> None:
        self.send_response(200)
        for name, value in {"Content-Type": "application/x-jsonl", **headers}.items():
            self.send_header(name, value)
        self.end_headers()

    def chunk(self, data: bytes) -> None:
        self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
        self.wfile.flush()

    def log_message(self, format: str, *args: object) -> None:
        pass


if __name__ == "__main__":
    http = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    http.daemon_threads = True
    print(http.server_port, flush=True)
    http.serve_forever()
