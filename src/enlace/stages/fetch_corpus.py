"""fetch-corpus: the sources of the corpus in, one file of documents each out (data/raw)."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from enlace import EnlaceError
from enlace.config.load import load_config
from enlace.config.paths import main_checkout
from enlace.config.schema import AnySource, DebianSource, FolderSource
from enlace.console import run_main, say
from enlace.data.corpus import documents_of, has_texts, listing, unread_files
from enlace.data.documents import write_documents
from enlace.data.faults import Faults
from enlace.data.fetch import Unavailable
from enlace.data.files import READ
from enlace.data.folder import whole_folder

OUT = Path("data/raw")
_SHOWN = 5


def main() -> None:
    """Fetch every source, note where it comes from in sources.json, and say what was found."""
    config = load_config()
    faults = {source.name: Faults(config.corpus.max_bad_share) for source in config.corpus.sources}
    summaries = []
    with whole_folder(OUT) as folder:
        for source in config.corpus.sources:
            try:
                summaries.append(_fetch(source, folder, faults[source.name]))
            except Unavailable as error:
                if not (isinstance(source, DebianSource) and source.optional):
                    raise
                (folder / f"{source.name}.jsonl").unlink(missing_ok=True)
                say(f"aviso: sin esta fuente: {error}")
        if not summaries:
            raise EnlaceError("Ninguna fuente del corpus se pudo obtener: no hay textos")
        _write_json(folder / "sources.json", summaries)
        _write_json(
            folder / "faults.json",
            {name: [[fault.where, fault.reason] for fault in found.found] for name, found in faults.items()},
        )
    for source in config.corpus.sources:
        if unread := unread_files(source, _root(source)):
            say(f"{source.name}: no se leen {len(unread)} archivos, que no son {READ}: {_few(unread)}")
        bad = faults[source.name]
        if bad.found:
            total = bad.records + bad.whole_files
            say(f"{source.name}: {total} registros o archivos ilegibles quedan fuera (data/raw/faults.json):")
            for fault in bad.found[:_SHOWN]:
                say(f"  {fault.where}: {fault.reason}")
    for summary in summaries:
        say(f"{summary['name']}: {summary['documents']} documentos, {summary['bytes'] / 1e6:.2f} MB")


def _fetch(source: AnySource, folder: Path, faults: Faults) -> dict[str, Any]:
    path = folder / f"{source.name}.jsonl"
    count, size = write_documents(path, documents_of(source, _root(source), faults))
    faults.check(source.name, count)
    read = {"listing": listing(source, _root(source))} if isinstance(source, FolderSource) else {}
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return {
        **read,
        "name": source.name,
        "kind": source.kind,
        "license": source.license,
        "attribution": source.attribution,
        "weight": source.weight,
        "sha256": digest,
        "documents": count,
        "bytes": size,
    }


def _write_json(path: Path, content: Any) -> None:
    path.write_text(json.dumps(content, ensure_ascii=False, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def _few(names: list[str]) -> str:
    return ", ".join(names[:_SHOWN]) + (", …" if len(names) > _SHOWN else "")


def _root(source: AnySource) -> Path:
    """Where a relative folder of texts starts: here, or, from a temporary experiment, where git-ignored texts lie."""
    here = Path.cwd()
    return main_checkout() if isinstance(source, FolderSource) and not has_texts(source, here) else here


if __name__ == "__main__":
    run_main(main)
