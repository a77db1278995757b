"""A process that searches: `python -m tests.agent.search.child CONFIG FOLDER QUERY`."""

from __future__ import annotations

import sys
from pathlib import Path

from enlace.agent.search import Searcher
from enlace.config.schema import SearchConfig

if __name__ == "__main__":
    searcher = Searcher(SearchConfig.model_validate_json(sys.argv[1]), Path(sys.argv[2]))
    print("ready", flush=True)
    outcome = searcher.search(sys.argv[3])
    print(outcome.kind, len(outcome.results))
