"""ChatML: conversations as ids, built from parts, so that nothing a person types can forge a marker.

    <|im_start|>user\\n¿Qué es el mate?<|im_end|>\\n<|im_start|>assistant\\nUna infusión...<|im_end|>\\n

Only what the model has to say itself is trained: each answer and the <|im_end|> that closes it.
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
    "{% set ns = namespace(expected='user') %}"
    "{% for message in messages %}"
    "{% if not (loop.first and message['role'] == 'system') %}"
    "{% if message['role'] != ns.expected %}"
    "{{ raise_exception('system (opcional) y luego user y assistant por turnos') }}"
    "{% endif %}"
    "{% if ns.expected == 'user' %}{% set ns.expected = 'assistant' %}"
    "{% else %}{% set ns.expected = 'user' %}{% endif %}"
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
    """One turn; `role` is "system", "user" or "assistant"."""

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
        EnlaceError: roles out of order, an empty message, or a last turn that is not the user's.
    """
    ids, _ = _encode(tokenizer, messages)
    if (role := messages[-1].role) != "user":
        raise EnlaceError(f"El último mensaje es de «{role}»; para responder tiene que ser de «user»")
    return ids + _header(tokenizer, "assistant")


def _encode(tokenizer: Tokenizer, messages: Sequence[Message]) -> tuple[list[int], list[int]]:
    _check(messages)
    newline = tokenizer.encode("\n")
    ids: list[int] = []
    mask: list[int] = []
    for message in messages:
        header = _header(tokenizer, message.role)
        body = [*tokenizer.encode(normalise(message.content)), tokenizer.im_end_id]
        ids += header + body + newline
        mask += [0] * len(header) + [int(message.role == "assistant")] * len(body) + [0] * len(newline)
    return ids, mask


def _header(tokenizer: Tokenizer, role: str) -> list[int]:
    return [tokenizer.im_start_id, *tokenizer.encode(role + "\n")]


def _check(messages: Sequence[Message]) -> None:
    turns = messages[1:] if messages and messages[0].role == "system" else messages
    if not turns:
        raise EnlaceError("La conversación está vacía: falta un mensaje de «user»")
    for i, message in enumerate(turns):
        if message.role != (expected := ("user", "assistant")[i % 2]):
            raise EnlaceError(
                f"Turno {i + 1}: es de «{message.role}» y tocaba «{expected}»; el orden es system (opcional) y luego "
                f"user y assistant por turnos"
            )
    for message in messages:
        if not normalise(message.content):
            raise EnlaceError(f"Un mensaje de «{message.role}» está vacío")
