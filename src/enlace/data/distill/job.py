"""One job's files: what was asked, what was sent, what was answered.

    LOCK                           held while submitting or collecting
    manifest.jsonl                 the requests, in order
    batches/000001.intent.json     written before a batch is sent: its custom_ids
    batches/000001.receipt.json    written as soon as it is accepted: its id
    raw/<batch id>.jsonl           the teacher's answers as they came
    results.jsonl, errors.jsonl    those answers, judged

The manifest, the batches and `raw` are the truth; results and errors can be rebuilt from them at no cost. An intent
without a receipt is a batch that may or may not exist (and cost money): nothing is sent until that is known.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from enlace import EnlaceError
from enlace.data.distill.errors import DistillError
from enlace.data.distill.requests import Peticion, especificaciones, leer_especificaciones, sin_repetidas
from enlace.durable import fsync_dir, locked, write_atomic

Record = dict[str, Any]


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
        """Requests without a good answer, one a line: custom_id, batch_id, class, reason and, if paid, usage."""
        return self.carpeta / "errors.jsonl"

    def crudo_path(self, batch_id: str) -> Path:
        """Where the raw answers of a batch lie once they are complete."""
        return self.carpeta / "raw" / f"{quote(batch_id, safe='')}.jsonl"

    @contextmanager
    def bloqueo(self) -> Iterator[None]:
        """Be the only writer; raises DistillError when somebody else is."""
        with ExitStack() as stack:
            try:
                stack.enter_context(locked(self.carpeta / "LOCK", f"{self.carpeta}: otro proceso está en este trabajo"))
            except EnlaceError as error:
                raise DistillError(f"{error}. Espera a que acabe y repite.") from None
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

    def sin_enviar(self, peticiones: Iterable[Peticion]) -> list[Peticion]:
        """Those that were never sent: no answer, no error, in no batch. Repetitions dropped."""
        enviadas = {id for lote in self.leer_lotes() for id in lote["custom_ids"]}
        enviadas |= {row["custom_id"] for row in self.leer_resultados()}
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
        for path in sorted(self._lotes.glob("[0-9]*.intent.json")):
            intento = _read_json(path)
            if not isinstance(intento.get("custom_ids"), list):
                raise DistillError(f"{path}: archivo dañado, faltan los custom_ids. Recupéralo de una copia.")
            yield int(path.name.split(".")[0]), intento


def read_records(path: Path) -> Iterator[Record]:
    """The JSON objects of an append-only file; none when it does not exist.

    A last line without its end is an append that a power cut tore: it was never committed and is ignored. Any other
    bad line is damage, and raises DistillError with ``path:line:``.
    """
    if not path.exists():
        return
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if not line.endswith(b"\n"):
                return
            try:
                record = json.loads(line)
            except ValueError as error:
                raise DistillError(
                    f"{path}:{number}: línea dañada ({error}). Recupera el archivo de una copia."
                ) from error
            if not isinstance(record, dict):
                raise DistillError(f"{path}:{number}: se esperaba un objeto JSON. Recupera el archivo de una copia.")
            yield record


def append_records(path: Path, records: Iterable[Record]) -> None:
    """Add lines durably. A torn last line is moved aside to `<path>.torn` first, so that nothing is glued to it."""
    data = b"".join(record_line(record) for record in records)
    if not data:
        return
    try:
        with path.open("a+b") as file:
            torn = _torn_tail(file.fileno())
            if torn:
                with path.with_name(path.name + ".torn").open("ab") as aside:
                    aside.write(torn + b"\n")
                file.truncate(file.seek(0, os.SEEK_END) - len(torn))
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        fsync_dir(path.parent)
    except OSError as error:
        raise DistillError(f"{path}: no se puede escribir ({error.strerror}). Nada se ha perdido: repite.") from error


def record_line(record: Record) -> bytes:
    """One line of JSON; a lone half of a surrogate pair, which UTF-8 cannot hold, is written as its escape."""
    try:
        return json.dumps(record, ensure_ascii=False).encode() + b"\n"
    except UnicodeEncodeError:
        return json.dumps(record).encode() + b"\n"


def _torn_tail(descriptor: int) -> bytes:
    """What follows the last newline of an open file."""
    end = os.fstat(descriptor).st_size
    tail = b""
    while end > 0 and b"\n" not in tail:
        start = max(0, end - 65536)
        tail = os.pread(descriptor, end - start, start) + tail
        end = start
    return tail[tail.rfind(b"\n") + 1 :]


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
    except (OSError, ValueError) as error:
        raise DistillError(f"{path}: no se puede leer ({error}). Recupéralo de una copia.") from error
    if not isinstance(record, dict):
        raise DistillError(f"{path}: se esperaba un objeto JSON.")
    return record
