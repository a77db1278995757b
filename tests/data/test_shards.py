import hashlib
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from enlace import EnlaceError
from enlace.data.shards import Encoded, Manifest, Shards, StreamRecord, open_shards, write_manifest, write_stream
from enlace.data.tokenizer import Tokenizer

END = 0


def _encoded(*ids: int, chat: bool = False) -> Encoded:
    mask = np.array([*(id % 2 for id in ids), 0], dtype=np.uint8)
    return Encoded(np.array([*ids, END], dtype=np.int32), mask if chat else None, 2 * len(ids))


def _write(
    folder: Path,
    documents: list[Encoded],
    *,
    chat: bool = False,
    shard_tokens: int = 6,
    vocab_size: int = 400,
) -> StreamRecord:
    return write_stream(
        folder,
        "train",
        "chat" if chat else "casa",
        "chat" if chat else "corpus",
        documents,
        vocab_size=vocab_size,
        shard_tokens=shard_tokens,
    )


@pytest.fixture
def folder(tmp_path: Path, tokenizer_path: Path, tokenizer: Tokenizer) -> Path:
    """Two shards of corpus and one of chat."""
    (tmp_path / "tokenizer.json").write_bytes(tokenizer_path.read_bytes())
    records = (
        _write(tmp_path, [_encoded(5, 6, 7), _encoded(8, 9), _encoded(10)]),
        _write(tmp_path, [_encoded(11, 12, chat=True)], chat=True),
    )
    write_manifest(
        tmp_path,
        Manifest(
            vocab_size=400,
            tokenizer_sha256=tokenizer.sha256,
            end_of_text_id=END,
            streams=records,
            dropped={"short": 1},
        ),
    )
    return tmp_path


def _documents(shards: Shards, name: str) -> list[list[int]]:
    return [tokens.tolist() for tokens, _ in shards.stream("train", name).documents()]


def test_documents_come_back_whole_and_in_order(folder: Path) -> None:
    shards = open_shards(folder)
    assert shards.names("train") == ("casa", "chat") and shards.names("val") == ()
    casa, chat = shards.stream("train", "casa"), shards.stream("train", "chat")
    assert [tokens.tolist() for tokens in casa.tokens] == [[5, 6, 7, END, 8, 9, END], [10, END]]
    assert [ends.tolist() for ends in casa.doc_ends] == [[4, 7], [2]]
    assert _documents(shards, "casa") == [[5, 6, 7, END], [8, 9, END], [10, END]]
    assert (casa.kind, casa.masks, casa.n_tokens, casa.n_documents, casa.n_bytes) == ("corpus", None, 9, 3, 12)
    [(ids, mask)] = chat.documents()
    assert chat.kind == "chat" and mask is not None
    assert (ids.tolist(), mask.tolist()) == ([11, 12, END], [1, 0, 0])
    assert shards.tokenizer_path == folder / "tokenizer.json"
    assert (folder / "train" / "casa-00000.bin").read_bytes()[:4] == b"\x05\x00\x06\x00"  # little endian, no header


@given(st.lists(st.integers(1, 12), min_size=1, max_size=20), st.integers(1, 30))
def test_a_shard_closes_once_it_is_full_and_never_cuts_a_document(
    tmp_path_factory: pytest.TempPathFactory, lengths: list[int], shard_tokens: int
) -> None:
    folder = tmp_path_factory.mktemp("shards")
    documents = [_encoded(*range(4, 3 + length)) for length in lengths]
    record = _write(folder, documents, shard_tokens=shard_tokens)
    assert sum(shard.tokens for shard in record.shards) == sum(lengths)
    assert all(shard.tokens >= shard_tokens for shard in record.shards[:-1])
    for shard in record.shards:
        ids = np.fromfile(folder / f"{shard.file}.bin", dtype="<u2")
        ends = np.fromfile(folder / f"{shard.file}.idx", dtype="<u8")
        # EleutherAI/gpt-neox and others lose or invent ends at the edges: exactly one, at each end of a document.
        assert (np.flatnonzero(ids == END) + 1).tolist() == ends.tolist()
        assert shard.tokens - int(ends[-1] - ends[-2] if len(ends) > 1 else ends[-1]) < shard_tokens


def test_the_same_documents_give_the_same_bytes(tmp_path: Path) -> None:
    records = [_write(tmp_path / name, [_encoded(5, 6), _encoded(7)]) for name in ("uno", "dos")]
    assert records[0] == records[1]


def test_nothing_to_write_makes_no_shard(tmp_path: Path) -> None:
    assert _write(tmp_path, []).shards == ()
    assert list((tmp_path / "train").iterdir()) == []


def test_the_largest_id_survives_and_a_larger_one_is_refused(tmp_path: Path) -> None:
    """allenai/dolma#142: ids over 65,535 wrap around in uint16, in silence."""
    record = _write(tmp_path, [_encoded(65_535)], vocab_size=65_536)
    assert np.fromfile(tmp_path / f"{record.shards[0].file}.bin", dtype="<u2").tolist() == [65_535, END]
    for wrong in (65_536, 400, -1):
        with pytest.raises(EnlaceError, match=r"train/casa-00000: .* fuera de 0\.\.399"):
            _write(tmp_path, [_encoded(wrong)], vocab_size=400)


def test_shards_that_changed_places_are_found_and_named(tmp_path: Path, tokenizer_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_bytes(tokenizer_path.read_bytes())
    record = _write(tmp_path, [_encoded(1, 2, 3, 4, 5), _encoded(6, 7, 8, 9, 10)])
    digest = hashlib.sha256(tokenizer_path.read_bytes()).hexdigest()
    manifest = Manifest(vocab_size=400, tokenizer_sha256=digest, end_of_text_id=END, streams=(record,), dropped={})
    write_manifest(tmp_path, manifest)
    assert len(open_shards(tmp_path).stream("train", "casa").tokens) == 2
    first, second = (tmp_path / f"train/casa-0000{i}.bin" for i in (0, 1))
    assert first.stat().st_size == second.stat().st_size, "their sizes do not give them away"
    first.rename(tmp_path / "other")
    second.rename(first)
    (tmp_path / "other").rename(second)
    with pytest.raises(EnlaceError, match=r"casa-00000\.bin.*sha256"):
        open_shards(tmp_path)


@pytest.mark.parametrize(
    ("left", "named"), [([1, 0], "train/casa-00001"), ([1], "train/casa-00001"), ([0, 0], "00000")]
)
def test_shards_out_of_order_or_left_out_in_the_manifest_are_found_and_named(
    tmp_path: Path, tokenizer_path: Path, left: list[int], named: str
) -> None:
    (tmp_path / "tokenizer.json").write_bytes(tokenizer_path.read_bytes())
    record = _write(tmp_path, [_encoded(1, 2, 3, 4, 5), _encoded(6, 7, 8, 9, 10)])
    record = record.model_copy(update={"shards": tuple(record.shards[i] for i in left)})
    digest = hashlib.sha256(tokenizer_path.read_bytes()).hexdigest()
    manifest = Manifest(vocab_size=400, tokenizer_sha256=digest, end_of_text_id=END, streams=(record,), dropped={})
    write_manifest(tmp_path, manifest)
    with pytest.raises(EnlaceError, match=rf"manifest\.json: .*{named} no está en su sitio"):
        open_shards(tmp_path)


def test_a_stream_that_is_not_there_is_named(folder: Path) -> None:
    with pytest.raises(EnlaceError, match="no hay «wiki» en train; hay: casa, chat"):
        open_shards(folder).stream("train", "wiki")


# ── Damage ───────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "file", ["tokenizer.json", "train/casa-00001.bin", "train/casa-00000.idx", "train/chat-00000.mask"]
)
def test_a_changed_byte_is_found_and_the_file_named(folder: Path, file: str) -> None:
    data = bytearray((folder / file).read_bytes())
    data[0] ^= 1
    (folder / file).write_bytes(data)
    with pytest.raises(EnlaceError, match=f"{file}: su sha256.*build-shards"):
        open_shards(folder)


@pytest.mark.parametrize("file", ["train/casa-00001.bin", "train/casa-00000.idx", "train/chat-00000.mask"])
def test_a_cut_or_missing_file_is_found_without_reading_it(folder: Path, file: str) -> None:
    data = (folder / file).read_bytes()
    (folder / file).write_bytes(data[:-1])
    with pytest.raises(EnlaceError, match=f"{file}: mide {len(data) - 1} bytes"):
        open_shards(folder, verify=False)
    (folder / file).unlink()
    with pytest.raises(EnlaceError, match=f"{file}: no se puede leer"):
        open_shards(folder, verify=False)


@pytest.mark.parametrize(
    ("key", "value"),
    [("magic", "otra-cosa"), ("version", 2), ("dtype", "<u4"), ("vocab_size", 65_537), ("streams", None), ("nuevo", 1)],
)
def test_a_manifest_of_another_kind_is_refused_by_key(folder: Path, key: str, value: object) -> None:
    path = folder / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {key: value}))
    with pytest.raises(EnlaceError, match=rf"manifest\.json: .*falla: {key}"):
        open_shards(folder)


@pytest.mark.parametrize("content", [None, b"", b"{", b"[]"])
def test_a_folder_without_a_whole_manifest_is_no_folder_of_shards(folder: Path, content: bytes | None) -> None:
    path = folder / "manifest.json"
    path.unlink() if content is None else path.write_bytes(content)
    with pytest.raises(EnlaceError, match=r"manifest\.json: .*build-shards"):
        open_shards(folder)
