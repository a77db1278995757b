"""Bring the answers of a batch that has ended, whole, and compare them with what was sent."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from typing import Any

from enlace.data.distill.batches import write_json
from enlace.data.distill.client import Cliente, ConLineas
from enlace.data.distill.errors import DescargaRota, DistillError
from enlace.data.distill.job import Trabajo
from enlace.data.distill.records import Record, record_line, writing
from enlace.data.distill.telling import named, tell
from enlace.durable import fsync_dir

# A download cut between two lines looks complete; only counting shows it.
_DOWNLOADS = 3


class Unanswered(Exception):
    """The teacher could not be asked this time; asked later, it may answer."""


class Download:
    """Puts the answers of a batch in `raw/<id>.jsonl`, once complete; asks again for those that did not come."""

    def __init__(self, trabajo: Trabajo, lote: Record, cliente: Cliente) -> None:
        self._trabajo, self._lote, self._cliente = trabajo, lote, cliente
        self._missing = set(lote["custom_ids"])
        self._wanted = len(self._missing)
        self._strange = 0
        self._hash = hashlib.sha256()
        self._lines = 0

    def run(self, lost: bool) -> None:
        """Download; `lost` if the provider no longer has the answers."""
        raw = self._trabajo.crudo_path(self._lote["id"])
        part = raw.with_suffix(".part")
        with writing(part):
            part.parent.mkdir(exist_ok=True)
            with part.open("wb") as file:
                for line in self._lost_lines() if lost else self._all_lines():
                    file.write(line + b"\n")
                    self._hash.update(line + b"\n")
                    self._lines += 1
                file.flush()
                os.fsync(file.fileno())
            if self._lote["provisional"]:
                self._require_ours(lost)
            write_json(raw.with_suffix(".json"), {"sha256": self._hash.hexdigest(), "lines": self._lines})
            part.replace(raw)
            fsync_dir(raw.parent)
        if self._missing or self._strange or lost:
            counts = {"faltan": len(self._missing), "sobran": self._strange, "perdido": lost}
            self._trabajo.anotar("reconciliado", id=self._lote["id"], **counts)
        if self._missing:
            tell(f"aviso: {raw}: faltan {len(self._missing)} respuestas de {self._wanted}")
        if self._strange:
            tell(f"aviso: {raw}: {self._strange} líneas repetidas o de otras peticiones; no se usan")

    def _all_lines(self) -> Iterator[bytes]:
        """The lines of the first download, then those of later ones that had not come yet.

        Raises DescargaRota when answers have not come and any of the downloads broke: that they are missing would be
        the word of fewer downloads than it takes.
        """
        broken: DescargaRota | None = None
        for attempt in range(1, _DOWNLOADS + 1):
            try:
                for id, line in _lines(self._cliente, self._lote["id"]):
                    if id in self._missing:
                        self._missing.discard(id)
                        yield line
                    elif attempt == 1:  # kept, to be looked at
                        self._strange += 1
                        yield line
            except DescargaRota as error:
                broken = error
            else:
                if not self._missing:
                    return
        if broken:
            raise broken

    def _lost_lines(self) -> Iterator[bytes]:
        """What to keep of each request when its answer is gone for ever."""
        for id in self._lote["custom_ids"]:
            lost = {"custom_id": id, "type": "errored", "error_type": "results_lost"}
            yield record_line(lost | {"result": {"type": "results_lost"}}).rstrip(b"\n")
        self._missing = set()

    def _require_ours(self, lost: bool) -> None:
        """Settle whether a batch that was only taken for ours is ours: its answers are, or none of them is."""
        numero, id = self._lote["numero"], self._lote["id"]
        if lost or not self._lines or len(self._missing) < self._wanted:
            self._trabajo.lotes.confirmar(numero)
            return
        self._trabajo.anotar("ajeno", numero=numero, id=id)
        self._trabajo.lotes.soltar(numero, id)
        raise DistillError(
            f"{id}: no es el lote que se buscaba, sus respuestas son de otras peticiones. El envío {numero} sigue en "
            "duda: repite `submit` y se buscará otra vez"
        )


def _lines(cliente: Cliente, batch_id: str) -> Iterator[tuple[Any, bytes]]:
    """The answers of a batch as they are kept, each with its `custom_id`."""
    try:
        if isinstance(cliente, ConLineas):
            for line in cliente.lineas(batch_id):
                try:
                    yield cliente.leer_linea(line).get("custom_id"), line
                except ValueError as error:
                    raise DescargaRota(
                        f"{batch_id}: resultados ilegibles, quizá una descarga cortada. Repite: siguen en el servidor."
                    ) from error
        else:
            for row in cliente.resultados(batch_id):
                yield row.get("custom_id"), record_line(row).rstrip(b"\n")
    except DistillError:
        raise
    except Exception as error:
        raise Unanswered(named(error)) from error
