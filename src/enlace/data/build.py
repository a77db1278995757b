"""From documents and conversations to a folder of shards: clean, drop duplicates, split, train the tokenizer, encode.

The texts are cleaned and encoded in units, by as many workers as there are (`units`, `executors`). What is finished
lies in `<out>.units.tmp` until all is done: a run that was killed, or refused, goes on from there. The bytes of the
shards depend on what the documents say, and not on their order, the number of workers or the size of the units.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from enlace import EnlaceError
from enlace.config.schema import ShardsConfig
from enlace.console import progress
from enlace.data.chat import encode_conversation
from enlace.data.conversations import Conversation
from enlace.data.decontaminate import EvalSet
from enlace.data.dedup import is_held_out
from enlace.data.executors import Work, results
from enlace.data.filters import Report
from enlace.data.folder import whole_folder
from enlace.data.selection import Table, select, select_conversations
from enlace.data.shards import SPLITS, Encoded, Manifest, Split, StreamRecord, beside, write_manifest, write_stream
from enlace.data.tokenizer import Tokenizer, train_tokenizer
from enlace.data.units import (
    ENCODED,
    UNIT_BYTES,
    Block,
    CleanTask,
    EncodeTask,
    clean_unit,
    encode_unit,
    source_digest,
    split_in_units,
    unit_report,
)
from enlace.data.words import mixed
from enlace.durable import locked, write_atomic

CHAT = "chat"  # the stream of the conversations; the others are named after their source
REASONS = ("short", "symbols", "language", "repetition", "contaminated", "duplicate", "near_duplicate")
CHAT_REASONS = ("empty_conversation", "duplicate_conversation", "contaminated_conversation", "held_out_conversation")
_NO_EVALS = EvalSet.of([])
_HERE = Work()
# By number of the unit: the file of its ids, the positions of the documents in it, and where each ends, in ids.
_EncodedUnits = dict[int, tuple[Path, npt.NDArray[np.int64], npt.NDArray[np.int64]]]


@dataclass(frozen=True)
class Built:
    """A finished folder of shards: its manifest, and how many units of work there were and were done already."""

    manifest: Manifest
    units: int
    again: int


@dataclass(frozen=True)
class _Chosen:
    """The documents and conversations of one stream, on one side, in their order."""

    name: str
    split: Split
    documents: npt.NDArray[np.int64]  # places in the table
    chats: Sequence[Conversation] = ()


def build_shards(
    raw: Sequence[Path],
    conversations: Iterable[Conversation],
    config: ShardsConfig,
    out: Path,
    sources: bytes = b"[]\n",
    *,
    evals: EvalSet = _NO_EVALS,
    work: Work = _HERE,
    unit_bytes: int = UNIT_BYTES,
) -> Built:
    """Write the folder of shards `out` whole, or leave it as it was.

    `raw` are files of documents, each the source that it is named after. `sources` is the sources.json of data/raw:
    licences and attributions travel with the text, from here to the model, and weights decide how often a document is
    there to be trained on. Raises EnlaceError for what could not be trained on: a stream with nothing on one side of
    the split, texts too few for the vocabulary; and when somebody else is writing `out`.
    """
    # Whole paths: the workers of a cluster need not have been started in this folder.
    raw, out = sorted(path.absolute() for path in raw if path.stat().st_size), out.absolute()
    if not raw:
        raise EnlaceError("No hay ningún documento: ejecuta `dvc repro fetch-corpus`")
    if CHAT in [path.stem for path in raw]:
        raise EnlaceError(f"Una fuente del corpus se llama «{CHAT}», que es el nombre de las conversaciones; cámbialo")
    weights = _weights(sources)
    folder, lock = (out.with_name(f"{out.name}.{end}") for end in ("units.tmp", "units.lock.tmp"))
    with locked(lock, f"{out}: otro proceso lo está escribiendo; espera a que acabe"):
        folder.mkdir(parents=True, exist_ok=True)
        built = _Build(raw, config, out, sources, weights, evals, work, unit_bytes, folder).run(conversations)
        shutil.rmtree(folder)
    return built


@dataclass(frozen=True)
class _Build:
    raw: Sequence[Path]
    config: ShardsConfig
    out: Path
    sources: bytes
    weights: Mapping[str, float]  # of the sources that have one
    evals: EvalSet
    work: Work
    unit_bytes: int
    folder: Path

    def run(self, conversations: Iterable[Conversation]) -> Built:
        report = Report(dropped=Counter(dict.fromkeys((*REASONS, *CHAT_REASONS), 0)))
        blocks = list(split_in_units(self.raw, self.unit_bytes))
        with self.work.started(len(blocks)) as pool:
            units, again = self._clean(pool, blocks, report)
            table = Table.load(list(units.values()))
            with closing(table.pieces):
                return self._build(pool, table, list(units), again, conversations, report)

    def _build(
        self,
        pool: Executor | None,
        table: Table,
        units: Sequence[str],
        again: int,
        conversations: Iterable[Conversation],
        report: Report,
    ) -> Built:
        selection = select(table, self.config.clean.near_duplicates, report)
        chats = select_conversations(conversations, selection, self.config.val_fraction, self.evals, report)
        streams = self._split(selection.table, units, chats)
        self._train_tokenizer(selection.table, streams)
        encoded, encoded_again = self._encode(pool, selection.table, units, streams)
        with whole_folder(self.out) as folder:
            shutil.copy(self.folder / "tokenizer.json", folder)
            tokenizer = Tokenizer.load(folder / "tokenizer.json")
            (folder / "sources.json").write_bytes(self.sources)
            manifest = Manifest(
                vocab_size=self.config.vocab_size,
                tokenizer_sha256=tokenizer.sha256,
                end_of_text_id=tokenizer.end_of_text_id,
                streams=tuple(self._write(stream, selection.table, encoded, tokenizer, folder) for stream in streams),
                dropped=dict(report.dropped),
            )
            details = self._report(report, selection.table, streams)
            text = json.dumps(details, ensure_ascii=False, indent=1, sort_keys=True)
            (folder / "report.json").write_text(text + "\n", encoding="utf-8")
            write_manifest(folder, manifest)
        return Built(manifest, len(units) + len(encoded), again + encoded_again)

    def _clean(self, pool: Executor | None, blocks: Sequence[Block], report: Report) -> tuple[dict[str, Path], int]:
        """Clean all units; the base path of each by name, and how many were there already."""
        config = self.config
        decides = (config.clean.model_dump_json(), config.min_chars, self.evals.digest, source_digest())
        recipe = hashlib.sha256(repr(decides).encode()).hexdigest()
        tasks = [
            CleanTask(self.folder, name, path, start, end, recipe, config.clean, config.min_chars, self.evals)
            for name, path, start, end in blocks
        ]
        with progress() as bar:
            done = list(bar.track(results(pool, clean_unit, tasks), total=len(tasks), description="Limpieza"))
        units = {task.name: self.folder / task.name for task in tasks}
        for base in units.values():
            part = unit_report(base)
            assert part is not None
            report.add(part)
        return units, sum(one.again for one in done)

    def _split(self, table: Table, units: Sequence[str], chats: Sequence[Conversation]) -> list[_Chosen]:
        """What is kept, by stream and side: sources by name, then the conversations, where there are any.

        Every source has both sides. The conversations may lack one: a home's are few, and a small `val_fraction` may
        hold out none.
        """
        fraction = self.config.val_fraction
        held_out = table.key / 2**64 < fraction  # as `is_held_out`
        source_of_unit = np.array([[path.stem for path in self.raw].index(name.rpartition("-")[0]) for name in units])
        source = source_of_unit[table.unit]
        streams = []
        for number, path in enumerate(self.raw):
            train, val = (
                np.flatnonzero((source == number) & (held_out if split == "val" else ~held_out)) for split in SPLITS
            )
            if not (len(train) and len(val)):
                raise EnlaceError(
                    f"«{path.stem}» queda con {len(train)} para entrenar y {len(val)} para validar, y hace falta al "
                    f"menos uno de cada: añade textos, baja data.shards.min_chars o "
                    f"{'sube' if len(train) else 'baja'} data.shards.val_fraction"
                )
            weight = self.weights.get(path.stem, 1.0)
            chosen = _weighted(train, table.key, weight)
            if not len(chosen):
                raise EnlaceError(
                    f"«{path.stem}»: con weight {weight:g} no queda ninguno de sus {len(train)} documentos; súbelo en "
                    f"configs/data o quita esa fuente, y repite `dvc repro`"
                )
            streams.append(_Chosen(path.stem, "train", chosen))
            streams.append(_Chosen(path.stem, "val", val[np.argsort(mixed(table.key[val]), kind="stable")]))
        for split in SPLITS:
            side = [chat for chat in chats if _side(chat.document_hash, fraction) == split]
            if side:
                streams.append(_Chosen(CHAT, split, np.zeros(0, np.int64), side))
        return streams

    def _train_tokenizer(self, table: Table, streams: Sequence[_Chosen]) -> None:
        """Train tokenizer.json on what is trained: documents in their order, then conversations, a sample of each."""
        train = [stream for stream in streams if stream.split == "train"]
        documents = np.unique(np.concatenate([stream.documents for stream in train]))
        documents = documents[np.argsort(mixed(table.key[documents]), kind="stable")]
        # Each text once, or the system prompt that all conversations share would decide the vocabulary.
        messages = dict.fromkeys(m.content for stream in train for chat in stream.chats for m in chat.messages)
        limit = self.config.tokenizer_bytes
        texts = [_up_to((table.text(int(i)) for i in documents), limit), _up_to(messages, limit)]
        trained = train_tokenizer((text for part in texts for text in part), self.config.vocab_size)
        write_atomic(self.folder / "tokenizer.json", trained.to_str(pretty=True).encode())

    def _encode(
        self, pool: Executor | None, table: Table, units: Sequence[str], streams: Sequence[_Chosen]
    ) -> tuple[_EncodedUnits, int]:
        """Encode all documents; where the ids are, and how many units were there already."""
        chosen = np.unique(np.concatenate([stream.documents for stream in streams]))
        chosen = chosen[np.lexsort((table.position[chosen], table.unit[chosen]))]
        ends = np.searchsorted(table.unit[chosen], np.arange(len(units)), side="right")
        tokenizer = self.folder / "tokenizer.json"
        sha256 = hashlib.sha256(tokenizer.read_bytes()).hexdigest()
        tasks = {}
        for name, documents in zip(units, np.split(chosen, ends[:-1]), strict=True):
            if len(documents):
                positions = table.position[documents].astype(np.int64)
                tasks[name] = EncodeTask(self.folder, name, tokenizer, sha256, positions)
        run = results(pool, encode_unit, list(tasks.values()))
        with progress() as bar:
            done = {one.name: one for one in bar.track(run, total=len(tasks), description="Tokens")}
        encoded = {}
        for number, name in enumerate(units):
            if name in done:
                base = done[name].base
                ends = np.cumsum(np.load(beside(base, ".lengths.npy")))
                encoded[number] = (beside(base, ".ids"), tasks[name].chosen, ends)
        return encoded, sum(one.again for one in done.values())

    def _write(
        self,
        stream: _Chosen,
        table: Table,
        encoded: _EncodedUnits,
        tokenizer: Tokenizer,
        folder: Path,
    ) -> StreamRecord:
        documents = (_encoded(int(i), table, encoded) for i in stream.documents)
        chats = (_encoded_chat(tokenizer, chat) for chat in stream.chats)
        return write_stream(
            folder,
            stream.split,
            stream.name,
            "chat" if stream.name == CHAT else "corpus",
            chats if stream.name == CHAT else documents,
            vocab_size=self.config.vocab_size,
            shard_tokens=self.config.shard_tokens,
        )

    def _report(self, report: Report, table: Table, streams: Sequence[_Chosen]) -> dict[str, object]:
        """What report.json says: what went, with samples, and how long the documents are that stay."""
        lengths = {}
        for name in dict.fromkeys(stream.name for stream in streams if stream.name != CHAT):
            mine = np.concatenate([stream.documents for stream in streams if stream.name == name])
            powers = np.floor(np.log2(np.maximum(1, table.length[np.unique(mine)]))).astype(int)
            lengths[name] = {str(2**power): int((powers == power).sum()) for power in np.unique(powers)}
        content = report.to_json()
        found = len(content.pop("eval_items"))
        evals = {"items": len(self.evals.items), "too_short": self.evals.too_short(), "found_in_text": found}
        return {**content, "eval_sets": evals, "bytes_histogram": lengths}


def _weights(sources: bytes) -> dict[str, float]:
    try:
        return {entry["name"]: float(entry.get("weight", 1.0)) for entry in json.loads(sources)}
    except (ValueError, KeyError, TypeError, AttributeError):
        raise EnlaceError("data/raw/sources.json está dañado; repite `dvc repro -f fetch-corpus`") from None


def _weighted(train: npt.NDArray[np.int64], key: npt.NDArray[np.uint64], weight: float) -> npt.NDArray[np.int64]:
    """Each document `weight` times on average, and every time at another place; which ones, their hashes decide."""
    times = np.floor(mixed(key[train] ^ np.uint64(0x5EED)) / 2**64 + weight).astype(np.int64)
    copies = np.repeat(train, times)
    number = np.arange(len(copies)) - np.repeat(np.cumsum(times) - times, times)
    order = np.argsort(mixed(key[copies] + number.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)), kind="stable")
    return copies[order]


def _encoded(i: int, table: Table, encoded: _EncodedUnits) -> Encoded:
    path, positions, ends = encoded[int(table.unit[i])]
    at = int(np.searchsorted(positions, table.position[i]))
    start = int(ends[at - 1]) if at else 0
    size = ENCODED.itemsize
    data = table.pieces.read(path, start * size, (int(ends[at]) - start) * size)
    return Encoded(np.frombuffer(data, ENCODED), None, int(table.length[i]))


def _encoded_chat(tokenizer: Tokenizer, chat: Conversation) -> Encoded:
    ids, mask = encode_conversation(tokenizer, chat.messages)
    ids, mask = [*ids, tokenizer.end_of_text_id], [*mask, 0]
    n_bytes = sum(len(message.content.encode("utf-8")) for message in chat.messages)
    return Encoded(np.array(ids, dtype=np.int32), np.array(mask, dtype=np.uint8), n_bytes)


def _up_to(texts: Iterable[str], n_bytes: int) -> Iterator[str]:
    """The first of `texts`, until they have `n_bytes` bytes of UTF-8."""
    for text in texts:
        if n_bytes <= 0:
            return
        yield text
        n_bytes -= len(text.encode("utf-8"))


def _side(document_hash: str, val_fraction: float) -> Split:
    return "val" if is_held_out(document_hash, val_fraction) else "train"
