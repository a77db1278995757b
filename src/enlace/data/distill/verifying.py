"""Check a job against what it promises, reading every byte of it; asks the teacher nothing."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

from enlace.data.distill.batches import read_json
from enlace.data.distill.client import Cliente
from enlace.data.distill.collecting import rebuild
from enlace.data.distill.job import Trabajo
from enlace.data.distill.records import read_ids


def verify(trabajo: Trabajo, cliente: Cliente) -> Iterator[str]:
    """What is wrong, one sentence each; nothing if all is well. Results and errors are made anew on the way.

    Raises:
        DistillError: damage that leaves nothing to compare; the message names the file.
    """
    asked = {peticion.custom_id for peticion in trabajo.recorrer_peticiones()}
    for intento in trabajo.en_duda():
        yield f"{trabajo.intento_path(intento['numero'])}: envío en duda (enlace distill resolve)"
    for lote in trabajo.leer_lotes():
        if unknown := set(lote["custom_ids"]) - asked:
            yield f"{trabajo.intento_path(lote['numero'])}: {len(unknown)} peticiones que no están en el manifiesto"
        if lote["recogido"]:
            yield from _raw(trabajo.crudo_path(lote["id"]))
    made = (trabajo.resultados_path, trabajo.errores_path, trabajo.superados_path)
    before = [_digest(path) for path in made]
    rebuild(trabajo, cliente)
    for path, old in zip(made, before, strict=True):
        if old is not None and old != _digest(path):
            yield f"{path}: no era lo que dicen las respuestas guardadas; rehecho"
    good, bad = list(read_ids(trabajo.resultados_path)), list(read_ids(trabajo.errores_path))
    if len({*good, *bad}) != len(good) + len(bad):
        yield f"{trabajo.carpeta}: hay peticiones con más de un desenlace"


def _raw(path: Path) -> Iterator[str]:
    noted = path.with_suffix(".json")
    if noted.exists() and (said := read_json(noted).get("sha256")) != _digest(path):
        yield f"{path}: cambió desde que se descargó (sha256 {str(said)[:12]}...). Recupéralo de una copia"


def _digest(path: Path) -> str | None:
    if not path.exists():
        return None
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
