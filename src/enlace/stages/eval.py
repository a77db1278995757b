"""eval: the trained model in; figures, samples, the sets that were measured and the page out (reports/)."""

from __future__ import annotations

import json
import os
from itertools import chain
from pathlib import Path
from typing import Any

import torch

from enlace.config.load import hardware_profiles, load_config
from enlace.config.paths import project_root
from enlace.console import run_main, say
from enlace.data.conversations import read_conversations
from enlace.data.documents import read_documents
from enlace.data.shards import open_shards
from enlace.durable import write_atomic
from enlace.eval.minimal_pairs import FILE, load_phenomena
from enlace.eval.page import Report, page
from enlace.eval.plots import bits_per_byte_by_step, csv_bytes, pairs_picture, read_log, training_pictures
from enlace.eval.report import measure, tokens_per_byte
from enlace.eval.sets import write_sets
from enlace.eval.tools import tool_figures
from enlace.export.card import model_card
from enlace.export.trained import load_trained
from enlace.model.transformer import head_dim
from enlace.train.backends import prepare, this_machine

RAW, SHARDS, MODEL = Path("data/raw"), Path("data/shards"), Path("models/enlace")
CONVERSATIONS, REPORTS, CARD = Path("data/distill/conversations.jsonl"), Path("reports"), Path("models/MODEL_CARD.md")


def main() -> None:
    """Measure models/enlace on what it was not trained on.

    In float32 whatever the profile trains in, so that the figures are those that other programs find for the export.
    """
    config = load_config()
    trained, shards, phenomena = load_trained(MODEL), open_shards(SHARDS), load_phenomena(FILE)
    profiles, width = hardware_profiles(project_root()), head_dim(trained.model.config)
    runtime = prepare(config.layers.hardware, config.hardware, profiles, this_machine(), width)
    trained.model.to(runtime.device)
    documents = chain.from_iterable(map(read_documents, sorted(RAW.glob("*.jsonl"))))
    conversations = list(read_conversations(CONVERSATIONS))
    val_fraction = config.data.shards.val_fraction
    found = measure(trained, shards, phenomena, documents, conversations, val_fraction, config.eval)
    tools = tool_figures(
        trained, conversations, val_fraction, config.eval.max_conversations, config.eval.max_new_tokens
    )
    measured = {**found.metrics, "tools": tools}
    metrics = {group: {key: round(value, 4) for key, value in of.items()} for group, of in measured.items()}

    run, sources = (json.loads(path.read_bytes()) for path in (MODEL / "run.json", SHARDS / "sources.json"))
    machine = {
        "procesador o tarjeta": runtime.machine_name,
        "núcleos": str(os.cpu_count()),
        "hilos": str(torch.get_num_threads()),
        "torch": torch.__version__,
        "tipo": "float32",
    }
    log = read_log(REPORTS / "train.csv")
    by_step = bits_per_byte_by_step(log, tokens_per_byte(trained, shards))
    pictures = training_pictures(log, by_step), pairs_picture(found.shares)
    shown = Report(metrics, phenomena, found, *pictures, run, config.eval.model_dump(), machine, sources)
    _write_json(REPORTS / "metrics.json", metrics)
    _write_json(REPORTS / "samples.json", found.samples)
    write_sets(REPORTS / "sets", trained.tokenizer, found.texts, found.pairs, found.choices, found.asked, found.refused)
    write_atomic(REPORTS / "bits_per_byte.csv", csv_bytes(by_step))
    write_atomic(REPORTS / "pairs.csv", csv_bytes([{"phenomenon": k, **s.row()} for k, s in found.shares.items()]))
    write_atomic(REPORTS / "informe.html", page(shown).encode())
    write_atomic(REPORTS / "loss.svg", shown.curves[0].svg)
    write_atomic(REPORTS / "pairs.svg", shown.pairs_picture.svg)
    write_atomic(CARD, model_card(trained.model, run, metrics, sources).encode())
    for source, value in metrics["bits_per_byte"].items():
        say(f"{source}: {value:.3f} bits por byte en texto reservado")
    say(f"El informe entero, para cualquier navegador: {REPORTS / 'informe.html'}")


def _write_json(path: Path, content: Any) -> None:
    write_atomic(path, (json.dumps(content, ensure_ascii=False, indent=2) + "\n").encode())


if __name__ == "__main__":
    run_main(main)
