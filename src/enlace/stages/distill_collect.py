"""Stage distill-collect: wait for the teacher and write down the conversations.

Reads data/distill/receipt.json and requests.jsonl; writes conversations.jsonl (answered requests of this run, in the
order of the requests), errors.jsonl (the others, and why) and usage.json. The same ledger gives the same bytes.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from enlace.config.dotenv import load_dotenv
from enlace.config.load import load_config
from enlace.config.paths import ledger_dir
from enlace.console import run_main, say
from enlace.data.distill import DistillError, collect, leer_especificaciones, resumen_de_uso
from enlace.data.distill.job import record_line
from enlace.data.distill.teachers import open_job
from enlace.durable import write_atomic

OUT = Path("data/distill")


def main() -> None:
    """Run the stage."""
    load_dotenv()
    config = load_config()
    trabajo, cliente = open_job(config.layers.teacher, config.distill, ledger_dir())
    wanted = leer_especificaciones(OUT / "requests.jsonl")
    receipt = json.loads((OUT / "receipt.json").read_bytes())
    if receipt["job"] != trabajo.nombre or trabajo.sin_enviar(wanted):
        raise DistillError(
            f"{trabajo.carpeta} no guarda todos los lotes de {OUT / 'receipt.json'} (¿otra máquina, o se borró?). "
            "Envía de nuevo lo que falte con: dvc repro -f -s distill-submit"
        )
    counts = collect(trabajo, cliente, config.distill)
    say(f"{counts['ok']} respuestas y {counts['error']} errores nuevos; {counts['ya_estaban']} ya estaban")

    answers = {row["custom_id"]: row["text"] for row in trabajo.leer_resultados()}
    failures = {row["custom_id"]: row for row in trabajo.leer_errores()}
    conversations, errors = [], []
    for peticion in wanted:
        id = peticion.custom_id
        asked = {"custom_id": id, "system": peticion.system, "user": peticion.user}
        if id in answers:
            conversations.append(asked | {"assistant": answers[id], "meta": peticion.meta})
        else:
            why = {"class": failures[id]["class"], "reason": failures[id]["reason"]}
            errors.append(asked | why | {"meta": peticion.meta})
    _write("conversations.jsonl", conversations)
    _write("errors.jsonl", errors)
    usage = resumen_de_uso(trabajo, config.distill)
    write_atomic(OUT / "usage.json", json.dumps(usage, indent=1).encode() + b"\n")
    say(f"{len(conversations)} conversaciones; {len(errors)} sin respuesta (motivos en {OUT / 'errors.jsonl'})")


def _write(name: str, records: Iterable[dict[str, Any]]) -> None:
    write_atomic(OUT / name, b"".join(map(record_line, records)))


if __name__ == "__main__":
    run_main(main)
