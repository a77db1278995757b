"""eval: the trained model in; figures, pictures and samples out (reports/)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from enlace.config.load import hardware_profiles, load_config
from enlace.config.paths import project_root
from enlace.console import run_main, say
from enlace.data.conversations import read_conversations
from enlace.data.shards import open_shards
from enlace.durable import write_atomic
from enlace.eval.plots import bars, training_curves, write_pictures
from enlace.eval.report import held_out_questions, question_figures, samples, score_bars, text_figures
from enlace.eval.tools import tool_figures
from enlace.export.card import model_card
from enlace.export.trained import load_trained
from enlace.model.transformer import head_dim
from enlace.train.backends import prepare, this_machine

SHARDS, MODEL, CONVERSATIONS = Path("data/shards"), Path("models/enlace"), Path("data/distill/conversations.jsonl")
REPORTS, CARD = Path("reports"), Path("models/MODEL_CARD.md")


def main() -> None:
    """Measure models/enlace on what it was not trained on."""
    config = load_config()
    profiles = hardware_profiles(project_root())
    trained = load_trained(MODEL)
    width = head_dim(trained.model.config)
    runtime = prepare(config.layers.hardware, config.hardware, profiles, this_machine(), width)
    trained.model.to(runtime.device)
    conversations = list(read_conversations(CONVERSATIONS))
    val_fraction, settings = config.data.shards.val_fraction, config.eval
    questions = held_out_questions(conversations, val_fraction)
    with runtime.compute():
        bpb = text_figures(trained, open_shards(SHARDS), config.eval.max_documents)
        grounded, answers = question_figures(trained, questions, config.eval)
        tools = tool_figures(trained, conversations, val_fraction, settings.max_conversations, settings.max_new_tokens)
        shown = samples(trained, answers, config.eval)
    metrics = _rounded({"bits_per_byte": bpb, "grounded": grounded, "tools": tools})
    _write_json(REPORTS / "metrics.json", metrics)
    run, sources = (json.loads(path.read_bytes()) for path in (MODEL / "run.json", SHARDS / "sources.json"))
    write_atomic(CARD, model_card(trained.model, run, metrics, sources).encode())
    _write_json(REPORTS / "samples.json", shown)
    pictures = {
        "training": training_curves(REPORTS / "train.csv"),
        "bits_per_byte": bars("Bits por byte en texto reservado (menos es mejor)", bpb),
        "grounded": bars("Preguntas sobre un texto reservado (más es mejor)", *score_bars(grounded)),
    }
    write_pictures(REPORTS, pictures)
    for source, value in bpb.items():
        say(f"{source}: {value:.3f} bits por byte en texto reservado")


def _rounded(figures: dict[str, dict[str, float]]) -> dict[str, dict[str, float]]:
    """Four decimals: what a person compares; the last bits are the machine's."""
    return {name: {key: round(value, 4) for key, value in group.items()} for name, group in figures.items()}


def _write_json(path: Path, content: Any) -> None:
    write_atomic(path, (json.dumps(content, ensure_ascii=False, indent=2) + "\n").encode())


if __name__ == "__main__":
    run_main(main)
