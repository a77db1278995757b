"""build-shards: raw text and conversations in, tokenised shards out (data/shards, data/SOURCES.md, a picture)."""

from __future__ import annotations

import json
from pathlib import Path

from enlace import EnlaceError
from enlace.config.load import load_config
from enlace.console import run_main, say
from enlace.data.build import build_shards
from enlace.data.conversations import read_conversations
from enlace.data.decontaminate import read_eval_sets
from enlace.data.describe import REASONS, corpus_picture, sources_page, spanish_count
from enlace.data.executors import Work
from enlace.data.tool_turns import with_searches
from enlace.durable import reason, write_atomic

RAW, EVALS = Path("data/raw"), Path("data/evals")
CONVERSATIONS = Path("data/distill/conversations.jsonl")
OUT, PAGE, PICTURE = Path("data/shards"), Path("data/SOURCES.md"), Path("reports/corpus.png")


def main() -> None:
    """Build the shards of all sources in data/raw and say what is in them."""
    config = load_config()
    try:
        sources = (RAW / "sources.json").read_bytes()
    except OSError as error:
        raise EnlaceError(
            f"{error.filename}: no se puede leer ({reason(error)}); repite `dvc repro -f fetch-corpus`"
        ) from error
    built = build_shards(
        list(RAW.glob("*.jsonl")),
        with_searches(read_conversations(CONVERSATIONS), config.data.tools),
        config.data.shards,
        OUT,
        sources,
        evals=read_eval_sets(EVALS),
        work=Work(config.data.executor, config.data.workers, config.data.scheduler),
    )
    report = json.loads((OUT / "report.json").read_bytes())
    write_atomic(PAGE, sources_page(json.loads(sources), built.manifest).encode())
    write_atomic(PICTURE, corpus_picture(built.manifest, report))
    if built.again:
        say(f"{built.again} de {built.units} unidades ya estaban hechas de una vez anterior")
    for stream in built.manifest.streams:
        tokens = sum(shard.tokens for shard in stream.shards)
        count = sum(shard.documents for shard in stream.shards)
        say(
            f"{stream.split}/{stream.name}: {count} documentos, {tokens} tokens, "
            f"{stream.bytes / tokens:.2f} bytes por token"
        )
    dropped = [spanish_count(REASONS, reason, count) for reason, count in built.manifest.dropped.items() if count]
    removed = [spanish_count(REASONS, what, count) for what, count in report["removed"].items()]
    say(f"Descartados: {', '.join(dropped) or 'ninguno'}")
    say(f"Quitado o sustituido: {', '.join(removed) or 'nada'}")
    if items := report["eval_sets"]["items"]:
        say(
            f"Conjuntos de evaluación: {report['eval_sets']['found_in_text']} de sus {items} textos estaban en el "
            f"corpus, y lo que los contenía se descartó; "
            f"{report['eval_sets']['too_short']} son demasiado cortos para buscarlos"
        )


if __name__ == "__main__":
    run_main(main)
