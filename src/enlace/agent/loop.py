"""A conversation: what is remembered, what is searched for, and the answer, as it comes.

question ─► memories ─► context ─► model ─► answer
                           ▲          │
                           └─ search ◄┘ buscar: ...
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from enlace import EnlaceError
from enlace.agent.context import Context, Fitted, Search, assemble
from enlace.agent.memory import Episode, Memory
from enlace.agent.search import Outcome, Result, Searcher, fit, for_model
from enlace.agent.speakers import Finish, Speaker, open_speaker
from enlace.config.schema import AgentConfig
from enlace.data.chat import Message
from enlace.data.tools import call, is_about, may_be_call, parse_call, question_query, source_line
from enlace.model.generate import Sampling

GAVE_UP = "No he sabido responder con lo que he encontrado."
SEARCH_IS_OFF = "La búsqueda está apagada."


@dataclass(frozen=True)
class Remembered:
    """Memories that are about the question, and that the model reads."""

    episodes: tuple[Episode, ...]


@dataclass(frozen=True)
class Searching:
    """A search begins."""

    query: str


@dataclass(frozen=True)
class Searched:
    """A search ended, well or not."""

    query: str
    outcome: Outcome


@dataclass(frozen=True)
class Read:
    """The model has this before it; its sources are those that the answer may draw on."""

    context: Context


@dataclass(frozen=True)
class Said:
    """A piece of the answer."""

    text: str


@dataclass(frozen=True)
class Finished:
    """The answer is whole."""

    reason: Finish


Event = Remembered | Searching | Searched | Read | Said | Finished


@dataclass
class Chat:
    """Turns so far, and how the next one is answered."""

    speaker: Speaker
    agent: AgentConfig
    sampling: Sampling
    searcher: Searcher | None = None
    memory: Memory | None = None
    turns: list[Message] = field(default_factory=list)
    clock: Callable[[], float] = time.time

    def restart(self) -> None:
        """Forget the turns; what is remembered stays."""
        self.turns.clear()

    def reply(self, text: str) -> Iterator[Event]:
        """What happens until `text` is answered; both turns join the history once it ends or is cut short.

        Raises:
            EnlaceError: `text` is empty or does not fit the context; or the model cannot answer.
        """
        recalled = self._recall(text)
        searches: list[Search] = []
        pieces: list[str] = []
        try:
            while True:
                context = self._context(text, recalled, searches)
                if context.memories and not searches:
                    yield Remembered(tuple(recalled[i] for i in context.memories))
                yield Read(context)
                query = None
                for event in self._turn(context):
                    if isinstance(event, Said):
                        pieces.append(event.text)
                    if isinstance(event, _Called):
                        query = event.query
                    else:
                        yield event
                if query is None:
                    break
                if len(searches) >= max(1, self.agent.max_searches):
                    pieces.append(GAVE_UP)
                    yield Said(GAVE_UP)
                    yield Finished("stop")
                    break
                yield from self._search(self._usable(query, text), searches)
            self._remember(text)
        finally:
            if answer := "".join(pieces).strip():
                self.turns += [Message("user", text), Message("assistant", answer)]

    def _context(self, text: str, recalled: Sequence[Episode], searches: Sequence[Search]) -> Context:
        length = self.speaker.context_length
        answer = min(self.sampling.max_new_tokens, length // 4)
        return assemble(
            self.speaker.count,
            length - answer - self.speaker.overhead,
            self.agent.shares,
            system=self.agent.system,
            newest=text,
            history=self.turns,
            memories=[episode.text for episode in recalled],
            searches=searches,
        )

    def _turn(self, context: Context) -> Iterator[Said | Finished | _Called]:
        """What the model says: an answer as it comes, or a call once it is whole."""
        # Another seed at each turn, so that asking again can give another answer.
        sampling = dataclasses.replace(self.sampling, seed=self.sampling.seed + len(self.turns))
        speech = self.speaker.speak(context.messages, sampling)
        held: str | None = ""  # what may still become a call; None once it is an answer
        try:
            while True:
                try:
                    piece = next(speech)
                except StopIteration as end:
                    finish: Finish = end.value
                    break
                if held is None:
                    yield Said(piece)
                elif not may_be_call(held + piece):
                    yield Said((held + piece).lstrip())
                    held = None
                else:
                    held += piece
        finally:
            speech.close()
        if held and (query := parse_call(held)) is not None:
            yield _Called(query)
            return
        if held and held.strip():
            yield Said(held.lstrip())
        yield Finished(finish)

    def _usable(self, query: str, text: str) -> str:
        """`query`, if it is about what the person said; else their question as they asked it.

        Only the line that asks counts: what stands around it, such as a letter to be explained, stays at home.
        """
        said = [_asking_line(turn.content) for turn in self.turns if turn.role == "user"]
        asked = _asking_line(text)
        return query if is_about(query, [asked, *said]) else question_query(asked)

    def _search(self, query: str, searches: list[Search]) -> Iterator[Searching | Searched]:
        if self.searcher is None:
            searches.append(Search(call(query), lambda budget, first: Fitted(SEARCH_IS_OFF)))
            yield Searched(query, Outcome("blocked", detail=SEARCH_IS_OFF))
            return
        yield Searching(query)
        try:
            outcome = self.searcher.search(query)
        except EnlaceError as error:  # no words in it, or nowhere to keep the manners: no reason not to answer
            outcome = Outcome("unreachable", detail=str(error))
        searches.append(Search(call(query), lambda budget, first: self._fitted(outcome, budget, first)))
        yield Searched(query, outcome)

    def _fitted(self, outcome: Outcome, budget: int, first: int) -> Fitted:
        """The result of a search as the model reads it, in at most `budget` tokens."""
        count, config = self.speaker.count_text, self.agent.search
        if not outcome.results:
            return Fitted(for_model(outcome, count, budget, config))
        given = budget  # for the same results in the words of `agent.search`, a little shorter than ours
        while sources := fit(outcome.results, count, given, config):
            lines = [source_line(first + i, r.title, r.host, r.snippet) for i, r in enumerate(sources)]
            if (excess := count(text := "\n".join(lines)) - budget) <= 0:
                return Fitted(text, sources, len(outcome.results) - len(sources))
            given -= excess
        return Fitted("", (), len(outcome.results))

    def _recall(self, text: str) -> list[Episode]:
        """What is remembered about `text` and is not before the model anyway."""
        if self.memory is None or self.agent.memory.recall == 0:
            return []
        present = [text, *(turn.content for turn in self.turns)]
        return self.memory.recall(text, self.agent.memory.recall, exclude=present)

    def _remember(self, text: str) -> None:
        """Keep what the person told; a question tells nothing about the house, and what the model says is no fact."""
        if self.memory is not None and not text.strip().endswith("?"):
            self.memory.write(Episode(self.clock(), "user", text))


def _asking_line(text: str) -> str:
    """The line of `text` that asks: the last with a question mark at its end, else the first."""
    lines = text.strip().splitlines() or [""]
    return next((line for line in reversed(lines) if line.rstrip().endswith("?")), lines[0])


@dataclass(frozen=True)
class _Called:
    """The model wants to search."""

    query: str


def open_chat(agent: AgentConfig, model_folder: Path, sampling: Sampling, *, memory: bool = True) -> Chat:
    """A conversation as `configs/agent` says; with `memory`, one that remembers. Raises EnlaceError without a model."""
    speaker = open_speaker(agent, model_folder)
    searcher = Searcher.from_config(agent.search) if agent.max_searches else None
    kept = Memory.from_config(agent.memory) if memory else None
    return Chat(speaker, agent, sampling, searcher, kept)


def sources_of(events: Sequence[Event]) -> tuple[Result, ...]:
    """The sources of an answer: those of the last context that the model read."""
    return next((event.context.sources for event in reversed(events) if isinstance(event, Read)), ())
