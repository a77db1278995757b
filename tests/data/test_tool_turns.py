from dataclasses import replace

import pytest

from enlace.config.schema import ToolsConfig
from enlace.data.chat import Message
from enlace.data.conversations import Conversation
from enlace.data.tool_turns import NOT_FOUND, as_search, with_searches

SYSTEM = Message("system", "Solo con lo que dice el texto.")


def _grounded(n: int = 1, question: str = "¿Qué es el mate?") -> Conversation:
    user = f"Texto: El mate {n} es una infusión.\n\nPregunta: {question}"
    turns = (SYSTEM, Message("user", user), Message("assistant", "una infusión"))
    return Conversation(turns, f"{n:016x}", "definition", f"casa:Mate {n}")


def test_a_grounded_question_becomes_a_search() -> None:
    search = as_search(_grounded())
    assert search is not None
    assert search.messages == (
        SYSTEM,
        Message("user", "¿Qué es el mate?"),
        Message("assistant", "buscar: Qué es el mate"),
        Message("tool", "[1] Mate 1 (casa): El mate 1 es una infusión."),
        Message("assistant", "una infusión"),
    )
    assert replace(search, messages=_grounded().messages) == _grounded(), "the rest, its side of the split too, stays"


def test_a_search_that_finds_nothing_is_answered_so() -> None:
    search = as_search(_grounded(), found=False)
    assert search is not None
    assert search.messages[-2:] == (Message("tool", "Sin resultados."), Message("assistant", NOT_FOUND))


@pytest.mark.parametrize(
    "conversation",
    [
        _grounded(question="¿De qué habla el texto?"),
        replace(_grounded(), document=""),
        replace(_grounded(), document="casa:"),
        Conversation((Message("user", "¿Qué es el mate?"), Message("assistant", "una infusión")), "0" * 16, "", "a:b"),
    ],
    ids=["about the text itself", "of no document", "without title", "without text"],
)
def test_others_stay_as_they_are(conversation: Conversation) -> None:
    assert as_search(conversation) is None
    assert list(with_searches([conversation], ToolsConfig(searches=1.0, not_found=0.0))) == [conversation]


def test_the_shares_are_those_of_the_configuration_and_decided_by_hash() -> None:
    conversations = [_grounded(n) for n in range(1000)]
    config = ToolsConfig(searches=0.4, not_found=0.25)
    turned = list(with_searches(conversations, config))
    searches = [c for c in turned if len(c.messages) == 5]
    assert len(searches) == pytest.approx(400, abs=50)
    assert sum(c.messages[-1].content == NOT_FOUND for c in searches) == pytest.approx(100, abs=30)
    assert [c.document_hash for c in turned] == [c.document_hash for c in conversations]
    again = list(with_searches(reversed(conversations), config))
    assert again == turned[::-1], "each by itself, whatever comes before it"
    more = list(with_searches(conversations, ToolsConfig(searches=0.6, not_found=0.0)))
    assert all(len(b.messages) == 5 for a, b in zip(turned, more, strict=True) if len(a.messages) == 5)


def test_none_and_all() -> None:
    conversations = [_grounded(n) for n in range(20)]
    assert list(with_searches(conversations, ToolsConfig(searches=0.0, not_found=1.0))) == conversations
    everything = list(with_searches(conversations, ToolsConfig(searches=1.0, not_found=1.0)))
    assert {c.messages[-1].content for c in everything} == {NOT_FOUND}
