"""Chats that a person keeps: one conversation a line, `{"messages": [{"role": ..., "content": ...}, ...]}`.

The layout that most programs train on (trl, the chat template of transformers); `chat.encode_conversation` takes what
is read here as it is.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from enlace import EnlaceError
from enlace.data.chat import Message
from enlace.durable import reason, write_atomic


def save_conversation(path: Path, messages: Sequence[Message]) -> None:
    """Add a conversation to the file `path`; one of which it is the continuation is replaced.

    Raises:
        EnlaceError: the file holds something else, or cannot be written; it stays as it was.
    """
    messages = list(messages)
    others = [saved for saved in read_saved(path) if saved != messages[: len(saved)]] if path.exists() else []
    write_atomic(path, "".join(_line(saved) for saved in [*others, messages]).encode())


def read_saved(path: Path) -> list[list[Message]]:
    """The conversations in the file `path`, the newest last. Raises EnlaceError naming file and line."""
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError as error:
        raise EnlaceError(f"{path}: no se puede leer ({reason(error)}).") from error
    return [_messages(line, f"{path}:{number}") for number, line in enumerate(lines, start=1) if line.strip()]


def _line(messages: Sequence[Message]) -> str:
    turns = [{"role": message.role, "content": message.content} for message in messages]
    return json.dumps({"messages": turns}, ensure_ascii=False) + "\n"


def _messages(line: bytes, where: str) -> list[Message]:
    try:
        match json.loads(line):
            case {"messages": [*turns]} if turns:
                return [_message(turn) for turn in turns]
    except (ValueError, TypeError):
        pass
    raise EnlaceError(f"{where}: no es una conversación guardada con /guardar.")


def _message(turn: object) -> Message:
    match turn:
        case {"role": "system" | "user" | "assistant" | "tool" as role, "content": str(content)}:
            content.encode()  # a lone surrogate is no text
            return Message(role, content)
    raise TypeError
