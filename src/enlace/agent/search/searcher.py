"""The search tool: one interface over both services, with cache, good manners and one request per question."""

from __future__ import annotations

from pathlib import Path

from enlace.agent.search.outcome import Outcome
from enlace.config.schema import SearchConfig


class Searcher:
    """Searches the web as the configuration says. May be used from several threads and processes at once."""

    @classmethod
    def from_config(cls, config: SearchConfig, folder: Path | None = None) -> Searcher:
        """A searcher whose cache and cooldown live in `folder` (default: `config.paths.agent_dir()`)."""
        raise NotImplementedError

    def search(self, query: str) -> Outcome:
        """What the service, or the cache, answers to `query`: at most `config.results` results.

        Whatever the network or the service do is an outcome, never an exception.

        Raises:
            EnlaceError: `query` has no words.
        """
        raise NotImplementedError
