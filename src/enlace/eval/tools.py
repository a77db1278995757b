"""Does the model search when it has to, and only then, and for what was asked? And does it answer from what it finds?

Over held-out questions about a document, each asked twice: without its text, which needs a search, and with it, which
needs none.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from enlace.data.chat import Message, encode_prompt
from enlace.data.conversations import Conversation
from enlace.data.dedup import is_held_out
from enlace.data.tool_turns import as_search
from enlace.data.tools import is_about, may_be_call, parse_call
from enlace.eval.grounded import word_f1
from enlace.export.trained import Trained
from enlace.model.generate import Sampling, generate


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
    called = usable = needless = 0
    found = 0.0
    for direct, search in fitting:
        *asked, _, _, answer = search
        query = _called(trained, asked, max_new_tokens)
        called += query is not None
        usable += query is not None and is_about(query, [asked[-1].content])
        needless += _called(trained, direct, max_new_tokens) is not None
        found += word_f1(_said(trained, search[:-1], max_new_tokens), answer.content)
    n = len(fitting)
    return {
        "questions": n,
        "called_when_needed": called / n,
        "called_needlessly": needless / n,
        "usable_query": usable / n,
        "answer_from_result_f1": found / n,
    }


def _called(trained: Trained, prompt: Sequence[Message], max_new_tokens: int) -> str | None:
    """What the model searches for after `prompt`; None when its turn is no call. Stops as soon as it cannot be one."""
    decoder = trained.tokenizer.decode_stream()
    said = ""
    for token in _tokens(trained, prompt, max_new_tokens):
        said += decoder.push(token)
        if not may_be_call(said):
            return None
    return parse_call(said)


def _said(trained: Trained, prompt: Sequence[Message], max_new_tokens: int) -> str:
    return trained.tokenizer.decode(_tokens(trained, prompt, max_new_tokens))


def _tokens(trained: Trained, prompt: Sequence[Message], max_new_tokens: int) -> Iterable[int]:
    """The likeliest turn."""
    sampling = Sampling(max_new_tokens, temperature=0, top_p=1, seed=0)
    ids = encode_prompt(trained.tokenizer, prompt)
    return generate(trained.model, ids, sampling, trained.stop_ids, trained.context_length)
