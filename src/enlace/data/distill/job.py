"""One job's files: what was asked, what was sent, what was answered.

    LOCK                           held while submitting or collecting
    job.json                       who this job is bound to: model, parameters, account
    manifest.jsonl                 the requests, in order
    batches/000001.intent.json     written before a batch is sent: its custom_ids, and the newest batch there was
    batches/000001.receipt.json    blank before it is sent, with its id as soon as it is accepted (`batches`)
    raw/<batch id>.jsonl           the answers as they came, whole and unjudged; beside it, how many and their hash
    results.jsonl, errors.jsonl    those answers, judged; superseded.jsonl: paid for, and of no use (`deriving`)
    derived.json                   what those three were made from
    events.jsonl                   what happened and what a person decided

Manifest, batches, `raw` and the decisions are the truth; what is judged can be made again from them at no cost.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from enlace import EnlaceError
from enlace.data.distill.batches import Lotes, read_json, write_json
from enlace.data.distill.errors import DistillError, OtraIdentidad, TrabajoOcupado
from enlace.data.distill.records import Record, append_records, read_ids, read_records
from enlace.data.distill.requests import Peticion, como_registro, sin_repetidas
from enlace.durable import locked, write_atomic


@dataclass(frozen=True)
class Trabajo:
    """The job `nombre`, in the folder `raiz`/`nombre`. Writers hold `bloqueo()`; readers need nothing."""

    nombre: str
    raiz: Path

    @property
    def carpeta(self) -> Path:
        """Folder of the job."""
        return Path(self.raiz) / self.nombre

    @property
    def manifiesto_path(self) -> Path:
        """The requests, as `leer_especificaciones` reads them."""
        return self.carpeta / "manifest.jsonl"

    @property
    def resultados_path(self) -> Path:
        """Good answers, one a line: custom_id, batch_id, text, stop_reason, usage."""
        return self.carpeta / "results.jsonl"

    @property
    def errores_path(self) -> Path:
        """Requests without a good answer, one a line: custom_id, batch_id, attempts, class, reason; if paid, usage; if
        refused, category."""
        return self.carpeta / "errors.jsonl"

    @property
    def superados_path(self) -> Path:
        """Answers that were paid for and then superseded by another attempt, one a line, as in errors or results."""
        return self.carpeta / "superseded.jsonl"

    @property
    def derivado_path(self) -> Path:
        """What results, errors and superseded were made from, and how long they are."""
        return self.carpeta / "derived.json"

    @property
    def lotes(self) -> Lotes:
        """The batches on disk."""
        return Lotes(self.carpeta / "batches")

    def crudo_path(self, batch_id: str) -> Path:
        """Where the raw answers of a batch lie once they are complete."""
        return self.carpeta / "raw" / f"{quote(batch_id, safe='')}.jsonl"

    @contextmanager
    def bloqueo(self) -> Iterator[None]:
        """Be the only writer; raises TrabajoOcupado when somebody else is."""
        busy = f"{self.carpeta}: otro proceso está en este trabajo. Espera a que acabe, o páralo con Ctrl-C, y repite"
        with ExitStack() as stack:
            try:
                stack.enter_context(locked(self.carpeta / "LOCK", busy))
            except EnlaceError as error:
                raise (TrabajoOcupado if str(error).startswith(busy) else DistillError)(str(error)) from None
            yield

    # What is asked

    def guardar_peticiones(self, peticiones: Iterable[Peticion]) -> list[Peticion]:
        """Add requests to the manifest, which forgets none; returns those given, without repetitions, in order."""
        unicas = sin_repetidas(peticiones)
        with self.bloqueo():
            self.anotar_peticiones(unicas.values())
        return list(unicas.values())

    def anotar_peticiones(self, peticiones: Iterable[Peticion]) -> None:
        """`guardar_peticiones` for who already holds the lock."""
        if not self.manifiesto_path.exists():
            try:
                write_atomic(self.manifiesto_path, b"")
            except EnlaceError as error:
                raise DistillError(str(error)) from error
        ya = {peticion.custom_id for peticion in self.recorrer_peticiones()}
        nuevas = (p for id, p in sin_repetidas(peticiones).items() if id not in ya)
        append_records(self.manifiesto_path, map(como_registro, nuevas))

    def leer_peticiones(self) -> list[Peticion]:
        """All requests ever saved; raises DistillError when there is no manifest or it is damaged."""
        return list(self.recorrer_peticiones())

    def recorrer_peticiones(self) -> Iterator[Peticion]:
        """`leer_peticiones`, one at a time."""
        if not self.manifiesto_path.exists():
            raise DistillError(f"{self.manifiesto_path}: falta el manifiesto. Guarda primero las peticiones.")
        for row in read_records(self.manifiesto_path):
            try:
                yield Peticion(row["system"], row["user"], row.get("meta", {}), row.get("schema"))
            except (KeyError, DistillError) as error:
                raise DistillError(f"{self.manifiesto_path}: dañado ({error}). Recupéralo de una copia.") from error

    def leer_esquemas(self) -> dict[str, Record]:
        """The schemas that answers have to follow, by `custom_id`; none without a manifest."""
        with_schema = (Peticion(**row) for row in read_records(self.manifiesto_path, having=b'"schema"'))
        return {p.custom_id: p.schema for p in with_schema if p.schema is not None}

    def sin_enviar(self, peticiones: Iterable[Peticion]) -> list[Peticion]:
        """Those that were never sent: no answer, no error, in no batch. Repetitions dropped."""
        enviadas = {id for lote in self.leer_lotes() for id in lote["custom_ids"]}
        enviadas.update(read_ids(self.resultados_path), read_ids(self.errores_path))
        return [peticion for id, peticion in sin_repetidas(peticiones).items() if id not in enviadas]

    # What is sent

    def leer_lotes(self) -> list[Record]:
        """The accepted batches, oldest first: ``numero``, ``id``, ``custom_ids``, ``recogido`` (its answers are here),
        ``aceptado`` (when, in seconds), ``max_tokens`` (its longest answer), ``provisional`` (taken for ours, to
        be confirmed by its answers)."""
        return [lote | {"recogido": self.crudo_path(lote["id"]).exists()} for lote in self.lotes.aceptados()]

    def en_duda(self) -> list[Record]:
        """Batches that may have been accepted, nobody knows: see `batches.Lotes.en_duda`."""
        return self.lotes.en_duda()

    def intento_path(self, numero: int) -> Path:
        """The intent of batch number `numero`."""
        return self.lotes.intento_path(numero)

    def recibo_path(self, numero: int) -> Path:
        """The receipt of batch number `numero`."""
        return self.lotes.recibo_path(numero)

    def exigir_identidad(self, identidad: Record, *, rebind: bool = False) -> None:
        """Bind the job to a model, parameters and account, the first time; later, require the same.

        Args:
            identidad: what the job is bound to; only the keys given are compared.
            rebind: a person says that the job goes on with the new ones.

        Raises:
            OtraIdentidad: it is bound to others; nothing is overwritten.
        """
        path = self.carpeta / "job.json"
        anterior = read_json(path) if path.exists() else {}
        otros = [f"{k}: {anterior[k]} → {v}" for k, v in identidad.items() if k in anterior and anterior[k] != v]
        if otros and not rebind:
            raise OtraIdentidad(
                f"{path}: este trabajo se empezó con otro modelo, otros parámetros u otra cuenta "
                f"({'; '.join(otros)}). No se ha enviado ni cambiado nada. Vuelve a lo de antes en configs/distill o "
                "en .env; o, si lo nuevo es lo que quieres para lo que falte: enlace distill submit --rebind"
            )
        if anterior | identidad != anterior:
            write_json(path, anterior | identidad)
            if otros:
                self.anotar("rebind", cambios=otros)

    def anotar(self, evento: str, **datos: Any) -> None:
        """Add a line to the history."""
        append_records(self.carpeta / "events.jsonl", [{"t": round(time.time(), 3), "evento": evento, **datos}])

    def eventos(self, evento: str) -> Iterator[Record]:
        """The lines of the history of one kind."""
        return (row for row in read_records(self.carpeta / "events.jsonl") if row.get("evento") == evento)

    # What is answered

    def leer_resultados(self) -> Iterator[Record]:
        """The rows of results.jsonl."""
        return read_records(self.resultados_path)

    def leer_errores(self) -> Iterator[Record]:
        """The rows of errors.jsonl."""
        return read_records(self.errores_path)
