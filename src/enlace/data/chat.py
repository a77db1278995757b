"""ChatML: conversations as ids, built from parts, so that nothing a person types can forge a marker.

    <|im_start|>user\\n¿Qué es el mate?<|im_end|>\\n<|im_start|>assistant\\nUna infusión...<|im_end|>\\n

A search takes two turns between question and answer: the call, said by the assistant, and the result, by `tool` (what
is in them: `data.tools`). Only what the model has to say itself is trained: each answer or call, and the <|im_end|>
that closes it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from enlace import EnlaceError
from enlace.data.clean import normalise
from enlace.data.tokenizer import Tokenizer

# The same rendering for other programs, which tokenise the rendered text as a whole: transformers (the generation tags
# mark what is trained) and llama.cpp (hence only for, if and set). No system prompt hides in it.
CHAT_TEMPLATE = (
    "{% set ns = namespace(before='system') %}"
    "{% for message in messages %}"
    "{% set role = message['role'] %}"
    "{% if not (loop.first and role == 'system') %}"
    "{% if not ((role == 'user' and (ns.before == 'system' or ns.before == 'assistant'))"
    " or (role == 'assistant' and (ns.before == 'user' or ns.before == 'tool'))"
    " or (role == 'tool' and ns.before == 'assistant')) %}"
    "{{ raise_exception('system (opcional) y luego user y assistant por turnos; tool, tras assistant') }}"
    "{% endif %}"
    "{% set ns.before = role %}"
    "{% endif %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' }}"
    "{% if message['role'] == 'assistant' %}"
    "{% generation %}{{ message['content'] + '<|im_end|>' }}{% endgeneration %}"
    "{% else %}{{ message['content'] + '<|im_end|>' }}{% endif %}"
    "{{ '\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


@dataclass(frozen=True)
class Message:
    """One turn; `role` is "system", "user", "assistant" or "tool" (the result of what the assistant called)."""

    role: str
    content: str


def encode_conversation(tokenizer: Tokenizer, messages: Sequence[Message]) -> tuple[list[int], list[int]]:
    """Ids of a whole conversation and their mask, of equal length: 1 for each id that the model learns to say.

    Raises:
        EnlaceError: roles out of order, an empty message, or no answer to learn from.
    """
    ids, mask = _encode(tokenizer, messages)
    if not any(mask):
        raise EnlaceError("La conversación no tiene ninguna respuesta (assistant) de la que aprender")
    return ids, mask


def encode_prompt(tokenizer: Tokenizer, messages: Sequence[Message]) -> list[int]:
    """Ids after which the model answers: the beginning of what `encode_conversation` gives once it is answered.

    Raises:
        EnlaceError: roles out of order, an empty message, or a last turn that is neither the user's nor a result.
    """
    ids, _ = _encode(tokenizer, messages)
    if (role := messages[-1].role) not in ("user", "tool"):
        raise EnlaceError(f"El último mensaje es de «{role}»; para responder tiene que ser de «user» o de «tool»")
    return ids + _header(tokenizer, "assistant")


def count_tokens(tokenizer: Tokenizer, message: Message) -> int:
    """Ids that `message` adds to a conversation. Turns are encoded apart, so those of several add up."""
    return sum(map(len, _turn(tokenizer, message)))


def prompt_overhead(tokenizer: Tokenizer) -> int:
    """Ids that `encode_prompt` adds to those of the messages: the beginning of the answer."""
    return len(_header(tokenizer, "assistant"))


def _encode(tokenizer: Tokenizer, messages: Sequence[Message]) -> tuple[list[int], list[int]]:
    _check(messages)
    ids: list[int] = []
    mask: list[int] = []
    for message in messages:
        header, body, newline = _turn(tokenizer, message)
        ids += header + body + newline
        mask += [0] * len(header) + [int(message.role == "assistant")] * len(body) + [0] * len(newline)
    return ids, mask


def _turn(tokenizer: Tokenizer, message: Message) -> tuple[list[int], list[int], list[int]]:
    body = [*tokenizer.encode(normalise(message.content)), tokenizer.im_end_id]
    return _header(tokenizer, message.role), body, tokenizer.encode("\n")


def _header(tokenizer: Tokenizer, role: str) -> list[int]:
    return [tokenizer.im_start_id, *tokenizer.encode(role + "\n")]


# Whose turn may follow whose.
_NEXT = {"system": ("user",), "user": ("assistant",), "assistant": ("user", "tool"), "tool": ("assistant",)}


def _check(messages: Sequence[Message]) -> None:
    turns = messages[1:] if messages and messages[0].role == "system" else messages
    if not turns:
        raise EnlaceError("La conversación está vacía: falta un mensaje de «user»")
    before = "system"
    for i, message in enumerate(turns):
        if message.role not in _NEXT[before]:
            expected = " o ".join(f"«{role}»" for role in _NEXT[before])
            raise EnlaceError(
                f"Turno {i + 1}: es de «{message.role}» y tocaba {expected}; el orden es system (opcional) y luego "
                f"user y assistant por turnos; entre ambos, las búsquedas: assistant y tool"
            )
        before = message.role
    for message in messages:
        if not normalise(message.content):
            raise EnlaceError(f"Un mensaje de «{message.role}» está vacío")
