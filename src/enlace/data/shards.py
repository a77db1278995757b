"""Shards: tokenised text on disk, as a trainer reads it, and the manifest that says what is there.

    <dir>/manifest.json, tokenizer.json, sources.json (licences and attributions)
    <dir>/<split>/<stream>-00000.bin    ids, "<u2", nothing else
    <dir>/<split>/<stream>-00000.idx    "<u8": where each document ends within the shard, in tokens
    <dir>/<split>/<stream>-00000.mask   uint8, chat only: 1 for the ids that are trained

A stream is one source of the corpus or the conversations ("chat"). Each document ends with <|endoftext|>, in every
stream, and is never cut between two shards.
"""

from __future__ import annotations

import hashlib
import json
import mmap
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from enlace import EnlaceError
from enlace.config.rules import MAX_VOCAB_SIZE
from enlace.durable import reason

_ID, _OFFSET, _FLAG = np.dtype("<u2"), np.dtype("<u8"), np.dtype("u1")

Split = Literal["train", "val"]
Kind = Literal["corpus", "chat"]
SPLITS: tuple[Split, ...] = ("train", "val")


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class ShardRecord(_Record):
    """One shard: `file` is its path without suffix, relative to the manifest."""

    file: str
    tokens: int = Field(gt=0)
    documents: int = Field(gt=0)
    sha256: str
    index_sha256: str
    mask_sha256: str | None


class StreamRecord(_Record):
    """All shards of one stream in one split; `bytes` counts the UTF-8 of its text."""

    split: Split
    name: str
    kind: Kind
    shards: tuple[ShardRecord, ...]
    bytes: int


class Manifest(_Record):
    """What a folder of shards holds. No dates: the same input gives the same bytes."""

    magic: Literal["enlace-shards"] = "enlace-shards"
    version: Literal[1] = 1
    dtype: Literal["<u2"] = "<u2"
    vocab_size: int = Field(gt=0, le=MAX_VOCAB_SIZE)
    tokenizer_sha256: str
    end_of_text_id: int
    streams: tuple[StreamRecord, ...]
    dropped: dict[str, int]


@dataclass(frozen=True)
class Encoded:
    """A document ready to be written: ids, the mask of equal length (chat only), bytes of its text."""

    ids: npt.NDArray[np.int32] | npt.NDArray[np.uint16]
    mask: npt.NDArray[np.uint8] | None
    n_bytes: int


@dataclass(frozen=True)
class Stream:
    """One stream of one split, open for reading: an array per shard, memory-mapped."""

    split: Split
    name: str
    kind: Kind
    n_bytes: int
    tokens: tuple[npt.NDArray[np.uint16], ...]
    doc_ends: tuple[npt.NDArray[np.uint64], ...]
    masks: tuple[npt.NDArray[np.uint8], ...] | None

    @property
    def n_tokens(self) -> int:
        """Tokens in all shards."""
        return sum(len(tokens) for tokens in self.tokens)

    @property
    def n_documents(self) -> int:
        """Documents in all shards."""
        return sum(len(ends) for ends in self.doc_ends)

    def documents(self) -> Iterator[tuple[npt.NDArray[np.uint16], npt.NDArray[np.uint8] | None]]:
        """Each document with its <|endoftext|>, and its mask where the stream has one."""
        for shard, (tokens, ends) in enumerate(zip(self.tokens, self.doc_ends, strict=True)):
            start = 0
            for end in map(int, ends):
                yield tokens[start:end], self.masks[shard][start:end] if self.masks else None
                start = end


@dataclass(frozen=True)
class Shards:
    """A folder of shards, checked and open for reading."""

    folder: Path
    manifest: Manifest
    streams: tuple[Stream, ...]

    @property
    def tokenizer_path(self) -> Path:
        """The tokenizer that these ids belong to."""
        return self.folder / "tokenizer.json"

    def names(self, split: Split) -> tuple[str, ...]:
        """Names of the streams of a split."""
        return tuple(stream.name for stream in self.streams if stream.split == split)

    def of_kind(self, split: str, kind: str) -> list[Stream]:
        """The streams of a split that are "corpus", or "chat"."""
        return [stream for stream in self.streams if (stream.split, stream.kind) == (split, kind)]

    def stream(self, split: Split, name: str) -> Stream:
        """One stream; EnlaceError, saying which there are, when it is not there."""
        for stream in self.streams:
            if (stream.split, stream.name) == (split, name):
                return stream
        raise EnlaceError(f"{self.folder}: no hay «{name}» en {split}; hay: {', '.join(self.names(split))}")


def let_go(arrays: Iterable[npt.NDArray[Any]]) -> None:
    """Take the pages that were read of mapped files out of the process; they stay in the system's cache.

    Else they count as memory of the process, which in the end holds every shard (karpathy/nanoGPT#287).
    """
    if hasattr(mmap, "MADV_DONTNEED"):
        for array in arrays:
            file: object = array.base
            if isinstance(file, mmap.mmap):
                file.madvise(mmap.MADV_DONTNEED)


def beside(base: Path, suffix: str) -> Path:
    """The file `base` + `suffix`. Not `with_suffix`: a name may have dots of its own ("wiki.es-00000")."""
    return base.with_name(base.name + suffix)


def write_stream(
    folder: Path,
    split: Split,
    name: str,
    kind: Kind,
    documents: Iterable[Encoded],
    *,
    vocab_size: int,
    shard_tokens: int,
) -> StreamRecord:
    """Write the shards of one stream under `folder`, each closed once it has `shard_tokens` tokens or more.

    Raises EnlaceError for an id outside the vocabulary, before it is cast to uint16 and wraps around in silence.
    """
    (folder / split).mkdir(parents=True, exist_ok=True)
    records: list[ShardRecord] = []
    n_bytes = 0
    for batch in _batches(documents, shard_tokens):
        n_bytes += sum(document.n_bytes for document in batch)
        records.append(_write_shard(folder, _file(split, name, len(records)), batch, vocab_size))
    return StreamRecord(split=split, name=name, kind=kind, shards=tuple(records), bytes=n_bytes)


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Write manifest.json, last of all: a folder without it is not a folder of shards."""
    text = json.dumps(manifest.model_dump(), ensure_ascii=False, indent=2, sort_keys=True)
    (folder / "manifest.json").write_text(text + "\n", encoding="utf-8")


def open_shards(folder: Path, *, verify: bool = True) -> Shards:
    """Open a folder of shards, checking the manifest and the size of every file; with `verify`, every digest too.

    Raises EnlaceError naming the file at fault.
    """
    manifest = _read_manifest(folder / "manifest.json")
    _check_digest(folder / "tokenizer.json", manifest.tokenizer_sha256)
    return Shards(folder, manifest, tuple(_open_stream(folder, record, verify) for record in manifest.streams))


def _batches(documents: Iterable[Encoded], shard_tokens: int) -> Iterator[list[Encoded]]:
    batch: list[Encoded] = []
    tokens = 0
    for document in documents:
        batch.append(document)
        tokens += len(document.ids)
        if tokens >= shard_tokens:
            yield batch
            batch, tokens = [], 0
    if batch:
        yield batch


def _file(split: Split, name: str, number: int) -> str:
    return f"{split}/{name}-{number:05d}"


def _write_shard(folder: Path, file: str, batch: list[Encoded], vocab_size: int) -> ShardRecord:
    ids = np.concatenate([document.ids for document in batch])
    limit = min(vocab_size, MAX_VOCAB_SIZE)
    if ids.min() < 0 or ids.max() >= limit:
        raise EnlaceError(f"{file}: hay identificadores fuera de 0..{limit - 1}")
    ends = np.cumsum([len(document.ids) for document in batch])
    masks = [document.mask for document in batch if document.mask is not None]
    return ShardRecord(
        file=file,
        tokens=len(ids),
        documents=len(batch),
        sha256=_write(folder / f"{file}.bin", ids.astype(_ID, copy=False)),
        index_sha256=_write(folder / f"{file}.idx", ends.astype(_OFFSET)),
        mask_sha256=_write(folder / f"{file}.mask", np.concatenate(masks)) if masks else None,
    )


def _write(path: Path, array: npt.NDArray[np.generic]) -> str:
    data = array.view(np.uint8).data  # no second copy: a shard is the largest thing in memory
    path.write_bytes(data)
    return hashlib.sha256(data).hexdigest()


def _read_manifest(path: Path) -> Manifest:
    try:
        return Manifest.model_validate_json(path.read_bytes())
    except OSError as error:
        raise _broken(path, f"no se puede leer ({reason(error)})") from error
    except ValidationError as error:
        keys = ", ".join(sorted({".".join(map(str, detail["loc"])) or "JSON" for detail in error.errors()}))
        raise _broken(path, f"no es un manifiesto de shards que esta versión entienda (falla: {keys})") from error


def _open_stream(folder: Path, record: StreamRecord, verify: bool) -> Stream:
    tokens: list[npt.NDArray[np.uint16]] = []
    doc_ends: list[npt.NDArray[np.uint64]] = []
    masks: list[npt.NDArray[np.uint8]] = []
    for number, shard in enumerate(record.shards):
        base = folder / shard.file
        if shard.file != _file(record.split, record.name, number):
            raise _broken(folder / "manifest.json", f"{shard.file} no está en su sitio, o falta uno antes que él")
        tokens.append(_open(beside(base, ".bin"), _ID, shard.tokens, verify and shard.sha256))
        doc_ends.append(_open(beside(base, ".idx"), _OFFSET, shard.documents, verify and shard.index_sha256))
        if int(doc_ends[-1][-1]) != shard.tokens:
            raise _broken(beside(base, ".idx"), "no acaba donde acaba su .bin")
        if shard.mask_sha256 is not None:
            masks.append(_open(beside(base, ".mask"), _FLAG, shard.tokens, verify and shard.mask_sha256))
    if len(masks) != (len(record.shards) if record.kind == "chat" else 0):
        raise _broken(folder / "manifest.json", f"{record.split}/{record.name}: las máscaras no cuadran")
    return Stream(
        split=record.split,
        name=record.name,
        kind=record.kind,
        n_bytes=record.bytes,
        tokens=tuple(tokens),
        doc_ends=tuple(doc_ends),
        masks=tuple(masks) or None,
    )


def _open(path: Path, dtype: np.dtype[Any], length: int, digest: str | Literal[False]) -> npt.NDArray[Any]:
    try:
        size = path.stat().st_size
    except OSError as error:
        raise _broken(path, f"no se puede leer ({reason(error)})") from error
    # np.fromfile would drop the odd byte of a cut file without a word.
    if size != length * dtype.itemsize:
        raise _broken(path, f"mide {size} bytes y el manifiesto dice {length * dtype.itemsize}")
    if digest:
        _check_digest(path, digest)
    return np.memmap(path, dtype=dtype, mode="r", shape=(length,))


def _check_digest(path: Path, digest: str) -> None:
    try:
        with path.open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise _broken(path, f"no se puede leer ({reason(error)})") from error
    if found != digest:
        raise _broken(path, "su sha256 no es el del manifiesto: el archivo cambió o se dañó")


def _broken(path: Path, what: str) -> EnlaceError:
    return EnlaceError(f"{path}: {what}; vuelve a hacerlos con `dvc repro -f build-shards`")
