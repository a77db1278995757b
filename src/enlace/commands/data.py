"""`enlace data …`: look at the corpus and its shards."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from enlace import EnlaceError, console
from enlace.config.paths import project_root
from enlace.usage import App

if TYPE_CHECKING:
    from enlace.data.shards import Shards

app = App("El corpus y sus shards: mirarlos, contarlos, leerlos, comprobarlos.")

_SHARDS = "data/shards"
_Folder = Annotated[
    Path | None, typer.Option("--shards", metavar="CARPETA", help="Carpeta de shards; si falta, data/shards.")
]
_WIDTH = 40


@app.command("inspect")
def inspect(shards: _Folder = None) -> None:
    """Enseña qué hay en los shards: documentos, tokens, longitudes, lo que se descartó y muestras."""
    from enlace.data.describe import REASONS, spanish_count
    from enlace.data.shards import open_shards
    from enlace.data.tokenizer import Tokenizer

    opened = open_shards(_folder(shards), verify=False)
    report = _report(opened.folder)
    _say_counts(opened)
    for name, histogram in report["bytes_histogram"].items():
        console.say(f"\nDocumentos de {name} por longitud en bytes")
        most = max(histogram.values())
        for size, count in sorted(histogram.items(), key=lambda item: int(item[0])):
            console.say(f"{int(size):>9} o más {'█' * round(_WIDTH * count / most):<{_WIDTH}} {count}")
    dropped = {reason: count for reason, count in report["dropped"].items() if count}
    for title, counts in (("Descartado", dropped), ("Quitado o sustituido", report["removed"])):
        console.say(f"\n{title}:{'' if counts else ' nada'}")
        for reason, count in counts.items():
            console.say(
                f"- {spanish_count(REASONS, reason, count)}; por ejemplo:"
                if reason in report["samples"]
                else f"- {spanish_count(REASONS, reason, count)}"
            )
            for _, id, text in report["samples"].get(reason, [])[:3]:
                console.say(f"    {id + ': ' if id else ''}{text}")
    tokenizer = Tokenizer.load(opened.tokenizer_path)
    for stream in opened.streams:
        ids, _ = next(stream.documents())
        console.say(f"\nMuestra de {stream.split}/{stream.name}\n{tokenizer.decode(ids[:200])}")


@app.command("count")
def count(shards: _Folder = None) -> None:
    """Cuenta documentos, tokens y bytes por token de cada parte."""
    from enlace.data.shards import open_shards

    _say_counts(open_shards(_folder(shards), verify=False))


@app.command("decode")
def decode(
    shard: Annotated[str, typer.Argument(metavar="SHARD", help="Un shard, por ejemplo train/wikipedia-es-00000.")],
    number: Annotated[int, typer.Argument(metavar="N", min=0, help="Qué documento, desde 0.")],
    shards: _Folder = None,
) -> None:
    """Escribe el documento N de un shard, tal como lo lee el modelo; en las conversaciones, lo aprendido entre « »."""
    from enlace.data.shards import open_shards
    from enlace.data.special_tokens import SPECIAL_TOKENS
    from enlace.data.tokenizer import Tokenizer

    opened = open_shards(_folder(shards), verify=False)
    name = shard.removesuffix(".bin").removeprefix(f"{opened.folder}/").removeprefix(f"{_SHARDS}/")
    records = {
        record.file: (stream, at) for stream in opened.manifest.streams for at, record in enumerate(stream.shards)
    }
    if name not in records:
        raise EnlaceError(f"{opened.folder}: no hay shard «{shard}»; hay: {', '.join(records)}")
    record, at = records[name]
    stream = opened.stream(record.split, record.name)
    ends = stream.doc_ends[at]
    if number >= len(ends):
        raise EnlaceError(f"{name} tiene {len(ends)} documentos, del 0 al {len(ends) - 1}; no hay un {number}")
    part = slice(int(ends[number - 1]) if number else 0, int(ends[number]))
    ids = stream.tokens[at][part]
    mask = stream.masks[at][part] if stream.masks else [0] * len(ids)
    tokenizer = Tokenizer.load(opened.tokenizer_path)
    written, learning = tokenizer.decode_stream(), False
    text = ""
    for id, trained in zip(map(int, ids), mask, strict=True):
        if bool(trained) != learning:
            text += "»" if learning else "«"
            learning = bool(trained)
        text += SPECIAL_TOKENS[id] if id < len(SPECIAL_TOKENS) else written.push(id)
    console.say(text)


@app.command("verify")
def verify(shards: _Folder = None) -> None:
    """Comprueba cada archivo contra su sha256, cada índice contra sus tokens y que nada reservado se entrena."""
    import numpy as np

    from enlace.data.dedup import document_hash
    from enlace.data.shards import open_shards
    from enlace.data.tokenizer import Tokenizer

    opened = open_shards(_folder(shards))
    manifest = opened.manifest
    tokenizer = Tokenizer.load(opened.tokenizer_path)
    sides: dict[str, set[str]] = {"train": set(), "val": set()}
    for stream in opened.streams:
        for record, ids, ends in zip(_records(opened, stream), stream.tokens, stream.doc_ends, strict=True):
            if int(ids.max()) >= manifest.vocab_size:
                raise EnlaceError(f"{record}: tiene identificadores de {manifest.vocab_size} o más")
            if not np.array_equal(np.flatnonzero(ids == manifest.end_of_text_id) + 1, ends):
                raise EnlaceError(f"{record}: sus documentos no acaban donde dice su índice")
        if stream.kind == "corpus":
            with console.progress() as bar:
                documents = bar.track(stream.documents(), total=stream.n_documents, description=stream.name)
                sides[stream.split].update(document_hash(tokenizer.decode(ids)) for ids, _ in documents)
    if both := sides["train"] & sides["val"]:
        raise EnlaceError(f"{opened.folder}: {len(both)} documentos están a los dos lados, entrenados y reservados")
    files = sum(len(stream.shards) for stream in manifest.streams)
    console.say(f"Bien: {files} shards, {sum(map(len, sides.values()))} documentos distintos, ninguno a los dos lados.")


def _folder(given: Path | None) -> Path:
    return given or project_root() / _SHARDS


def _records(shards: Shards, stream: Any) -> list[str]:
    return [
        record.file
        for other in shards.manifest.streams
        if (other.split, other.name) == (stream.split, stream.name)
        for record in other.shards
    ]


def _report(folder: Path) -> dict[str, Any]:
    path = folder / "report.json"
    try:
        return dict(json.loads(path.read_bytes()))
    except (OSError, ValueError) as error:
        raise EnlaceError(f"{path}: no se puede leer; rehazlo con `dvc repro -f build-shards`") from error


def _say_counts(shards: Shards) -> None:
    for stream in shards.streams:
        console.say(
            f"{stream.split}/{stream.name}: {stream.n_documents} documentos, {stream.n_tokens} tokens, "
            f"{stream.n_bytes / stream.n_tokens:.2f} bytes por token"
        )
