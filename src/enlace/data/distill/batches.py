"""The batches of a job on disk, so that a kill at any point says what may have been paid for.

A batch goes through three writes, each synced before the next: its intent; its receipt, blank, whose room on the disk
is thereby taken; and, once the teacher has accepted it, its id in that receipt. So:

    intent without an id   it may have been sent: in doubt until somebody knows
    intent and id          accepted

An intent without any receipt was most likely never sent, but a copy made at that moment looks the same: in doubt too.
The id needs no new room: a disk that fills up while the batch is being sent does not lose it.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from enlace import EnlaceError
from enlace.data.distill.errors import DistillError
from enlace.data.distill.records import Record, writing
from enlace.durable import fsync_dir, reason, write_atomic

_ROOM = 4096
_BLANK = b" " * (_ROOM - 1) + b"\n"


@dataclass(frozen=True)
class Lotes:
    """The folder `carpeta`, with two files per batch. Writers hold the lock of the job."""

    carpeta: Path

    def intento_path(self, numero: int) -> Path:
        """The intent of batch number `numero`."""
        return self.carpeta / f"{numero:06}.intent.json"

    def recibo_path(self, numero: int) -> Path:
        """The receipt of batch number `numero`."""
        return self.carpeta / f"{numero:06}.receipt.json"

    def escribir_intento(
        self,
        custom_ids: list[str],
        *,
        idempotente: bool = False,
        valla: Record | None = None,
        max_tokens: int | None = None,
    ) -> int:
        """Put on disk that a batch with these requests is about to be sent; returns its number.

        Args:
            idempotente: sending it twice costs nothing.
            valla: ``{"id", "creado"}`` of the newest batch that the teacher had (nulls if none); nothing if unknown.
            max_tokens: the longest answer that it asks for.
        """
        numbers = [int(path.name.split(".")[0]) for path in self.carpeta.glob("[0-9]*.json")]
        numero = max(numbers, default=0) + 1
        intento: Record = {"idempotente": idempotente, "valla": valla, "max_tokens": max_tokens, "ajenos": []}
        write_json(self.intento_path(numero), {**intento, "custom_ids": custom_ids})
        _write(self.recibo_path(numero), _BLANK)
        return numero

    def escribir_recibo(self, numero: int, batch_id: str, *, provisional: bool = False) -> None:
        """Put on disk that batch number `numero` was accepted as `batch_id`.

        Args:
            provisional: taken for ours by its size and date; its answers will tell.
        """
        receipt = {"id": batch_id, "aceptado": round(time.time(), 3), "provisional": provisional}
        data = json.dumps(receipt, ensure_ascii=False).encode() + b"\n"
        path = self.recibo_path(numero)
        with writing(path):
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT, 0o644)
            try:
                os.pwrite(descriptor, data.ljust(_ROOM - 1) + b"\n", 0)
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
            fsync_dir(self.carpeta)

    def confirmar(self, numero: int) -> None:
        """The answers of a provisional batch showed that it is ours."""
        write_json(self.recibo_path(numero), read_json(self.recibo_path(numero)) | {"provisional": False})

    def soltar(self, numero: int, ajeno: str) -> None:
        """Batch `ajeno`, taken for number `numero`, is somebody else's: in doubt again, and not to be taken again."""
        intento = read_json(self.intento_path(numero))
        ajenos = [*intento.get("ajenos", []), ajeno]
        write_json(self.intento_path(numero), {"ajenos": ajenos} | {k: v for k, v in intento.items() if k != "ajenos"})
        _write(self.recibo_path(numero), _BLANK)

    def borrar_intento(self, numero: int) -> None:
        """Forget an intent that certainly was not accepted."""
        with writing(self.intento_path(numero)):
            # In this order: an intent alone would be in doubt, a blank receipt alone is nothing.
            self.intento_path(numero).unlink()
            fsync_dir(self.carpeta)
            self.recibo_path(numero).unlink(missing_ok=True)

    def aceptados(self) -> Iterator[Record]:
        """The accepted batches, oldest first; see `Trabajo.leer_lotes`."""
        for numero, intento in self._intentos():
            recibo = self._recibo(numero)
            if recibo is not None:
                yield _lote(numero, intento, recibo)

    def aceptado(self, numero: int) -> Record:
        """One of `aceptados`."""
        recibo = self._recibo(numero)
        if recibo is None:
            raise DistillError(f"{self.recibo_path(numero)}: falta, y hace un momento estaba. Recupéralo de una copia.")
        return _lote(numero, self._intento(numero), recibo)

    def en_duda(self) -> list[Record]:
        """Intents without an id: ``numero`` and what the intent says."""
        return [{"numero": numero, **intento} for numero, intento in self._intentos() if self._recibo(numero) is None]

    def ids(self) -> set[str]:
        """Of the accepted batches."""
        recibos = (self._recibo(int(path.name.split(".")[0])) for path in self.carpeta.glob("[0-9]*.receipt.json"))
        return {recibo["id"] for recibo in recibos if recibo is not None}

    def _recibo(self, numero: int) -> Record | None:
        """What the receipt says; None while it is blank."""
        path = self.recibo_path(numero)
        if not path.exists() or not _bytes(path).strip():
            return None
        try:
            recibo = read_json(path)
        except DistillError:
            recibo = {}
        if not isinstance(recibo.get("id"), str) or not recibo["id"]:
            raise DistillError(
                f"{path}: está dañado, y ese lote se aceptó. Busca su id en la consola del proveedor y escribe ahí "
                '{"id": "<id del lote>"}.'
            )
        return recibo

    def _intentos(self) -> Iterator[tuple[int, Record]]:
        receipts, intents = (
            {int(path.name.split(".")[0]) for path in self.carpeta.glob(f"[0-9]*.{kind}.json")}
            for kind in ("receipt", "intent")  # in the order that a writer beside us cannot make look wrong
        )
        for numero in sorted(receipts - intents):
            if self._recibo(numero) is not None:
                raise DistillError(
                    f"{self.intento_path(numero)}: falta, y {self.recibo_path(numero)} dice que ese lote se envió. "
                    "Recupéralo de una copia: sin saber qué peticiones lleva se pagarían otra vez."
                )
        for numero in sorted(intents):
            yield numero, self._intento(numero)

    def _intento(self, numero: int) -> Record:
        path = self.intento_path(numero)
        intento = read_json(path)
        ids = intento.get("custom_ids")
        whole = isinstance(ids, list) and all(isinstance(id, str) for id in ids)
        if not whole or not isinstance(intento.get("idempotente"), bool):
            raise DistillError(f"{path}: archivo dañado, faltan datos del lote. Recupéralo de una copia.")
        return intento


def _lote(numero: int, intento: Record, recibo: Record) -> Record:
    return {
        "numero": numero,
        "id": recibo["id"],
        "custom_ids": intento["custom_ids"],
        "aceptado": recibo.get("aceptado"),
        "provisional": bool(recibo.get("provisional")),
        "max_tokens": intento.get("max_tokens"),
    }


def write_json(path: Path, record: Record) -> None:
    """Put an object in a file, whole and durably; raises DistillError."""
    _write(path, json.dumps(record, ensure_ascii=False).encode() + b"\n")


def read_json(path: Path) -> Record:
    """The object in a file; raises DistillError, naming it, when there is none."""
    try:
        record = json.loads(_bytes(path))
    except ValueError as error:
        raise DistillError(f"{path}: no es JSON; está dañado o mal escrito. Recupéralo de una copia.") from error
    if not isinstance(record, dict):
        raise DistillError(f"{path}: se esperaba un objeto JSON {{...}}. Recupéralo de una copia.")
    return record


def _write(path: Path, data: bytes) -> None:
    try:
        write_atomic(path, data)
    except EnlaceError as error:
        raise DistillError(str(error)) from error


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise DistillError(f"{path}: no se puede leer ({reason(error)}).") from error
