"""How fast texts become shards, stage by stage, beside Hugging Face tokenizers and datatrove on the same texts.

    python -m benchmarks.build_shards [--megabytes 50]

The texts are the Spanish manuals of some Debian packages (22 MB; apt downloads 90 MB to a temporary folder), grown to
the size asked for with documents made of their sentences in another order. Figures are MB of UTF-8 per second of CPU,
children included; datatrove (extra `bench`) is left out where it is missing.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import tokenizers

from enlace.config.schema import CleanConfig, DebianSource, ShardsConfig
from enlace.data.build import build_shards
from enlace.data.corpus import documents_of
from enlace.data.decontaminate import EvalSet
from enlace.data.documents import Document, parse_document, write_documents
from enlace.data.executors import Work
from enlace.data.shards import SPLITS, open_shards
from enlace.data.units import UNIT_BYTES, CleanTask, EncodeTask, clean_unit, encode_unit, split_in_units

PACKAGES = {
    "libreoffice-help-es": "usr/share/libreoffice/help/es/**/*.html",
    "lilypond-doc-html-es": "**/*.es.html",
    "gimp-help-es": "usr/share/gimp/2.0/help/es/**/*.html",
    "debian-handbook": "usr/share/doc/debian-handbook/html/es-ES/*.html",
    "debian-reference-es": "**/*.es.html",
}
VOCAB_SIZE, TOKENIZER_BYTES = 16_384, 10_000_000
ONE_THREAD = {"RAYON_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}


def main() -> None:
    """Measure everything and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=float, default=50.0)
    arguments = parser.parse_args()
    os.environ |= ONE_THREAD
    with TemporaryDirectory(prefix="enlace-bench-") as name:
        folder = Path(name)
        raw, size = _texts(folder, arguments.megabytes * 1e6)
        print(f"{size / 1e6:.1f} MB de texto; {os.cpu_count()} núcleos, carga {os.getloadavg()[0]:.1f}\n")
        seconds = _stages(folder, raw)
        seconds |= _whole(folder, raw)
        seconds |= _peers(folder, raw)
        for what, (cpu, wall) in seconds.items():
            print(f"{what:<58} {size / 1e6 / cpu:6.1f} MB/s de CPU  {wall:7.1f} s de reloj")


def _texts(folder: Path, size: float) -> tuple[Path, int]:
    """data of the packages as one file of documents; the bytes of their texts."""
    documents = []
    for package, files in PACKAGES.items():
        source = DebianSource(
            kind="debian", name=package, package=package, files=files, optional=False, text_field="text",
            license="libre", attribution="Debian", weight=1.0,
        )  # fmt: skip
        documents += [document for document in documents_of(source, folder) if len(document.text) > 200]
        print(f"{package}: {sum(len(d.text.encode()) for d in documents) / 1e6:.1f} MB hasta aquí")
    path = folder / "manuales.jsonl"
    _, written = write_documents(path, _grown(documents, size))
    return path, written


def _grown(documents: list[Document], size: float) -> Iterator[Document]:
    """The documents, and then others of their sentences in another order, until there are `size` bytes."""
    drawn = random.Random(0)
    sentences = [s for d in documents for s in re.split(r"(?<=[.!?:])\s+", d.text) if s]
    total = 0
    for document in documents:
        total += len(document.text.encode())
        yield document
    number = 0
    while total < size:
        text = " ".join(drawn.choices(sentences, k=drawn.randint(20, 80)))
        total += len(text.encode())
        number += 1
        yield Document(f"mezcla:{number}", text, "manuales", {})


def _rules(near: bool) -> CleanConfig:
    return CleanConfig(
        boilerplate=True,
        spanish=0.1,
        symbols=0.3,
        repetition=0.3,
        personal_data=True,
        near_duplicates=0.7 if near else None,
    )


def _config(near: bool) -> ShardsConfig:
    return ShardsConfig(
        vocab_size=VOCAB_SIZE,
        tokenizer_bytes=TOKENIZER_BYTES,
        val_fraction=0.01,
        min_chars=200,
        shard_tokens=50_000_000,
        clean=_rules(near),
    )


def _stages(folder: Path, raw: Path) -> dict[str, tuple[float, float]]:
    """The unit functions one after another, in this process."""
    build_shards([raw], [], _config(False), folder / "tokenizer")
    tokenizer = folder / "tokenizer" / "tokenizer.json"
    seconds = {}
    for near, what in ((False, "limpiar"), (True, "limpiar, con firmas MinHash")):
        work = folder / f"units-{near}"
        tasks = [
            CleanTask(work, name, path, start, end, "", _rules(near), 200, EvalSet.of([]))
            for name, path, start, end in split_in_units([raw], UNIT_BYTES)
        ]
        seconds[what] = _timed(lambda tasks=tasks: [clean_unit(task) for task in tasks])  # type: ignore[misc]
    sha256 = open_shards(folder / "tokenizer").manifest.tokenizer_sha256
    encode = [
        EncodeTask(work, task.name, tokenizer, sha256, np.arange(len(np.load(work / f"{task.name}.npy"))))
        for task in tasks
    ]
    seconds["tokens y escribir (tiktoken, uint16)"] = _timed(lambda: [encode_unit(task) for task in encode])
    return seconds


def _whole(folder: Path, raw: Path) -> dict[str, tuple[float, float]]:
    """Builds from end to end, training of the tokenizer included: each in a process of its own, since the tokenizer's
    threads are as many as when it was first used.
    """
    seconds = {}
    for near, workers in ((False, 1), (True, 1), (True, 2)):
        out = folder / f"shards-{near}-{workers}"
        what = f"todo, {'con' if near else 'sin'} casi repetidos, {workers} proceso{'s' * (workers > 1)}"
        os.environ |= {"RAYON_NUM_THREADS": str(workers), "TOKENIZERS_PARALLELISM": str(workers > 1).lower()}
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
            seconds[what] = pool.submit(_build, raw, near, out, workers).result()
    os.environ |= ONE_THREAD
    shards = open_shards(folder / "shards-True-1")
    print("descartado:", {reason: count for reason, count in shards.manifest.dropped.items() if count})
    print("tokens:", sum(s.n_tokens for split in SPLITS for s in shards.streams if s.split == split), "\n")
    return seconds


def _build(raw: Path, near: bool, out: Path, workers: int) -> tuple[float, float]:
    return _timed(lambda: build_shards([raw], [], _config(near), out, work=Work(workers=workers)))


def _peers(folder: Path, raw: Path) -> dict[str, tuple[float, float]]:
    tokenizer = folder / "tokenizer" / "tokenizer.json"
    with raw.open("rb") as file:
        texts = [parse_document(line, raw).text for line in file]
    peer = tokenizers.Tokenizer.from_file(str(tokenizer))

    def encode() -> None:
        for start in range(0, len(texts), 1000):
            peer.encode_batch_fast(texts[start : start + 1000], add_special_tokens=False)

    seconds = {"Hugging Face tokenizers, encode_batch_fast, un hilo": _timed(encode)}
    for near in (False, True):
        command = [
            sys.executable,
            "-m",
            "benchmarks.datatrove_peer",
            str(raw),
            str(tokenizer),
            str(folder),
            str(int(near)),
        ]
        started, before = time.monotonic(), _children()
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode == 0:
            what = f"datatrove, {'con' if near else 'sin'} casi repetidos, 1 proceso"
            seconds[what] = (_children() - before, time.monotonic() - started)
            print("datatrove:", json.loads(done.stdout.splitlines()[-1]))
        else:
            print("datatrove no se pudo medir:", (done.stderr.strip().splitlines() or ["sin mensaje"])[-1])
    return seconds


def _timed(work: Callable[[], object]) -> tuple[float, float]:
    """Seconds of CPU, of this process and its children, and of the clock."""
    started, cpu, children = time.monotonic(), time.process_time(), _children()
    work()
    return time.process_time() - cpu + _children() - children, time.monotonic() - started


def _children() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


if __name__ == "__main__":
    main()
