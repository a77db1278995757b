"""The unit of work: a block of a file of data/raw, cleaned, and later encoded. Finished units are not done again.

    <work>/<unit>.txt           the texts that stay, one after another, UTF-8
    <work>/<unit>.npy           one record of `UNIT` each
    <work>/<unit>.bands.npy     band keys, shape (14, documents), where near duplicates are looked for
    <work>/<unit>.json          the report, written last: what the unit was made of, and what the rules did
    <work>/<unit>.<digest>.ids           ids of the documents that were chosen, "<u2", each with its <|endoftext|>
    <work>/<unit>.<digest>.lengths.npy   how many each has; written last

Every file is written to another name and renamed. A unit is known by a digest of what it was made of: its block, the
configuration, the evaluation sets and the source of this package, so an old one is never taken for a new one.
"""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import numpy.typing as npt

from enlace import EnlaceError
from enlace.config.rules import MAX_VOCAB_SIZE
from enlace.config.schema import CleanConfig
from enlace.data.decontaminate import EvalSet
from enlace.data.documents import Document, parse_document
from enlace.data.filters import Report, clean_batch
from enlace.data.near import BANDS, band_keys
from enlace.data.shards import beside
from enlace.data.tokenizer import Tokenizer
from enlace.durable import write_atomic

UNIT_BYTES = 4 * 2**20
_BATCH_CHARS = 2**20
UNIT = np.dtype([("key", ">u8"), ("digest", "<u8"), ("start", "<u8"), ("length", "<u4")])
ENCODED = np.dtype("<u2")
Block = tuple[str, Path, int, int]  # name, file and range of bytes of a unit


@dataclass(frozen=True)
class CleanTask:
    """Clean one block: the lines of `path` that begin in [start, end)."""

    work: Path
    name: str
    path: Path
    start: int
    end: int
    recipe: str  # digest of all that decides the result, but the block
    rules: CleanConfig
    min_chars: int
    evals: EvalSet


@dataclass(frozen=True)
class EncodeTask:
    """Encode the documents `chosen` (positions) of one cleaned unit, with the tokenizer of this file and digest."""

    work: Path
    name: str
    tokenizer: Path
    tokenizer_sha256: str
    chosen: npt.NDArray[np.int64]


@dataclass(frozen=True)
class Done:
    """A finished unit and its files, but for their suffix; `again` when they were there already."""

    name: str
    base: Path
    again: bool


def source_digest() -> str:
    """Digest of the source of this package: other code, other units."""
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def split_in_units(paths: Sequence[Path], unit_bytes: int) -> Iterator[Block]:
    """The units of some files."""
    for path in paths:
        size = path.stat().st_size
        for number, start in enumerate(range(0, size, unit_bytes)):
            yield f"{path.stem}-{number:05d}", path, start, min(start + unit_bytes, size)


def clean_unit(task: CleanTask) -> Done:
    """Clean a block and write its files, unless they are there and made of the same."""
    lines = _lines(task.path, task.start, task.end)
    digest = hashlib.sha256(task.recipe.encode())
    for line in lines:
        digest.update(line)
    made_of, base = digest.hexdigest(), task.work / task.name
    if unit_report(base, made_of) is not None:
        return Done(task.name, base, True)
    # Another recipe's report must not vouch for the files that are written from here on.
    beside(base, ".json").unlink(missing_ok=True)
    report = Report()
    rows: list[tuple[bytes, bytes, int, int]] = []
    bands: list[npt.NDArray[np.uint64]] = [np.zeros((BANDS, 0), np.uint64)]
    texts = bytearray()
    for documents in _batches(lines, task.path):
        kept = clean_batch(documents, task.rules, task.min_chars, task.evals, report)
        for text, key, clean in zip(kept.texts, kept.keys, kept.digests, strict=True):
            data = text.encode("utf-8")
            rows.append((key, clean, len(texts), len(data)))
            texts += data
        if task.rules.near_duplicates is not None and kept.texts:
            bands.append(band_keys(kept.words))
    table = np.zeros(len(rows), dtype=UNIT)
    table["key"] = np.frombuffer(b"".join(row[0] for row in rows), ">u8")
    table["digest"] = np.frombuffer(b"".join(row[1] for row in rows), "<u8")
    table["start"], table["length"] = [row[2] for row in rows], [row[3] for row in rows]
    write_atomic(beside(base, ".txt"), bytes(texts))
    write_atomic(beside(base, ".npy"), _npy(table))
    if task.rules.near_duplicates is not None:
        write_atomic(beside(base, ".bands.npy"), _npy(np.concatenate(bands, axis=1)))
    content = {"made_of": made_of, "report": report.to_json()}
    write_atomic(beside(base, ".json"), json.dumps(content, ensure_ascii=False).encode())
    return Done(task.name, base, False)


def encode_unit(task: EncodeTask) -> Done:
    """Encode the chosen documents of a cleaned unit, unless that was done."""
    base = task.work / task.name
    recipe = task.tokenizer_sha256.encode() + task.chosen.tobytes() + beside(base, ".json").read_bytes()
    out = task.work / f"{task.name}.{hashlib.sha256(recipe).hexdigest()[:16]}"
    if beside(out, ".lengths.npy").exists():
        return Done(task.name, out, True)
    tokenizer = _tokenizer(task.tokenizer, task.tokenizer_sha256)
    table, texts = np.load(beside(base, ".npy")), beside(base, ".txt").read_bytes()
    parts, lengths = [np.zeros(0, ENCODED)], []
    for row in table[task.chosen]:
        text = texts[int(row["start"]) : int(row["start"]) + int(row["length"])].decode("utf-8")
        ids = np.array([*tokenizer.encode(text), tokenizer.end_of_text_id], dtype=np.int64)
        if ids.max() >= MAX_VOCAB_SIZE:  # a cast would wrap around in silence
            raise EnlaceError(f"{task.name}: hay identificadores de {MAX_VOCAB_SIZE} o más, que no caben en uint16")
        parts.append(ids.astype(ENCODED))
        lengths.append(len(ids))
    write_atomic(beside(out, ".ids"), np.concatenate(parts).tobytes())
    write_atomic(beside(out, ".lengths.npy"), _npy(np.array(lengths, dtype=np.int64)))
    return Done(task.name, out, False)


@lru_cache(maxsize=1)
def _tokenizer(path: Path, sha256: str) -> Tokenizer:
    """Loaded once for all units of a worker, which takes as long as encoding a quarter of one."""
    tokenizer = Tokenizer.load(path)
    if tokenizer.sha256 != sha256:
        raise EnlaceError(f"{path}: cambió mientras se usaba; repite `dvc repro build-shards`")
    return tokenizer


def unit_report(base: Path, made_of: str | None = None) -> Report | None:
    """The report of a finished unit; None when it is not there, or made of something else than `made_of`."""
    try:
        content = json.loads(beside(base, ".json").read_bytes())
    except FileNotFoundError:
        return None
    return Report.from_json(content["report"]) if made_of in (None, content["made_of"]) else None


def _npy(array: npt.NDArray[np.generic]) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()


def _lines(path: Path, start: int, end: int) -> list[bytes]:
    """The lines that begin in [start, end)."""
    with path.open("rb") as file:
        if start:
            file.seek(start - 1)
            file.readline()  # the rest of the line that holds the byte before
        lines = []
        while file.tell() < end and (line := file.readline()):
            lines.append(line)
    return lines


def _batches(lines: Sequence[bytes], path: Path) -> Iterator[list[Document]]:
    batch: list[Document] = []
    size = 0
    for line in lines:
        batch.append(parse_document(line, path))
        size += len(line)
        if size >= _BATCH_CHARS:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch
