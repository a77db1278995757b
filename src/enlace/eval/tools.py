"""Does the model search when it has to, and only then, and for what was asked? And does it answer from what it finds?

Over held-out questions about a document, each asked twice: without its text, which needs a search, and with it, which
needs none.
"""

from __future__ import annotations

from collections.abc import Iterable

from enlace.data.chat import encode_prompt
from enlace.data.conversations import Conversation
from enlace.data.dedup import is_held_out
from enlace.data.tool_turns import as_search
from enlace.data.tools import is_about, parse_call
from enlace.eval.greedy import likeliest_turns
from enlace.eval.grounded import word_f1
from enlace.eval.statistics import mean
from enlace.export.trained import Trained


def tool_figures(
    trained: Trained,
    conversations: Iterable[Conversation],
    val_fraction: float,
    max_conversations: int,
    max_new_tokens: int,
) -> dict[str, float]:
    """Shares, over the held-out questions that can be searched for; empty where there are none that fit."""
    limit = trained.context_length - max_new_tokens
    pairs = [
        (conversation.messages[:-1], turned.messages)
        for conversation in conversations
        if is_held_out(conversation.document_hash, val_fraction) and (turned := as_search(conversation))
    ]
    fitting = [
        pair
        for pair in pairs
        if all(len(encode_prompt(trained.tokenizer, prompt)) < limit for prompt in (pair[0], pair[1][:-1]))
    ][:max_conversations]
    if not fitting:
        return {}
    searches = [search for _, search in fitting]
    alone, with_text, after = (
        likeliest_turns(trained, prompts, max_new_tokens, "Búsquedas")
        for prompts in ([s[:-3] for s in searches], [direct for direct, _ in fitting], [s[:-1] for s in searches])
    )
    queries = [parse_call(turn) for turn in alone]
    usable = [q is not None and is_about(q, [s[-4].content]) for q, s in zip(queries, searches, strict=True)]
    return {
        "questions": len(fitting),
        "called_when_needed": mean([query is not None for query in queries]),
        "called_needlessly": mean([parse_call(turn) is not None for turn in with_text]),
        "usable_query": mean(usable),
        "answer_from_result_f1": mean([word_f1(turn, s[-1].content) for turn, s in zip(after, searches, strict=True)]),
    }
