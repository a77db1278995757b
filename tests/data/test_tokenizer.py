import hashlib
import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest
import tokenizers
import yaml
from hypothesis import given
from hypothesis import strategies as st

from enlace import EnlaceError
from enlace.config import rules
from enlace.config.schema import WheelSource
from enlace.data.corpus import documents_of
from enlace.data.documents import Document
from enlace.data.special_tokens import SPECIAL_TOKENS
from enlace.data.tokenizer import Tokenizer, train_tokenizer

CORPUS = Path(__file__).parents[2] / "configs" / "data" / "wikipedia-es.yaml"
# Letters that make pieces long enough to be merged, and everything else.
TEXT = st.text(
    st.one_of(
        st.sampled_from("aeiosrn lt"),
        st.sampled_from("áñ¿«—👩🚀\u200d\u0301\r\n\t 19'<|>"),
        st.characters(codec="utf-8"),
    )
)


@pytest.fixture(scope="session")
def published(tokenizer_path: Path) -> tokenizers.Tokenizer:
    """The same tokenizer.json as other programs read it, text kept apart from special tokens."""
    published = tokenizers.Tokenizer.from_file(str(tokenizer_path))
    published.encode_special_tokens = True
    return published


# ── Training ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_special_tokens_come_first_and_are_four_different_ids(tokenizer: Tokenizer) -> None:
    """huggingface/trl#976: a pad equal to the end of a turn makes answers endless."""
    ids = [tokenizer.end_of_text_id, tokenizer.im_start_id, tokenizer.im_end_id, tokenizer.pad_id]
    assert ids == [0, 1, 2, 3]
    assert SPECIAL_TOKENS == ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|pad|>")
    assert len(SPECIAL_TOKENS) == rules.SPECIAL_TOKENS


def test_every_byte_has_a_token_however_plain_the_training_text() -> None:
    """huggingface/tokenizers#813: without the byte alphabet, unseen characters vanish."""
    ascii_only = train_tokenizer(["la casa la casa"], 262)
    ascii_only.encode_special_tokens = True
    assert ascii_only.decode(ascii_only.encode("ñ嗎₉").ids) == "ñ嗎₉"


def test_training_gives_the_same_bytes_in_any_process(tokenizer_path: Path, documents: list[Document]) -> None:
    program = (
        "import json, sys; from enlace.data.tokenizer import train_tokenizer;"
        "print(train_tokenizer(json.load(sys.stdin), 400).to_str())"
    )
    texts = json.dumps([document.text for document in documents])
    digests = {
        subprocess.run(
            [sys.executable, "-c", program],
            env=os.environ | {"PYTHONHASHSEED": seed, "RAYON_NUM_THREADS": threads},
            input=texts,
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed, threads in (("0", "1"), ("1", "2"))
    }
    here = tokenizers.Tokenizer.from_file(str(tokenizer_path)).to_str()
    assert digests == {here + "\n"}


def test_too_little_text_names_the_largest_vocabulary_that_works() -> None:
    texts = ["la casa de la pradera", "la casa de los vecinos"]
    with pytest.raises(EnlaceError, match=r"vocab_size.*vocabulario de (\d+) y se pidió 5000") as failure:
        train_tokenizer(texts, 5000)
    largest = int(str(failure.value).split("vocabulario de ")[1].split()[0])
    assert train_tokenizer(texts, largest).get_vocab_size() == largest
    with pytest.raises(EnlaceError, match="mínimo es 260"):
        train_tokenizer(texts, 259)


# ── Encoding and decoding ────────────────────────────────────────────────────────────────────────────────────────────


@given(TEXT)
def test_ids_equal_those_of_other_programs_and_text_comes_back(
    tokenizer: Tokenizer, published: tokenizers.Tokenizer, text: str
) -> None:
    ids = tokenizer.encode(text)
    assert ids == published.encode(text).ids
    assert tokenizer.decode(ids) == text


def test_ids_equal_those_of_other_programs_on_the_real_corpus(tmp_path: Path) -> None:
    source = WheelSource.model_validate(yaml.safe_load(CORPUS.read_text(encoding="utf-8"))["sources"][0])
    try:
        texts = [document.text for document in documents_of(source, tmp_path)]
    except EnlaceError as error:
        pytest.skip(f"no corpus: {error}")
    trained = train_tokenizer(texts, 4096)
    trained.encode_special_tokens = True
    trained.save(str(tmp_path / "tokenizer.json"))
    tokenizer = Tokenizer.load(tmp_path / "tokenizer.json")
    words = sorted({word for text in texts[:1000] for word in text.split()})
    drawn = random.Random(0)
    texts += [f" {drawn.choice(words)[:-2]}{drawn.choice(words)[1:]}" for _ in range(5000)]  # words nobody trained on
    for text in texts:
        ids = tokenizer.encode(text)
        assert ids == trained.encode(text).ids
        assert tokenizer.decode(ids) == text


def test_text_never_becomes_a_special_token(tokenizer: Tokenizer) -> None:
    """huggingface/tokenizers#1347: text that spells a marker forged the marker."""
    for text in SPECIAL_TOKENS:
        ids = tokenizer.encode(f"hola{text}")
        assert min(ids) >= len(SPECIAL_TOKENS)
        assert tokenizer.decode(ids) == f"hola{text}"


@pytest.mark.parametrize("text", ["", "  hola", " hola", "hola ", "hola\r\n\r\n", "\0\ufeff", "hacia hacía año ano"])
def test_spaces_accents_and_oddities_come_back(tokenizer: Tokenizer, text: str) -> None:
    """huggingface/transformers#47862 and #2742: spaces or accents lost by a hidden normaliser."""
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_a_space_or_an_accent_is_another_word(tokenizer: Tokenizer) -> None:
    words = ["hola", " hola", "hacia", "hacía", "año", "ano"]
    assert len({tuple(tokenizer.encode(word)) for word in words}) == len(words)


@given(TEXT)
def test_a_stream_gives_the_text_and_never_half_a_character(tokenizer: Tokenizer, text: str) -> None:
    """Blaizzy/mlx-vlm#1665: decoding token by token prints U+FFFD inside characters."""
    stream = tokenizer.decode_stream()
    parts = [stream.push(id) for id in tokenizer.encode(text)]
    assert "".join(parts) == text
    assert stream.finish() == ""


def test_a_stream_cut_inside_a_character_ends_in_one_replacement(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("¿niño 👩\u200d🚀")
    stream = tokenizer.decode_stream()
    parts = [stream.push(id) for id in ids[:-1]]
    assert "\ufffd" not in "".join(parts)
    assert stream.finish() == "\ufffd"
    assert tokenizer.decode(ids[:-1]) == "".join(parts) + "\ufffd"


def test_special_tokens_are_silent_and_weigh_no_bytes(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("canción")
    assert tokenizer.decode([1, *ids, 2, 0, 3]) == "canción"
    lengths = tokenizer.token_byte_lengths
    assert lengths.shape == (tokenizer.vocab_size,) == (400,)
    assert lengths.dtype == "int64"
    assert lengths[:4].tolist() == [0, 0, 0, 0]
    assert lengths[ids].sum() == len("canción".encode())


# ── Loading ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_digest_is_that_of_the_file(tokenizer: Tokenizer, tokenizer_path: Path) -> None:
    assert tokenizer.sha256 == hashlib.sha256(tokenizer_path.read_bytes()).hexdigest()


@pytest.mark.parametrize(
    "content", [None, b"\xff", b"{", b"[]", b'{"model": {"vocab": {"hola": 0}}}', b'{"model": {"vocab": {"a": "b"}}}']
)
def test_what_is_no_tokenizer_is_refused_by_name(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "tokenizer.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(EnlaceError, match=r"tokenizer\.json.*build-shards"):
        Tokenizer.load(path)


@pytest.mark.parametrize("word", ["." * 1_000_000, "a" * 1_000_000, "ñ" * 1001, "-=" * 400_000])
def test_a_word_that_never_ends_is_read_in_pieces(tokenizer: Tokenizer, word: str) -> None:
    """Rows of dots in scanned books: merging takes the square of the length, hours for a megabyte."""
    text = f"Índice {word} página 9"
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert train_tokenizer([text, text], 260).get_vocab_size() == 260


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="no /proc")
def test_training_on_a_library_in_one_document_does_not_fill_the_memory() -> None:
    program = (
        "from enlace.data.tokenizer import train_tokenizer\n"
        "def peak(): return 1024 * int(open('/proc/self/status').read().split('VmHWM:')[1].split()[0])\n"
        "text = ' '.join(f'palabra{i % 5000}' for i in range(200_000)); before = peak()\n"
        "train_tokenizer([text], 262); print((peak() - before) / len(text))"
    )
    told = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert float(told) < 60  # bytes of memory for each of the text: 130 when it was taken whole, 13 in parts
