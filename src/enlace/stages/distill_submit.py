"""Stage distill-submit: write down what to ask the teacher, and send what was never sent.

Reads data/raw/*.jsonl (the corpus) and data/specs/*.jsonl (requests written by hand); writes
data/distill/requests.jsonl (what this run wants answered) and data/distill/receipt.json (the batches that hold it).
The ledger decides whether anything is sent, so running this stage again is free.
"""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

from enlace.config.dotenv import load_dotenv
from enlace.config.load import load_config
from enlace.config.paths import ledger_dir
from enlace.console import run_main, say
from enlace.data.distill import submit
from enlace.data.distill.requests import especificaciones
from enlace.data.distill.sources import project_requests
from enlace.data.distill.teachers import open_job, who_answers
from enlace.data.distill.usage import require_budget, usd_of
from enlace.durable import write_atomic

OUT = Path("data/distill")


def main() -> None:
    """Run the stage."""
    load_dotenv()
    config = load_config()
    trabajo, cliente = open_job(config.distill, ledger_dir())
    wanted = trabajo.guardar_peticiones(project_requests(config.distill.questions_per_document))
    unsent = trabajo.sin_enviar(wanted)
    say(f"{len(wanted)} peticiones; {len(wanted) - len(unsent)} ya se enviaron antes y no se repiten")
    limit = None
    if config.distill.teacher == "anthropic":
        allowed = os.environ.get("DISTILL_BUDGET_USD", "0")
        require_budget(trabajo, unsent, config.distill, allowed)
        limit = usd_of(allowed, "DISTILL_BUDGET_USD")
    sent = submit(trabajo, wanted, cliente, config.distill, max_usd=limit)
    say(f"{len(sent)} lotes enviados al profesor «{config.layers.teacher}»")

    ids = {peticion.custom_id for peticion in wanted}
    receipt = {
        "job": trabajo.nombre,
        "teacher": config.distill.teacher,
        "model": who_answers(config.distill),
        "requests": len(wanted),
        "digest": hashlib.sha256("\n".join(sorted(ids)).encode()).hexdigest(),
        "batches": [lote["id"] for lote in trabajo.leer_lotes() if not ids.isdisjoint(lote["custom_ids"])],
    }
    write_atomic(OUT / "requests.jsonl", especificaciones(wanted))
    write_atomic(OUT / "receipt.json", json.dumps(receipt, ensure_ascii=False, indent=1).encode() + b"\n")


if __name__ == "__main__":
    run_main(main)
