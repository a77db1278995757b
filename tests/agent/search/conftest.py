from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from enlace.agent.search import Searcher
from enlace.config.load import load_config
from enlace.config.schema import SearchConfig
from tests.agent.search.service import Service
from tests.conftest import ROOT

PAGES = ROOT / "tests/fixtures/search"


@pytest.fixture(autouse=True)
def nothing_leaves_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection or a name look-up that is not for this machine fails the test."""
    connect, getaddrinfo = socket.socket.connect, socket.getaddrinfo

    def only_here(self: socket.socket, address: Any) -> None:
        assert isinstance(address, str | bytes) or address[0] in ("127.0.0.1", "::1"), f"leaves the machine: {address}"
        connect(self, address)

    def known_here(host: Any, *rest: Any, **more: Any) -> Any:
        assert host in ("127.0.0.1", "localhost", "::1", None), f"leaves the machine: {host}"
        return getaddrinfo(host, *rest, **more)

    monkeypatch.setattr(socket.socket, "connect", only_here)
    monkeypatch.setattr(socket, "getaddrinfo", known_here)


@pytest.fixture
def service() -> Iterator[Service]:
    service = Service()
    thread = threading.Thread(target=service.http.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield service
    service.http.shutdown()
    service.http.server_close()
    thread.join()


class Clock:
    """Time that stands still until somebody sleeps."""

    def __init__(self) -> None:
        self.now = 1_800_000_000.0
        self.slept: list[float] = []

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(scope="session")
def shipped() -> SearchConfig:
    """The configuration that the project ships."""
    return load_config(ROOT).agent.search


@pytest.fixture
def configured(shipped: SearchConfig, service: Service) -> Callable[..., SearchConfig]:
    """The shipped configuration with both services on this machine and other values."""

    def make(backend: str = "duckduckgo", timeout: float = 20, **values: Any) -> SearchConfig:
        base = {"base_url": service.url, "timeout_seconds": timeout}
        fields = shipped.model_dump() | {"backend": backend} | values
        for name in ("duckduckgo", "searxng"):
            fields[name] = fields[name] | base
        return SearchConfig.model_validate(fields)

    return make


@pytest.fixture
def searcher(configured: Callable[..., SearchConfig], tmp_path: Path, clock: Clock) -> Callable[..., Searcher]:
    """A searcher over the service here, its state in `tmp_path`: another one is another process after a restart."""

    def make(backend: str = "duckduckgo", **values: Any) -> Searcher:
        return Searcher(configured(backend, **values), tmp_path / "agent", clock, clock.sleep)

    return make
