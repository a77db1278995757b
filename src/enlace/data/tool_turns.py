"""Grounded conversations turned into searches, so that the model learns when to search, and to answer from a result.

A question that carries its text is answered from it; the same kind of question without a text is searched for first.
Which ones are which is decided by hash: the same conversations give the same turns, and a held-out one stays so.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from hashlib import blake2b

from enlace.config.schema import ToolsConfig
from enlace.data.chat import Message
from enlace.data.conversations import Conversation
from enlace.data.tools import NO_RESULTS, call, question_query, source_line

NOT_FOUND = "No lo he encontrado."

_GROUNDED = re.compile(r"Texto: (?P<passage>.+)\n\nPregunta: (?P<question>[^\n]+)", re.DOTALL)


def with_searches(conversations: Iterable[Conversation], config: ToolsConfig) -> Iterator[Conversation]:
    """The conversations, `config.searches` of those that can be searches turned into one.

    Of these, `config.not_found` find nothing, and the answer says so.
    """
    for conversation in conversations:
        place = _place(conversation)
        search = None
        if place < config.searches:
            search = as_search(conversation, found=place >= config.searches * config.not_found)
        yield search or conversation


def as_search(conversation: Conversation, *, found: bool = True) -> Conversation | None:
    """A question about a document, asked without its text: the call, the result, the answer.

    None for a conversation of another kind, or whose question makes no sense without the text ("¿de qué habla el
    texto?").
    """
    *system, user, answer = conversation.messages
    match = _GROUNDED.fullmatch(user.content)
    source, _, title = conversation.document.partition(":")
    if not match or not title or re.search(r"\btexto\b", match["question"]):
        return None
    result = source_line(1, title, source, match["passage"]) if found else NO_RESULTS
    turns = (
        *system,
        Message("user", match["question"]),
        Message("assistant", call(question_query(match["question"]))),
        Message("tool", result),
        answer if found else Message("assistant", NOT_FOUND),
    )
    return replace(conversation, messages=turns)


def _place(conversation: Conversation) -> float:
    """Where a conversation falls between 0 and 1, by its text alone."""
    text = "\0".join(message.content for message in conversation.messages)
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest()) / 2**64
