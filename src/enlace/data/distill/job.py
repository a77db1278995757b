"""One job's files: what was asked, what was sent, what was answered.

    LOCK                           held while submitting or collecting
    manifest.jsonl                 the requests, in order
    batches/000001.intent.json     written before a batch is sent: its custom_ids
    batches/000001.receipt.json    written as soon as it is accepted: its id
    raw/<batch id>.jsonl           what the client gave for each answer (the protocol of `client`), whole and unjudged
    results.jsonl, errors.jsonl    those answers, judged

The manifest, the batches and `raw` are the truth; results and errors can be rebuilt from them at no cost. An intent
without a receipt is a batch that may or may not exist (and cost money): nothing is sent until that is known.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from enlace import EnlaceError
from enlace.data.distill.errors import DistillError
from enlace.data.distill.records import Record, read_records, writing
from enlace.data.distill.requests import Peticion, especificaciones, leer_especificaciones, sin_repetidas
from enlace.durable import fsync_dir, locked, reason, write_atomic


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
        """Requests without a good answer, one a line: custom_id, batch_id, class, reason; if paid, usage; if refused,
        category."""
        return self.carpeta / "errors.jsonl"

    def crudo_path(self, batch_id: str) -> Path:
        """Where the raw answers of a batch lie once they are complete."""
        return self.carpeta / "raw" / f"{quote(batch_id, safe='')}.jsonl"

    @contextmanager
    def bloqueo(self) -> Iterator[None]:
        """Be the only writer; raises DistillError when somebody else is."""
        busy = f"{self.carpeta}: otro proceso está en este trabajo. Espera a que acabe y repite"
        with ExitStack() as stack:
            try:
                stack.enter_context(locked(self.carpeta / "LOCK", busy))
            except EnlaceError as error:
                raise DistillError(str(error)) from None
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
        ya = sin_repetidas(self.leer_peticiones()) if self.manifiesto_path.exists() else {}
        todas = sin_repetidas([*ya.values(), *peticiones])
        if len(todas) > len(ya) or not ya:
            _write(self.manifiesto_path, especificaciones(todas.values()))

    def leer_peticiones(self) -> list[Peticion]:
        """All requests ever saved; raises DistillError when there is no manifest or it is damaged."""
        if not self.manifiesto_path.exists():
            raise DistillError(f"{self.manifiesto_path}: falta el manifiesto. Guarda primero las peticiones.")
        return leer_especificaciones(self.manifiesto_path)

    def leer_esquemas(self) -> dict[str, Record]:
        """The schemas that answers have to follow, by `custom_id`; none without a manifest."""
        peticiones = self.leer_peticiones() if self.manifiesto_path.exists() else []
        return {peticion.custom_id: peticion.schema for peticion in peticiones if peticion.schema is not None}

    def sin_enviar(self, peticiones: Iterable[Peticion]) -> list[Peticion]:
        """Those that were never sent: no answer, no error, in no batch. Repetitions dropped."""
        enviadas = {id for lote in self.leer_lotes() for id in lote["custom_ids"]}
        enviadas |= {row["custom_id"] for rows in (self.leer_resultados(), self.leer_errores()) for row in rows}
        return [peticion for id, peticion in sin_repetidas(peticiones).items() if id not in enviadas]

    # What is sent

    def escribir_intento(self, custom_ids: list[str], idempotente: bool) -> int:
        """Put on disk that a batch with these requests is about to be sent; returns its number."""
        numbers = [int(path.name.split(".")[0]) for path in self._lotes.glob("[0-9]*.json")]
        numero = max(numbers, default=0) + 1
        intent = {"custom_ids": custom_ids, "idempotente": idempotente}
        _write(self.intento_path(numero), _json(intent))
        return numero

    def escribir_recibo(self, numero: int, batch_id: str) -> None:
        """Put on disk that batch number `numero` was accepted as `batch_id`."""
        _write(self.recibo_path(numero), _json({"id": batch_id}))

    def borrar_intento(self, numero: int) -> None:
        """Forget an intent that certainly was not accepted."""
        with writing(self.intento_path(numero)):
            self.intento_path(numero).unlink()
            fsync_dir(self._lotes)

    def intento_path(self, numero: int) -> Path:
        """The intent of batch number `numero`."""
        return self._lotes / f"{numero:06}.intent.json"

    def recibo_path(self, numero: int) -> Path:
        """The receipt of batch number `numero`."""
        return self._lotes / f"{numero:06}.receipt.json"

    def leer_lotes(self) -> list[Record]:
        """The accepted batches, oldest first: ``{"numero", "id", "custom_ids", "recogido"}``."""
        lotes = []
        for numero, intento in self._intentos():
            path = self.recibo_path(numero)
            if path.exists():
                batch_id = _read_json(path).get("id")
                if not isinstance(batch_id, str) or not batch_id:
                    raise DistillError(f'{path}: se esperaba {{"id": "<id del lote>"}}. Corrígelo a mano.')
                recogido = self.crudo_path(batch_id).exists()
                lotes.append(
                    {"numero": numero, "id": batch_id, "custom_ids": intento["custom_ids"], "recogido": recogido}
                )
        return lotes

    def en_duda(self) -> list[Record]:
        """Intents without a receipt: ``{"numero", "custom_ids", "idempotente"}``."""
        return [
            {"numero": numero, **intento}
            for numero, intento in self._intentos()
            if not self.recibo_path(numero).exists()
        ]

    # What is answered

    def leer_resultados(self) -> Iterator[Record]:
        """The rows of results.jsonl."""
        return read_records(self.resultados_path)

    def leer_errores(self) -> Iterator[Record]:
        """The rows of errors.jsonl."""
        return read_records(self.errores_path)

    @property
    def _lotes(self) -> Path:
        return self.carpeta / "batches"

    def _intentos(self) -> Iterator[tuple[int, Record]]:
        receipts, intents = (
            {int(path.name.split(".")[0]) for path in self._lotes.glob(f"[0-9]*.{kind}.json")}
            for kind in ("receipt", "intent")  # in the order that a writer beside us cannot make look wrong
        )
        for numero in sorted(receipts - intents):
            raise DistillError(
                f"{self.intento_path(numero)}: falta, y {self.recibo_path(numero)} dice que ese lote se envió. "
                "Recupéralo de una copia: sin saber qué peticiones lleva se pagarían otra vez."
            )
        for numero in sorted(intents):
            path = self.intento_path(numero)
            intento = _read_json(path)
            ids = intento.get("custom_ids")
            whole = isinstance(ids, list) and all(isinstance(id, str) for id in ids)
            if not whole or not isinstance(intento.get("idempotente"), bool):
                raise DistillError(f"{path}: archivo dañado, faltan datos del lote. Recupéralo de una copia.")
            yield numero, intento


def _write(path: Path, data: bytes) -> None:
    try:
        write_atomic(path, data)
    except EnlaceError as error:
        raise DistillError(str(error)) from error


def _json(record: Record) -> bytes:
    return json.dumps(record, ensure_ascii=False, indent=1).encode() + b"\n"


def _read_json(path: Path) -> Record:
    try:
        record = json.loads(path.read_bytes())
    except OSError as error:
        raise DistillError(f"{path}: no se puede leer ({reason(error)}).") from error
    except ValueError as error:
        raise DistillError(f"{path}: no es JSON; está dañado o mal escrito. Recupéralo de una copia.") from error
    if not isinstance(record, dict):
        raise DistillError(f"{path}: se esperaba un objeto JSON {{...}}. Recupéralo de una copia.")
    return record
