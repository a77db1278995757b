"""build-shards: raw text and conversations in, tokenised shards out (data/shards)."""

from __future__ import annotations

from pathlib import Path

from enlace import EnlaceError
from enlace.config.load import load_config
from enlace.console import run_main, say
from enlace.data.build import build_shards
from enlace.data.conversations import read_conversations
from enlace.data.documents import read_documents
from enlace.data.tool_turns import with_searches
from enlace.durable import reason

RAW = Path("data/raw")
CONVERSATIONS = Path("data/distill/conversations.jsonl")
OUT = Path("data/shards")

_REASONS = {
    "short": "cortos",
    "duplicate": "repetidos",
    "empty_conversation": "conversaciones vacías",
    "duplicate_conversation": "conversaciones repetidas",
}


def main() -> None:
    """Build the shards of all sources in data/raw and say what is in them."""
    config = load_config()
    try:
        sources = (RAW / "sources.json").read_bytes()
    except OSError as error:
        raise EnlaceError(
            f"{error.filename}: no se puede leer ({reason(error)}); repite `dvc repro -f fetch-corpus`"
        ) from error
    documents = (document for path in sorted(RAW.glob("*.jsonl")) for document in read_documents(path))
    conversations = with_searches(read_conversations(CONVERSATIONS), config.data.tools)
    manifest = build_shards(documents, conversations, config.data.shards, OUT, sources)
    for stream in manifest.streams:
        tokens = sum(shard.tokens for shard in stream.shards)
        count = sum(shard.documents for shard in stream.shards)
        say(
            f"{stream.split}/{stream.name}: {count} documentos, {tokens} tokens, "
            f"{stream.bytes / tokens:.2f} bytes por token"
        )
    dropped = ", ".join(f"{count} {_REASONS[reason]}" for reason, count in manifest.dropped.items() if count)
    say(f"Descartados: {dropped or 'ninguno'}")


if __name__ == "__main__":
    run_main(main)
