"""Texts and records out of files: .txt, .html, .jsonl and .parquet, the first three also .gz or .zst.

Nothing is taken from a damaged file: archives are read to their end before their first document goes on, since a cut
.gz gives most of its lines before it complains.
"""

from __future__ import annotations

import gzip
import re
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path, PurePath
from typing import Any, BinaryIO, cast

from enlace import EnlaceError
from enlace.data.faults import Faults
from enlace.data.jsonl import BOM, MAX_LINE, json_records
from enlace.durable import reason

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

READ = ".txt, .html, .jsonl o .parquet (también .gz o .zst)"
_TEXT, _HTML = (".txt",), (".html", ".htm")
_PACKED = (".gz", ".zst")
_DAMAGED = (EOFError, gzip.BadGzipFile, zlib.error, zstd.ZstdError, OSError, ValueError)
_NOT_TEXT = ["head", "script", "style", "nav", "header", "footer", "aside", "form", "noscript", "svg", "button"]
_BLOCKS = "p,li,dd,dt,td,th,tr,div,br,pre,blockquote,section,article,figcaption,h1,h2,h3,h4,h5,h6"
_CHUNK = 2**20

Content = str | tuple[str, dict[str, Any]]  # a whole text, or a record with its number ("7" of "file:7")


def kind_of(path: PurePath) -> str | None:
    """The suffix that says how `path` is read (".txt", ".html", ".jsonl", ".parquet"); None: it is not."""
    name = path.name.lower()
    packed = PurePath(name).suffix
    if packed in _PACKED and not name.endswith(".parquet" + packed):
        name = name.removesuffix(packed)
    suffix = PurePath(name).suffix
    if suffix in _HTML:
        return ".html"
    return suffix if suffix in (".txt", ".jsonl", ".parquet") else None


def read_file(path: Path, text_field: str, faults: Faults) -> Iterator[Content]:
    """What is in one file: its text, or its records one by one.

    A file that is damaged, or not UTF-8, or cannot be opened gives nothing and is one fault; a bad line is one too.
    """
    try:
        if kind_of(path) == ".parquet":
            yield from _parquet(path, text_field, faults)
        elif kind_of(path) == ".jsonl":
            if path.suffix.lower() in _PACKED:
                _read_to_the_end(path)
            with _open(path) as file:
                for where, record in json_records(file, str(path), faults):
                    yield where.rpartition(":")[2], record
        elif (text := _text(path, faults)) is not None:
            yield text
    except _DAMAGED as error:
        faults.add(str(path), _cause(error), whole_file=True)


def _open(path: Path) -> BinaryIO:
    match path.suffix.lower():
        case ".gz":
            return cast(BinaryIO, gzip.open(path, "rb"))
        case ".zst":
            return cast(BinaryIO, zstd.open(path, "rb"))
    return path.open("rb")


def _read_to_the_end(path: Path) -> None:
    with _open(path) as file:
        while file.read(_CHUNK):
            pass


def _text(path: Path, faults: Faults) -> str | None:
    with _open(path) as file:
        data = file.read(MAX_LINE + 1).removeprefix(BOM)
    if len(data) > MAX_LINE:
        faults.add(str(path), f"pasa de {MAX_LINE // 2**20} MB; pártelo en documentos o hazlo .jsonl", whole_file=True)
        return None
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        faults.add(f"{path}:{line}", "no es UTF-8; guarda el archivo en UTF-8", whole_file=True)
        return None
    return html_text(data) if kind_of(path) == ".html" else text


def html_text(data: bytes) -> str:
    """The text of a page, a line for each block, without menus, forms, headers and footers."""
    from selectolax.lexbor import LexborHTMLParser

    tree = LexborHTMLParser(data)
    tree.strip_tags(_NOT_TEXT)
    if tree.body is None:
        return ""
    for node in tree.body.css(_BLOCKS):
        node.insert_before("\0")
        node.insert_after("\0")
    lines = re.sub(r"\s+", " ", tree.body.text()).split("\0")
    return "\n".join(line.strip() for line in lines if line.strip())


def _parquet(path: Path, text_field: str, faults: Faults) -> Iterator[Content]:
    try:
        import pyarrow as arrow
        import pyarrow.parquet as parquet
    except ImportError:
        raise EnlaceError(f"{path}: para leer .parquet hace falta pyarrow: pip install -e '.[parquet]'") from None
    try:
        with parquet.ParquetFile(path) as file:
            names = set(file.schema_arrow.names)
            if text_field not in names:
                faults.add(
                    str(path), f"falta la columna «{text_field}»; hay: {', '.join(sorted(names))}", whole_file=True
                )
                return
            columns = [
                field.name
                for field in file.schema_arrow
                if field.name == text_field
                or arrow.types.is_string(field.type)
                or arrow.types.is_large_string(field.type)
            ]
            for _ in file.iter_batches(batch_size=1000, columns=columns):  # to the end, before anything is taken
                pass
            number = 0
            for batch in file.iter_batches(batch_size=1000, columns=columns):
                for record in batch.to_pylist():
                    number += 1
                    text = record[text_field]
                    if isinstance(text, bytes):
                        try:
                            record[text_field] = text.decode("utf-8")
                        except UnicodeDecodeError:
                            faults.add(f"{path}:{number}", "no es UTF-8; guarda esa columna como texto")
                            continue
                    yield str(number), record
    except (arrow.ArrowException, OSError, UnicodeDecodeError) as error:
        if isinstance(error, OSError) and error.errno:  # of the disk; arrow's own, about the content, have no number
            raise
        faults.add(str(path), f"el archivo está dañado o no es .parquet ({type(error).__name__})", whole_file=True)


def _cause(error: Exception) -> str:
    if isinstance(error, EOFError):
        return "el archivo está cortado; descárgalo o cópialo otra vez"
    if isinstance(error, OSError) and not isinstance(error, gzip.BadGzipFile):
        return f"no se puede leer ({reason(error)})"
    return "el archivo está dañado; descárgalo o cópialo otra vez"
