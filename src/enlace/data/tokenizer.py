"""Byte-level BPE: trained and published with HF tokenizers (tokenizer.json), encoded with tiktoken.

Both give the same ids; tiktoken gives them about seven times sooner. The split pattern is Qwen2's, unchanged, so that
transformers and llama.cpp know it by name, and there is no normaliser, since llama.cpp would not apply one: text
passes through `clean.normalise` before it gets here.
"""

from __future__ import annotations

import codecs
import hashlib
import json
import re
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt
import tiktoken
import tokenizers
from tokenizers import Regex, decoders, models, pre_tokenizers, trainers

from enlace import EnlaceError
from enlace.config.rules import BYTE_ALPHABET
from enlace.data.special_tokens import SPECIAL_TOKENS
from enlace.durable import reason

# tokenizer.json of Qwen2: contractions, words with the sign or space before them, single digits, the rest.
SPLIT_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


# Merging takes the square of a word's length: a megabyte of dots in a scanned book would take hours.
_LONGEST_WORD = 1000
_TOO_LONG = re.compile(rf"\S{{{_LONGEST_WORD + 1},}}")


def _pieces(text: str) -> list[str]:
    """`text`, cut only where something goes on for more than 1,000 characters without a space."""
    # Twenty times sooner than the pattern, which goes over every word: a word so long fills one of these halves.
    half = _LONGEST_WORD // 2
    if all(text.find(" ", start, start + half) >= 0 for start in range(0, len(text) - half + 1, half)):
        return [text]
    cuts = [
        cut
        for word in _TOO_LONG.finditer(text)
        for cut in range(word.start() + _LONGEST_WORD, word.end(), _LONGEST_WORD)
    ]
    return [text[start:end] for start, end in pairwise([0, *cuts, len(text)])]


# The trainer needs 130 bytes for each byte of a text: a library in one document would fill the memory.
_PART = re.compile(r"(?s).{1,100000}\S*")


def train_tokenizer(texts: Iterable[str], vocab_size: int) -> tokenizers.Tokenizer:
    """A tokenizer of exactly `vocab_size` entries, special tokens included; the same texts give the same tokenizer.

    All 256 bytes are in it, whatever the texts hold, so every text can be encoded. Raises EnlaceError where the texts
    do not give that many entries, saying how many they do.
    """
    if vocab_size < (smallest := len(SPECIAL_TOKENS) + BYTE_ALPHABET):
        raise EnlaceError(f"data.shards.vocab_size: {vocab_size} es poco; el mínimo es {smallest}")
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(SPLIT_PATTERN), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        min_frequency=2,  # a pair seen once is a quirk of one document
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    parts = (part for text in texts for part in _PART.findall(text))
    tokenizer.train_from_iterator((piece for part in parts for piece in _pieces(part)), trainer)
    if (reached := tokenizer.get_vocab_size()) < vocab_size:
        raise EnlaceError(
            f"data.shards.vocab_size: los textos solo dan para un vocabulario de {reached} y se pidió {vocab_size}; "
            f"pon {reached} o menos, o añade textos"
        )
    return tokenizer


class Tokenizer:
    """A trained tokenizer: text to ids and back. Text never becomes a special token, whatever it spells."""

    def __init__(self, token_bytes: Sequence[bytes], sha256: str) -> None:
        """Of the bytes of each id (special tokens: none) and the digest of the file they came from."""
        self._token_bytes = token_bytes
        self.sha256 = sha256
        self.vocab_size = len(token_bytes)
        self.end_of_text_id, self.im_start_id, self.im_end_id, self.pad_id = range(len(SPECIAL_TOKENS))
        ranks = {token: id for id, token in enumerate(token_bytes) if id >= len(SPECIAL_TOKENS)}
        self._encoding = tiktoken.Encoding("enlace", pat_str=SPLIT_PATTERN, mergeable_ranks=ranks, special_tokens={})

    @classmethod
    def load(cls, path: Path) -> Tokenizer:
        """Read a tokenizer.json made by `train_tokenizer`. Raises EnlaceError when it is not one."""
        try:
            data = path.read_bytes()
        except OSError as error:
            raise EnlaceError(f"{path}: no se puede leer ({reason(error)}); repite `dvc repro build-shards`") from error
        try:
            vocabulary = json.loads(data)["model"]["vocab"]
            tokens = sorted(vocabulary, key=vocabulary.__getitem__)
            token_bytes = [b"" if token in SPECIAL_TOKENS else _token_bytes(token) for token in tokens]
            sound = sorted(vocabulary.values()) == list(range(len(tokens)))
        except (ValueError, KeyError, TypeError) as error:
            raise EnlaceError(f"{path}: no es un tokenizador de ENLACE; repite `dvc repro build-shards`") from error
        if not sound or tuple(tokens[: len(SPECIAL_TOKENS)]) != SPECIAL_TOKENS:
            raise EnlaceError(f"{path}: los identificadores no son los de ENLACE; repite `dvc repro build-shards`")
        return cls(token_bytes, hashlib.sha256(data).hexdigest())

    def encode(self, text: str) -> list[int]:
        """The ids of `text`, never a special one."""
        pieces = _pieces(text)
        if len(pieces) == 1:
            return self._encoding.encode_ordinary(text)
        return [id for piece in pieces for id in self._encoding.encode_ordinary(piece)]

    def decode(self, ids: Iterable[int]) -> str:
        """The text of `ids`; special tokens are silent, and bytes that are not UTF-8 become U+FFFD."""
        return b"".join(self._token_bytes[id] for id in ids).decode("utf-8", errors="replace")

    def decode_stream(self) -> StreamDecoder:
        """A decoder that is fed one id at a time."""
        return StreamDecoder(self._token_bytes)

    @property
    def token_byte_lengths(self) -> npt.NDArray[np.int64]:
        """Bytes of UTF-8 that each id stands for, shape (vocab_size,); special tokens stand for none."""
        return np.array([len(token) for token in self._token_bytes], dtype=np.int64)


class StreamDecoder:
    """Text of ids that arrive one by one: a character cut between two tokens waits until it is whole."""

    def __init__(self, token_bytes: Sequence[bytes]) -> None:
        self._token_bytes = token_bytes
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, id: int) -> str:
        """The characters that `id` completes; may be none."""
        return self._decoder.decode(self._token_bytes[id])

    def finish(self) -> str:
        """What is left at the end: nothing, or U+FFFD for a character that was never completed."""
        return self._decoder.decode(b"", final=True)


def _byte_of_character() -> dict[str, int]:
    """The byte behind each character of a token in tokenizer.json (GPT-2's `bytes_to_unicode`, inverted).

    Printable Latin-1 stands for itself; the other 68 bytes are spelt with the characters from U+0100 on.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = sorted(set(range(256)) - set(printable))
    return {chr(byte): byte for byte in printable} | {chr(0x100 + i): byte for i, byte in enumerate(others)}


_BYTE_OF_CHARACTER = _byte_of_character()


def _token_bytes(token: str) -> bytes:
    return bytes(_BYTE_OF_CHARACTER[character] for character in token)
