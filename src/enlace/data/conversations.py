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
    document: str = ""  # its id, "<source>:<title>"


def read_conversations(path: Path) -> Iterator[Conversation]:
    """The lines `{custom_id, system, user, assistant, meta}` of data/distill/conversations.jsonl.

    `meta.document_hash` says which document a conversation is about; without it, the text that it carries does.
    Raises EnlaceError naming file and line.
    """
    for where, record in json_lines(path, made_by="distill-collect"):
        match record:
            case {"system": str(system), "user": str(user), "assistant": str(assistant), "meta": dict(meta)}:
                turns = [Message("system", system)] if normalise(system) else []
                about = meta.get("document_hash", _passage_hash(user))
                if not (isinstance(about, str) and re.fullmatch("[0-9a-f]{16}", about)):
                    raise EnlaceError(
                        f"{where}: meta.document_hash tiene que ser de 16 cifras hexadecimales; si está así en "
                        f"data/specs, corrígelo o quítalo ahí, y repite `dvc repro -f distill-collect`"
                    )
                yield Conversation(
                    (*turns, Message("user", user), Message("assistant", assistant)),
                    about,
                    kind=str(meta.get("kind", "")),
                    document=str(meta.get("document", "")),
                )
            case _:
                raise EnlaceError(f"{where}: faltan system, user, assistant o meta; repite `dvc repro distill-collect`")


def _passage_hash(user: str) -> str:
    """Hash of the passage of a request "Texto: …\\n\\nPregunta: …"; of any other request, all of it.

    Several questions on one passage fall on one side of the split, and so does a document that says the same.
    """
    passage, mark, _ = user.rpartition("\n\nPregunta:")
    return document_hash(passage.removeprefix("Texto:") if mark else user)
