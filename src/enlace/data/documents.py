"""A document, and documents on disk: data/raw/<source>.jsonl."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from enlace import EnlaceError
from enlace.data.jsonl import json_lines

_KEYS = {"id", "text", "source", "meta"}


@dataclass(frozen=True)
class Document:
    """One text, the source it belongs to and whatever the source says about it (title, topic...)."""

    id: str
    text: str
    source: str
    meta: dict[str, str]


def read_documents(path: Path) -> Iterator[Document]:
    """The documents that `write_documents` left in `path`. Raises EnlaceError naming file and line."""
    for where, record in json_lines(path, made_by="fetch-corpus"):
        yield _document(record, where)


def parse_document(line: bytes, path: Path) -> Document:
    """The document of one line of such a file. Raises EnlaceError naming the file."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        record = None
    return _document(record, str(path))


def _document(record: object, where: str) -> Document:
    # Not a `match`, which takes longer than reading the JSON.
    if isinstance(record, dict) and record.keys() == _KEYS:
        id, text, source, meta = record["id"], record["text"], record["source"], record["meta"]
        if isinstance(id, str) and isinstance(text, str) and isinstance(source, str) and isinstance(meta, dict):
            return Document(id, text, source, meta)
    raise EnlaceError(f"{where}: no es un documento de ENLACE; repite `dvc repro -f fetch-corpus`")


def write_documents(path: Path, documents: Iterable[Document]) -> tuple[int, int]:
    """Write one JSON object a line; returns how many, and the bytes of their texts."""
    count = size = 0
    with path.open("wb") as file:
        for document in documents:
            line = json.dumps(asdict(document), ensure_ascii=False, sort_keys=True) + "\n"
            # JSON can spell half a surrogate pair ("\ud83d"); UTF-8 cannot, and no text loses by going without it.
            file.write(line.encode("utf-8", errors="ignore"))
            count += 1
            size += len(document.text.encode("utf-8", errors="ignore"))
    return count, size
