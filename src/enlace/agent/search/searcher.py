"""The search tool: one interface over both services, with a cache, good manners and one request per question."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from types import ModuleType

from enlace.agent.search import duckduckgo, searxng
from enlace.agent.search.cache import Cache
from enlace.agent.search.fetch import Unreachable, post
from enlace.agent.search.manners import Manners
from enlace.agent.search.outcome import Outcome, host_of
from enlace.agent.search.query import key, prepare
from enlace.config.paths import agent_dir
from enlace.config.schema import SearchConfig

_HOUR = 3600
_MODULES: dict[str, ModuleType] = {"duckduckgo": duckduckgo, "searxng": searxng}
_NAMES = {"duckduckgo": "DuckDuckGo", "searxng": "El SearxNG"}


class Searcher:
    """Searches the web as the configuration says. May be used from several threads and processes at once."""

    def __init__(
        self,
        config: SearchConfig,
        folder: Path,
        clock: Callable[[], float] = time.time,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        """Cache and manners are kept in `folder`; `clock` is wall time, in seconds, since both outlive the process."""
        self._config = config
        self._service = getattr(config, config.backend)
        self._sleep = sleep
        self._cache = Cache(
            folder / "search.db",
            config.ttl_hours * _HOUR,
            config.empty_ttl_hours * _HOUR,
            config.cache_entries,
            clock,
        )
        self._manners = Manners(folder / f"{config.backend}.json", self._service, clock)
        self._asking: dict[str, Future[Outcome]] = {}
        self._lock = threading.Lock()

    @classmethod
    def from_config(cls, config: SearchConfig) -> Searcher:
        """A searcher that keeps its cache and its manners where the agent keeps its things."""
        return cls(config, agent_dir())

    def search(self, query: str) -> Outcome:
        """What the service, or the cache, answers to `query`: at most `config.results` results.

        Whatever the network or the service do is an outcome, never an exception. Nothing is tried twice.

        Raises:
            EnlaceError: `query` has no words; or the folder cannot be written.
        """
        query = prepare(query)
        name = key(query, self._config)
        if (outcome := self._cache.get(name)) is None:
            outcome = self._once(name, query)
        return replace(outcome, results=outcome.results[: self._config.results])

    def _once(self, name: str, query: str) -> Outcome:
        """Ask, or wait for the thread that is asking the same."""
        with self._lock:
            asking = self._asking.get(name)
            if mine := asking is None:
                asking = self._asking[name] = Future()
        if mine:
            try:
                asking.set_result(self._ask(name, query))
            except BaseException as error:
                asking.set_exception(error)
            finally:
                with self._lock:
                    del self._asking[name]
        return asking.result()

    def _ask(self, name: str, query: str) -> Outcome:
        try:
            with self._manners.turn() as turn:
                # Another process may have asked the same while this one waited for its turn.
                if outcome := self._cache.get(name):
                    return outcome
                if turn.silence:
                    return Outcome("blocked", detail=self._silent(turn.silence))
                turn.wait(self._sleep)
                outcome, keep = self._request(query)
                if outcome.kind == "blocked":
                    turn.refused()
                if keep:
                    self._cache.put(name, outcome)
                return outcome
        except TimeoutError:
            return Outcome("unreachable", detail="Otra búsqueda está en marcha y no acaba. Prueba más tarde.")

    def _request(self, query: str) -> tuple[Outcome, bool]:
        """What the service answers, and whether it may be kept: a page of unknown length may have been cut."""
        service, module = self._service, _MODULES[self._config.backend]
        url = service.base_url if module is duckduckgo else service.base_url.rstrip("/") + "/search"
        headers = {
            "User-Agent": self._config.user_agent,
            # SearxNG's limiter wants text/html and a language, also of those who ask for JSON.
            "Accept": "text/html, application/json;q=0.9",
            "Accept-Language": "es" if service.region == "wt-wt" else service.region.split("-")[1],
            "Referer": "/".join(url.split("/")[:3]) + "/",
        }
        try:
            answer = post(url, module.form(query, self._config), headers, service.timeout_seconds)
        except Unreachable as error:
            who = f"{_NAMES[self._config.backend]} ({host_of(url)})"
            return Outcome("unreachable", detail=f"{who}: {error}. Mira la conexión y prueba más tarde."), False
        return module.read(answer), answer.sized

    def _silent(self, seconds: float) -> str:
        return (
            f"{_NAMES[self._config.backend]} no quiso contestar hace poco; no se le pregunta hasta dentro de "
            f"{max(1, round(seconds / 60))} min, para no alargarlo."
        )
