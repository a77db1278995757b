import json
import os
import random
import shutil
import subprocess
import sys
import unicodedata
from collections.abc import Callable
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from enlace import EnlaceError
from enlace.config.schema import FolderSource, ShardsConfig, ToolsConfig
from enlace.data import build
from enlace.data.chat import Message, encode_conversation
from enlace.data.clean import normalise
from enlace.data.conversations import Conversation
from enlace.data.dedup import document_hash, is_held_out
from enlace.data.documents import Document, read_documents, write_documents
from enlace.data.files import READ
from enlace.data.shards import SPLITS, Manifest, open_shards
from enlace.data.tokenizer import Tokenizer
from enlace.stages import build_shards as build_stage
from enlace.stages import fetch_corpus as fetch_stage

Configure = Callable[..., ShardsConfig]


def build_shards(
    documents: list[Document], chats: list[Conversation], config: ShardsConfig, out: Path, **more: Any
) -> Manifest:
    """The documents written down by source, beside `out`, and built."""
    raw = out.parent / "raw"
    shutil.rmtree(raw, ignore_errors=True)
    raw.mkdir(parents=True)
    for source in {document.source for document in documents}:
        write_documents(raw / f"{source}.jsonl", (d for d in documents if d.source == source))
    try:
        return build.build_shards(list(raw.iterdir()), chats, config, out, **more).manifest
    finally:
        shutil.rmtree(raw)


def _conversations(documents: list[Document]) -> list[Conversation]:
    """A question about each document, answered with its first sentence."""
    return [
        Conversation(
            (
                Message("system", "Respondes con frases cortas."),
                Message("user", f"¿Qué sabes de esto? {document.meta.get('title', 'El mate')}"),
                Message("assistant", document.text.partition(".")[0] + "."),
            ),
            document_hash(document.text),
        )
        for document in documents
    ]


def _files(folder: Path) -> dict[str, str]:
    """Digest of each file under a folder."""
    paths = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): sha256(path.read_bytes()).hexdigest() for path in paths}


def test_what_goes_in_comes_out_on_the_right_side(
    documents: list[Document], shards_config: Configure, tmp_path: Path
) -> None:
    data = shards_config()
    build_shards(documents, [], data, tmp_path / "shards")
    shards = open_shards(tmp_path / "shards")
    tokenizer = Tokenizer.load(shards.tokenizer_path)
    for split in SPLITS:
        stream = shards.stream(split, "casa")
        texts = [tokenizer.decode(tokens) for tokens, _ in stream.documents()]
        expected = [normalise(document.text) for document in documents]
        mine = [t for t in expected if is_held_out(document_hash(t), data.val_fraction) == (split == "val")]
        assert sorted(texts) == sorted(mine)
        assert stream.n_bytes == sum(len(text.encode()) for text in texts)
        assert all(tokens[-1] == 0 and 0 not in tokens[:-1] for tokens, _ in stream.documents())
        lengths = tokenizer.token_byte_lengths
        assert sum(int(lengths[tokens].sum()) for tokens, _ in stream.documents()) == stream.n_bytes


def test_empty_short_and_repeated_documents_are_dropped_and_counted(
    documents: list[Document], shards_config: Configure, tmp_path: Path
) -> None:
    """NVIDIA/Megatron-LM#62: an empty first document breaks the index."""
    dirt = [Document(f"casa:{i}", text, "casa", {}) for i, text in enumerate(["", "   ", "\u200b", "corto\t"])]
    copies = [Document("casa:copia", documents[0].text.upper(), "casa", {})]
    manifest = build_shards([*dirt, *documents, *copies], [], shards_config(), tmp_path / "shards")
    clean = build_shards(documents, [], shards_config(), tmp_path / "limpio")
    assert (manifest.dropped["short"], manifest.dropped["duplicate"]) == (4, 1)
    assert manifest.streams == clean.streams


def test_sources_are_kept_apart(documents: list[Document], shards_config: Configure, tmp_path: Path) -> None:
    names = ("norte.es", "norte.mx")  # dots are no suffix
    halves = [Document(document.id, document.text, names[i % 2], {}) for i, document in enumerate(documents)]
    build_shards(halves, [], shards_config(val_fraction=0.3), tmp_path / "shards")
    shards = open_shards(tmp_path / "shards")
    assert shards.names("train") == shards.names("val") == names
    assert sum(shards.stream(split, name).n_documents for split in SPLITS for name in names) == len(documents)


def test_conversations_about_held_out_documents_are_held_out(
    documents: list[Document], shards_config: Configure, tmp_path: Path
) -> None:
    data = shards_config()
    chats = _conversations(documents)
    build_shards(documents, chats, data, tmp_path / "shards")
    shards = open_shards(tmp_path / "shards")
    tokenizer = Tokenizer.load(shards.tokenizer_path)
    for split in SPLITS:
        found = [(t.tolist(), m.tolist()) for t, m in shards.stream(split, "chat").documents() if m is not None]
        about = [chat for chat in chats if is_held_out(chat.document_hash, data.val_fraction) == (split == "val")]
        expected = [encode_conversation(tokenizer, chat.messages) for chat in about]
        # pytorch/torchtitan#3130: conversations keep their end when they are laid one after another.
        assert sorted(found) == sorted(([*ids, tokenizer.end_of_text_id], [*mask, 0]) for ids, mask in expected)
        assert len(found) == shards.stream(split, "casa").n_documents


def test_empty_and_repeated_conversations_are_dropped_and_counted(
    documents: list[Document], shards_config: Configure, tmp_path: Path
) -> None:
    """Liquid4All/liquid-finetune#37: a conversation without an answer trains on nothing."""
    chats = _conversations(documents)
    empty = Conversation((Message("user", "¿Sí?"), Message("assistant", " \u200b")), "0" * 16)
    manifest = build_shards(documents, [empty, *chats, chats[3]], shards_config(), tmp_path / "shards")
    assert (manifest.dropped["empty_conversation"], manifest.dropped["duplicate_conversation"]) == (1, 1)


def test_no_document_is_on_both_sides_in_any_order(
    documents: list[Document], shards_config: Configure, tmp_path: Path
) -> None:
    """openai/parameter-golf#2127: most of the validation text was in the training text."""
    held_out = set()
    for seed in range(2):
        shuffled = [*documents, *(Document(d.id + "'", f"  {d.text.upper()}\n", "casa", {}) for d in documents)]
        random.Random(seed).shuffle(shuffled)
        build_shards(shuffled, [], shards_config(), tmp_path / "shards")
        shards = open_shards(tmp_path / "shards")
        tokenizer = Tokenizer.load(shards.tokenizer_path)
        train, val = (
            {document_hash(tokenizer.decode(tokens)) for tokens, _ in shards.stream(split, "casa").documents()}
            for split in SPLITS
        )
        assert not train & val
        held_out.add(frozenset(val))
    assert len(held_out) == 1


def test_the_same_input_gives_the_same_bytes_in_any_process(
    documents: list[Document], shards_config: Configure, tmp_path: Path
) -> None:
    """webdataset/webdataset#122: data that depends on the process cannot be cached or compared."""
    write_documents(tmp_path / "casa.jsonl", documents)
    program = (
        "import sys; from pathlib import Path; from enlace.config.schema import ShardsConfig;"
        "from enlace.data.build import build_shards;"
        "data = ShardsConfig.model_validate_json(sys.argv[1]);"
        "build_shards([Path('casa.jsonl')], [], data, Path(sys.argv[2]))"
    )
    for seed in ("0", "1"):
        subprocess.run(
            [sys.executable, "-c", program, shards_config().model_dump_json(), seed],
            cwd=tmp_path,
            env=os.environ | {"PYTHONHASHSEED": seed},
            check=True,
        )
    assert _files(tmp_path / "0") == _files(tmp_path / "1") != {}


# ── What cannot be trained on ────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"vocab_size": 60_000}, "los textos solo dan para"),
        ({"val_fraction": 1e-9}, "«casa» queda con 24 para entrenar y 0 para validar.*sube data.shards.val_fraction"),
        ({"min_chars": 10_000}, "«casa» queda con 0 para entrenar.*baja data.shards.min_chars"),
    ],
)
def test_a_refusal_says_the_way_out_and_leaves_what_was_there(
    documents: list[Document], shards_config: Configure, tmp_path: Path, changed: dict[str, object], message: str
) -> None:
    build_shards(documents, [], shards_config(), tmp_path / "shards")
    before = _files(tmp_path / "shards")
    with pytest.raises(EnlaceError, match=message):
        build_shards(documents, [], shards_config(**changed), tmp_path / "shards")
    assert _files(tmp_path / "shards") == before


@pytest.mark.parametrize(("document_hash", "side"), [("0" * 16, "val"), ("f" * 16, "train")])
def test_the_conversations_may_lack_a_side(
    documents: list[Document], shards_config: Configure, tmp_path: Path, document_hash: str, side: str
) -> None:
    """Own text has few of them (only the household's): a small `val_fraction` holds none out."""
    chat = Conversation((Message("user", "¿Sí?"), Message("assistant", "Sí.")), document_hash)
    build_shards(documents, [chat], shards_config(), tmp_path / "shards")
    shards = open_shards(tmp_path / "shards")
    assert [split for split in ("train", "val") if "chat" in shards.names(split)] == [side]


def test_text_is_only_normalised(documents: list[Document], shards_config: Configure, tmp_path: Path) -> None:
    codes = [Document(f"casa:c{i}", f"m[i][{i}] = v[0] * f () " * 3, "casa", {}) for i in range(20)]
    build_shards([*documents, *codes], [], shards_config(), tmp_path / "shards")
    shards = open_shards(tmp_path / "shards")
    tokenizer = Tokenizer.load(shards.tokenizer_path)
    texts = [tokenizer.decode(ids) for split in SPLITS for ids, _ in shards.stream(split, "casa").documents()]
    assert {code.text.strip() for code in codes} <= set(texts)


def test_accents_typed_apart_give_the_same_shards(
    documents: list[Document], shards_config: Configure, tmp_path: Path
) -> None:
    """ggml-org/llama.cpp#28845: the tokenizer joins nothing, so "cancio\u0301n" would be other ids than "canción"."""
    apart = [replace(document, text=unicodedata.normalize("NFD", document.text)) for document in documents]
    assert apart != documents
    one, other = (
        build_shards(texts, _conversations(texts), shards_config(), tmp_path / name / "shards")
        for name, texts in (("one", documents), ("other", apart))
    )
    assert one == other


def test_no_documents_at_all_and_a_reserved_name_are_refused(shards_config: Configure, tmp_path: Path) -> None:
    with pytest.raises(EnlaceError, match="fetch-corpus"):
        build_shards([], [], shards_config(), tmp_path / "shards")
    with pytest.raises(EnlaceError, match="«chat»"):
        build_shards([Document("chat:1", "hola", "chat", {})], [], shards_config(), tmp_path / "shards")
    assert [path.name for path in tmp_path.iterdir() if path.name != "raw"] == []


# ── The two stages, one after the other ──────────────────────────────────────────────────────────────────────────────


def test_the_stages_go_from_a_folder_of_texts_to_shards(
    documents: list[Document],
    shards_config: Configure,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    source = FolderSource(
        kind="folder",
        name="casa",
        path="textos",
        text_field="text",
        license="propia",
        attribution="ENLACE",
        weight=1.0,
    )
    config = SimpleNamespace(
        corpus=SimpleNamespace(sources=(source,), max_bad_share=0.0),
        data=SimpleNamespace(
            shards=shards_config(),
            tools=ToolsConfig(searches=0.0, not_found=0.0),
            executor="local",
            workers=1,
            scheduler=None,
        ),
    )
    shutil.copytree(Path(__file__).parents[1] / "fixtures" / "textos", tmp_path / "textos")
    for i in range(7):
        (tmp_path / "textos" / f"{i}.md").touch()
    monkeypatch.chdir(tmp_path)
    for stage in (fetch_stage, build_stage):
        monkeypatch.setattr(stage, "load_config", lambda: config)
    (tmp_path / "data" / "distill").mkdir(parents=True)
    with (tmp_path / "data" / "distill" / "conversations.jsonl").open("w", encoding="utf-8") as file:
        for chat in _conversations(documents):
            system, user, assistant = (message.content for message in chat.messages)
            meta = {"document_hash": chat.document_hash}
            file.write(json.dumps({"system": system, "user": user, "assistant": assistant, "meta": meta}) + "\n")

    fetch_stage.main()
    raw = tmp_path / "data" / "raw"
    assert list(read_documents(raw / "casa.jsonl")) == documents
    [noted] = json.loads((raw / "sources.json").read_text(encoding="utf-8"))
    assert noted["sha256"] == sha256((raw / "casa.jsonl").read_bytes()).hexdigest()
    assert (noted["name"], noted["kind"], noted["license"], noted["documents"]) == ("casa", "folder", "propia", 24)
    assert noted["bytes"] == sum(len(document.text.encode()) for document in documents)

    build_stage.main()
    shards = tmp_path / "data" / "shards"
    assert open_shards(shards).names("train") == ("casa", "chat")
    assert (shards / "sources.json").read_bytes() == (raw / "sources.json").read_bytes()
    said = capsys.readouterr().out
    assert f"casa: no se leen 7 archivos, que no son {READ}: 0.md, 1.md, 2.md, 3.md, 4.md, …\n" in said
    assert "casa: 24 documentos" in said and "train/chat: " in said and "Descartados: ninguno" in said
