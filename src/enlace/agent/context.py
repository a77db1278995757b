"""What the model reads before it answers, within its context: each part has its share, counted in tokens.

    system (and memories) · history · the newest turn · its searches: call, result, ...

The system text and the newest turn are never dropped. What else does not fit is dropped whole, oldest or least
relevant first, and counted, so that it can be shown.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from enlace import EnlaceError
from enlace.agent.search import Result
from enlace.config.schema import ContextShares
from enlace.data.chat import Message
from enlace.data.tools import as_data

MEMORIES = "Recuerdos de la casa:"
NO_ROOM = "No cabe."  # the result of a search when not even one word of it fits

Count = Callable[[Message], int]


@dataclass(frozen=True)
class Fitted:
    """The result of a search, cut to what it was given."""

    text: str
    sources: tuple[Result, ...] = ()  # those that the model reads, by their numbers
    dropped: int = 0  # results that did not fit


@dataclass(frozen=True)
class Search:
    """A search of this turn: what the assistant called, and its result in so many tokens, numbered from a first one."""

    call: str
    result: Callable[[int, int], Fitted]


@dataclass(frozen=True)
class Part:
    """How much of the context something takes."""

    name: str
    share: int  # tokens that are its own
    tokens: int = 0  # that it takes
    kept: int = 0
    dropped: int = 0


@dataclass(frozen=True)
class Context:
    """What the model reads."""

    messages: tuple[Message, ...]
    parts: tuple[Part, ...]
    room: int  # tokens for all the parts
    sources: tuple[Result, ...] = ()
    memories: tuple[int, ...] = ()  # which of those given are in it

    @property
    def dropped_turns(self) -> int:
        """Turns of the conversation that the model does not see."""
        return next(part.dropped for part in self.parts if part.name == "historia")


@dataclass
class _Budget:
    """What is still free, and what was taken."""

    free: int
    parts: list[Part] = field(default_factory=list)

    def take(self, part: Part, tokens: int, kept: int, dropped: int) -> None:
        self.free -= tokens
        self.parts.append(replace(part, tokens=tokens, kept=kept, dropped=dropped))


def assemble(
    count: Count,
    room: int,
    shares: ContextShares,
    *,
    system: str,
    newest: str,
    history: Sequence[Message] = (),
    memories: Sequence[str] = (),
    searches: Sequence[Search] = (),
) -> Context:
    """The context for the next turn of the assistant.

    Args:
        count: tokens that a message takes in the conversation.
        room: tokens for all of it, what the answer needs taken off.
        system: the system text; empty for none.
        newest: what the person has just said.
        history: earlier turns, user and assistant alternating, oldest first.
        memories: what is remembered, most relevant first.
        searches: those of this turn, in order.

    Raises:
        EnlaceError: the system text and the newest turn do not fit by themselves.
    """
    own = {name: int(share * room) for name, share in shares.model_dump().items()}
    base = [Message("system", system)] if system else []
    question = Message("user", newest)
    system_tokens, newest_tokens = sum(map(count, base)), count(question)
    budget = _Budget(room)
    budget.take(Part("sistema", own["system"]), system_tokens, len(base), 0)
    budget.take(Part("mensaje nuevo", own["newest"]), newest_tokens, 1, 0)
    if budget.free < 0:
        raise EnlaceError(
            f"El mensaje es demasiado largo: el modelo lee {room} tokens antes de responder y hacen falta "
            f"{system_tokens + newest_tokens}. Acórtalo."
        )
    tool_turns, sources = _searches(count, budget, Part("búsquedas", own["tools"]), searches)
    remembered, kept = _memories(count, budget, Part("recuerdos", own["memories"]), base, memories)
    earlier = _history(count, budget, Part("historia", own["history"]), history)
    return Context((*remembered, *earlier, question, *tool_turns), tuple(budget.parts), room, sources, kept)


def _searches(
    count: Count, budget: _Budget, part: Part, searches: Sequence[Search]
) -> tuple[list[Message], tuple[Result, ...]]:
    left = limit = min(part.share, budget.free)
    turns: list[Message] = []
    sources: list[Result] = []
    dropped = 0
    for i, search in enumerate(searches):
        call = Message("assistant", search.call)
        # The last takes what the others left of theirs.
        for_text = left // (len(searches) - i) - count(call) - count(Message("tool", ""))
        fitted = search.result(max(for_text, 0), len(sources) + 1)
        result = Message("tool", fitted.text or NO_ROOM)
        turns += [call, result]
        sources += fitted.sources
        dropped += fitted.dropped
        left -= count(call) + count(result)
    if budget.free < limit - left:
        raise EnlaceError("El mensaje es demasiado largo: no deja sitio para lo que se busca. Acórtalo.")
    budget.take(part, limit - left, len(sources), dropped)
    return turns, tuple(sources)


def _memories(
    count: Count, budget: _Budget, part: Part, base: list[Message], memories: Sequence[str]
) -> tuple[list[Message], tuple[int, ...]]:
    """The system turn with the memories that fit, and which these are: one that is too long keeps no other out."""
    limit = min(part.share, budget.free)
    before = sum(map(count, base))
    lines = [*(message.content for message in base), MEMORIES]
    turns, tokens, kept = base, 0, []
    for i, memory in enumerate(memories):
        longer = [*lines, f"- {as_data(memory)}"]
        turn = Message("system", "\n".join(longer))
        if (needed := count(turn) - before) <= limit:
            turns, tokens, lines = [turn], needed, longer
            kept.append(i)
    budget.take(part, tokens, len(kept), len(memories) - len(kept))
    return turns, tuple(kept)


def _history(count: Count, budget: _Budget, part: Part, history: Sequence[Message]) -> Sequence[Message]:
    """The newest turns that fit in all that is left, in pairs."""
    sizes = [count(message) for message in history]
    start = next(start for start in range(0, len(sizes) + 2, 2) if sum(sizes[start:]) <= budget.free)
    budget.take(part, sum(sizes[start:]), len(sizes[start:]), min(start, len(sizes)))
    return history[start:]
