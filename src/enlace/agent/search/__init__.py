"""Web search: DuckDuckGo's pages without scripts, or a SearxNG of one's own. No credentials, no third party."""

from enlace.agent.search.budget import fit, for_model
from enlace.agent.search.outcome import Outcome, Result
from enlace.agent.search.searcher import Searcher

__all__ = ["Outcome", "Result", "Searcher", "fit", "for_model"]
