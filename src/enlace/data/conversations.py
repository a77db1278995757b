"""Distilled conversations, as distill-collect leaves them in data/distill/conversations.jsonl."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from enlace import EnlaceError
from enlace.data.chat import Message
from enlace.data.clean import normalise
from enlace.data.dedup import document_hash
from enlace.data.jsonl import json_lines


@dataclass(frozen=True)
class Conversation:
    """A distilled question and answer; `document_hash` is that of the document they are about, if about one."""

    messages: tuple[Message, ...]
    document_hash: str
    kind: str = ""  # of question


def read_conversations(path: Path) -> Iterator[Conversation]:
    """The lines `{custom_id, system, user, assistant, meta}` of data/distill/conversations.jsonl.

    `meta.document_hash` says which document a conversation is about; without it the question stands for itself.
    Raises EnlaceError naming file and line.
    """
    for where, record in json_lines(path):
        match record:
            case {"system": str(system), "user": str(user), "assistant": str(assistant), "meta": dict(meta)}:
                turns = [Message("system", system)] if normalise(system) else []
                about = meta.get("document_hash", document_hash(user))
                if not (isinstance(about, str) and re.fullmatch("[0-9a-f]{16}", about)):
                    raise EnlaceError(f"{where}: meta.document_hash tiene que ser de 16 cifras hexadecimales")
                kind = str(record["meta"].get("kind", ""))
                yield Conversation((*turns, Message("user", user), Message("assistant", assistant)), about, kind)
            case _:
                raise EnlaceError(f"{where}: faltan system, user, assistant o meta; repite `dvc repro distill-collect`")
