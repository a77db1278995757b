"""From raw documents and conversations to shards: normalise, drop, split, train the tokenizer, encode, write.

The text is held whole, without repetitions, until it is written, and besides it one shard of ids: at its peak, some 7
bytes of memory for each byte of text (measured on articles of 450 bytes), so that 1 GB of text needs a machine of 8.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np

from enlace import EnlaceError
from enlace.config.schema import ShardsConfig
from enlace.data.chat import Message, encode_conversation
from enlace.data.clean import normalise
from enlace.data.conversations import Conversation
from enlace.data.dedup import deduplicate, document_hash, is_held_out
from enlace.data.documents import Document
from enlace.data.folder import whole_folder
from enlace.data.shards import SPLITS, Encoded, Manifest, Split, write_manifest, write_stream
from enlace.data.tokenizer import Tokenizer, train_tokenizer

CHAT = "chat"  # the stream of the conversations; the others are named after their source


def build_shards(
    documents: Iterable[Document],
    conversations: Iterable[Conversation],
    config: ShardsConfig,
    out: Path,
    sources: bytes = b"[]\n",
) -> Manifest:
    """Write the folder of shards `out` whole, or leave it as it was; returns its manifest.

    `sources` is the sources.json of data/raw: licences and attributions travel with the text, from here to the model.
    The same input gives the same bytes. Raises EnlaceError for what could not be trained on: a stream with nothing on
    one side of the split, texts too few for the vocabulary.
    """
    dropped: Counter[str] = Counter()
    streams = _split(documents, conversations, config, dropped)
    train = [item for (_, split), items in streams.items() if split == "train" for item in items]
    # Each text once, or the system prompt that all conversations share would decide the vocabulary.
    trained = train_tokenizer(dict.fromkeys(text for item in train for text in _texts(item)), config.vocab_size)
    with whole_folder(out) as folder:
        (folder / "sources.json").write_bytes(sources)
        (folder / "tokenizer.json").write_text(trained.to_str(pretty=True), encoding="utf-8")
        tokenizer = Tokenizer.load(folder / "tokenizer.json")
        records = [
            write_stream(
                folder,
                split,
                name,
                "chat" if name == CHAT else "corpus",
                (_encode(tokenizer, item) for item in items),
                vocab_size=config.vocab_size,
                shard_tokens=config.shard_tokens,
            )
            for (name, split), items in streams.items()
        ]
        manifest = Manifest(
            vocab_size=config.vocab_size,
            tokenizer_sha256=tokenizer.sha256,
            end_of_text_id=tokenizer.end_of_text_id,
            streams=tuple(records),
            dropped=dict(dropped),
        )
        write_manifest(folder, manifest)
    return manifest


def _split(
    documents: Iterable[Document], conversations: Iterable[Conversation], config: ShardsConfig, dropped: Counter[str]
) -> dict[tuple[str, Split], list[Document | Conversation]]:
    """What is kept, by stream and side of the split: sources by name, then the conversations, where there are any.

    Every source has both sides. The conversations may lack one: a home's are few, and a small `val_fraction` may hold
    out none.
    """
    normal = [replace(document, text=normalise(document.text)) for document in documents]
    names = sorted({document.source for document in normal})
    if not names:
        raise EnlaceError("No hay ningún documento: ejecuta `dvc repro fetch-corpus`")
    if CHAT in names:
        raise EnlaceError(f"Una fuente del corpus se llama «{CHAT}», que es el nombre de las conversaciones; cámbialo")
    chats = _select_conversations(conversations, dropped)
    if chats:
        names.append(CHAT)
    streams: dict[tuple[str, Split], list[Document | Conversation]] = {
        (name, split): [] for name in names for split in SPLITS
    }
    for document in _select_documents(normal, config.min_chars, dropped):
        streams[document.source, _side(document_hash(document.text), config.val_fraction)].append(document)
    for chat in chats:
        streams[CHAT, _side(chat.document_hash, config.val_fraction)].append(chat)
    for name in names:
        train, val = (len(streams[name, split]) for split in SPLITS)
        if name != CHAT and not (train and val):
            raise EnlaceError(
                f"«{name}» queda con {train} para entrenar y {val} para validar, y hace falta al menos uno de cada: "
                f"añade textos, baja data.shards.min_chars o {'sube' if train else 'baja'} data.shards.val_fraction"
            )
    return {stream: items for stream, items in streams.items() if items}


def _select_documents(documents: list[Document], min_chars: int, dropped: Counter[str]) -> list[Document]:
    """The documents without the short and the repeated ones, which are counted in `dropped`."""
    long_enough = [document for document in documents if len(document.text) >= min_chars]
    kept, repeated = deduplicate(long_enough)
    dropped.update(short=len(documents) - len(long_enough), duplicate=repeated)
    return kept


def _select_conversations(conversations: Iterable[Conversation], dropped: Counter[str]) -> list[Conversation]:
    """The conversations normalised, without the empty and the repeated ones, which are counted in `dropped`."""
    kept: dict[tuple[Message, ...], Conversation] = {}
    dropped.update(empty_conversation=0, duplicate_conversation=0)
    for conversation in conversations:
        messages = tuple(Message(message.role, normalise(message.content)) for message in conversation.messages)
        if not all(message.content for message in messages):
            dropped["empty_conversation"] += 1
        elif messages in kept:
            dropped["duplicate_conversation"] += 1
        else:
            kept[messages] = replace(conversation, messages=messages)
    return list(kept.values())


def _side(document_hash: str, val_fraction: float) -> Split:
    return "val" if is_held_out(document_hash, val_fraction) else "train"


def _texts(item: Document | Conversation) -> list[str]:
    return [item.text] if isinstance(item, Document) else [message.content for message in item.messages]


def _encode(tokenizer: Tokenizer, item: Document | Conversation) -> Encoded:
    n_bytes = sum(len(text.encode("utf-8")) for text in _texts(item))
    if isinstance(item, Document):
        ids = [*tokenizer.encode(item.text), tokenizer.end_of_text_id]
        return Encoded(np.array(ids, dtype=np.int32), None, n_bytes)
    ids, mask = encode_conversation(tokenizer, item.messages)
    ids, mask = [*ids, tokenizer.end_of_text_id], [*mask, 0]
    return Encoded(np.array(ids, dtype=np.int32), np.array(mask, dtype=np.uint8), n_bytes)
