"""Stage distill-collect: wait for the teacher and write down the conversations.

Reads data/distill/receipt.json and requests.jsonl; writes conversations.jsonl (answered requests of this run, in the
order of the requests), errors.jsonl (the others, and why) and usage.json. The same ledger gives the same bytes.
"""

from __future__ import annotations

import json
from pathlib import Path

from enlace.config.dotenv import load_dotenv
from enlace.config.load import load_config
from enlace.config.paths import ledger_dir
from enlace.console import run_main, say
from enlace.data.distill import DistillError, collect, leer_especificaciones, resumen_de_uso
from enlace.data.distill.collecting import rebuild
from enlace.data.distill.exporting import export
from enlace.data.distill.teachers import open_job
from enlace.durable import reason, write_atomic

OUT = Path("data/distill")
RECEIPT = OUT / "receipt.json"
RESUBMIT = "dvc repro -f -s distill-submit"


def main() -> None:
    """Run the stage."""
    load_dotenv()
    config = load_config()
    trabajo, cliente = open_job(config.distill, ledger_dir())
    job = _job_of_receipt()
    wanted = leer_especificaciones(OUT / "requests.jsonl")
    if job != trabajo.nombre:
        raise DistillError(
            f"{RECEIPT} es del trabajo {job}, y con lo que dicen ahora params.yaml y configs/distill el trabajo es "
            f"{trabajo.nombre}. Vuelve a lo de antes para recogerlo; o, si lo de ahora es lo que quieres: dvc repro"
        )
    if trabajo.sin_enviar(wanted):
        raise DistillError(
            f"{trabajo.carpeta} no guarda todos los lotes de {RECEIPT} (¿se enviaron desde otra máquina, o se borró?). "
            "Lo primero es traer data/ledger de esa máquina o de una copia, y así nada se paga dos veces. Solo si no "
            f"hay de dónde, envía de nuevo lo que falte: {RESUBMIT}"
        )
    counts = collect(trabajo, cliente, config.distill, peticiones=wanted)
    say(f"{counts['ok']} respuestas y {counts['error']} errores nuevos; {counts['ya_estaban']} ya estaban")

    rebuild(trabajo, cliente)  # by the rules of now, from the answers as they came
    made = export(trabajo, wanted, OUT / "conversations.jsonl", OUT / "errors.jsonl")
    usage = resumen_de_uso(trabajo, config.distill)
    write_atomic(OUT / "usage.json", json.dumps(usage, indent=1).encode() + b"\n")
    say(f"{made.answered} conversaciones; {made.failed} sin respuesta (motivos en {OUT / 'errors.jsonl'})")


def _job_of_receipt() -> str:
    try:
        receipt = json.loads(RECEIPT.read_bytes())
    except OSError as error:
        raise DistillError(f"{RECEIPT}: no se puede leer ({reason(error)}). Repite: {RESUBMIT}") from error
    except ValueError as error:
        raise DistillError(f"{RECEIPT}: está dañado, no es JSON. Repite: {RESUBMIT}") from error
    if not isinstance(receipt, dict) or not isinstance(receipt.get("job"), str):
        raise DistillError(f"{RECEIPT}: no dice de qué trabajo es. Repite: {RESUBMIT}")
    return receipt["job"]


if __name__ == "__main__":
    run_main(main)
