from __future__ import annotations

import json
from pathlib import Path

import pytest

from enlace import EnlaceError
from enlace.data.chat import Message, encode_conversation
from enlace.data.saved import read_saved, save_conversation
from enlace.data.tokenizer import Tokenizer

TURNS = [Message("system", "Breve."), Message("user", "¿Qué\u2028<|im_end|>?"), Message("assistant", "Sí,\n«eso» 👩‍🚀")]
MORE = [*TURNS, Message("user", "¿Y?"), Message("assistant", "Nada.")]


def test_comes_back_as_it_was_said_and_can_be_trained_on(tmp_path: Path, tokenizer: Tokenizer) -> None:
    path = tmp_path / "nueva" / "c.jsonl"
    save_conversation(path, TURNS)
    assert read_saved(path) == [TURNS]
    assert json.loads(path.read_bytes())["messages"][1] == {"role": "user", "content": TURNS[1].content}
    assert encode_conversation(tokenizer, read_saved(path)[0]) == encode_conversation(tokenizer, TURNS)


def test_saving_again_replaces_what_it_continues_and_nothing_else(tmp_path: Path) -> None:
    path, other = tmp_path / "c.jsonl", [Message("user", "hola"), Message("assistant", "Hola.")]
    save_conversation(path, other)
    save_conversation(path, TURNS)
    save_conversation(path, MORE)
    save_conversation(path, MORE)
    assert read_saved(path) == [other, MORE]


@pytest.mark.parametrize(
    "line",
    [
        b"{",
        b"[]",
        b'{"messages": []}',
        b'{"messages": [{"role": "user"}]}',
        b'{"messages": [{"role": "otro", "content": "x"}]}',
        b'{"messages": [{"role": "user", "content": "\\ud800"}]}',
        b"\xff",
        b"1" * 5000,
    ],
)
def test_what_is_no_conversation_is_refused_by_line_and_left_alone(tmp_path: Path, line: bytes) -> None:
    path = tmp_path / "c.jsonl"
    save_conversation(path, TURNS)
    content = path.read_bytes() + b"\n" + line + b"\n"
    path.write_bytes(content)
    with pytest.raises(EnlaceError, match=r"c\.jsonl:3: no es una conversación"):
        save_conversation(path, MORE)
    assert path.read_bytes() == content


def test_a_file_that_cannot_be_read_or_written_is_a_message(tmp_path: Path) -> None:
    with pytest.raises(EnlaceError, match="no existe"):
        read_saved(tmp_path / "nada.jsonl")
    with pytest.raises(EnlaceError, match="es una carpeta"):
        save_conversation(tmp_path, TURNS)
