import json
from pathlib import Path

import pytest

from enlace import EnlaceError
from enlace.data.chat import Message
from enlace.data.conversations import Conversation, read_conversations
from enlace.data.dedup import document_hash


def test_conversations_are_read_with_the_hash_of_their_document(tmp_path: Path) -> None:
    line = {
        "custom_id": "a",
        "system": "Breve.",
        "user": "¿Qué?",
        "assistant": "Eso.",
        "meta": {"document_hash": "0" * 16},
    }
    alone = line | {"system": "", "meta": {}}
    path = tmp_path / "conversations.jsonl"
    path.write_text(json.dumps(line) + "\n" + json.dumps(alone) + "\n", encoding="utf-8")
    question, answer = Message("user", "¿Qué?"), Message("assistant", "Eso.")
    assert list(read_conversations(path)) == [
        Conversation((Message("system", "Breve."), question, answer), "0" * 16),
        Conversation((question, answer), document_hash("¿Qué?")),
    ]


def test_questions_on_one_passage_fall_on_one_side(tmp_path: Path) -> None:
    path = tmp_path / "conversations.jsonl"
    passage = "La tortilla lleva huevos.\n\nPregunta: eso decía el libro."
    questions = ["¿Qué lleva la tortilla?", "¿Quién lo dice?"]
    users = [*(f"Texto: {passage}\n\nPregunta: {question}" for question in questions), *questions]
    lines = ({"system": "", "user": user, "assistant": "Eso.", "meta": {}} for user in users)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    hashes = [conversation.document_hash for conversation in read_conversations(path)]
    assert hashes == [document_hash(text) for text in (passage, passage, *questions)]


def test_missing_conversations_say_which_stage_makes_them(tmp_path: Path) -> None:
    with pytest.raises(EnlaceError, match=r"c\.jsonl: no se puede leer \(no existe\).*dvc repro distill-collect"):
        list(read_conversations(tmp_path / "c.jsonl"))


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"system": "", "user": "a", "meta": {}}', "faltan system, user, assistant o meta"),
        ('{"system": "", "user": "a", "assistant": null, "meta": {}}', "faltan system, user, assistant o meta"),
        (
            '{"system": "", "user": "a", "assistant": "b", "meta": {"document_hash": "xyz"}}',
            "meta.document_hash.*distill-collect",
        ),
    ],
)
def test_a_line_that_is_no_conversation_is_named(tmp_path: Path, line: str, message: str) -> None:
    (tmp_path / "c.jsonl").write_text("\n" + line)
    with pytest.raises(EnlaceError, match=rf"c\.jsonl:2: {message}"):
        list(read_conversations(tmp_path / "c.jsonl"))
