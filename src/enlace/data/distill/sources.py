"""What the project asks its teacher: the requests of data/specs, and questions about each document of data/raw."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from enlace.console import progress
from enlace.data.distill.questions import questions_from_document
from enlace.data.distill.requests import Peticion, leer_especificaciones
from enlace.data.documents import read_documents


def project_requests(questions_per_document: int, root: Path = Path()) -> Iterator[Peticion]:
    """All of them, in an order that does not change."""
    for path in sorted((root / "data" / "specs").glob("*.jsonl")):
        yield from leer_especificaciones(path)
    for path in sorted((root / "data" / "raw").glob("*.jsonl")):
        with progress() as bar:
            for document in bar.track(list(read_documents(path)), description=f"preguntas sobre {path.stem}"):
                yield from questions_from_document(document, questions_per_document)
