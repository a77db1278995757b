from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from enlace.config.schema import Mixture, ModelConfig, PhaseMixture, ShardsConfig, ToolsConfig, TrainConfig
from enlace.data.build import build_shards
from enlace.data.chat import Message, encode_prompt
from enlace.data.conversations import Conversation
from enlace.data.dedup import document_hash
from enlace.data.documents import Document, write_documents
from enlace.data.shards import Shards, open_shards
from enlace.data.tokenizer import Tokenizer
from enlace.data.tool_turns import with_searches
from enlace.eval import greedy
from enlace.eval.tools import tool_figures
from enlace.export.trained import Trained
from enlace.model.transformer import Transformer
from enlace.train.run import make_trainer
from enlace.train.trainer import Trainer
from tests.conftest import NO_RULES, sentences
from tests.train.test_trainer import cpu_runtime


def _grounded() -> list[Conversation]:
    conversations = []
    for text in sentences():
        subject = text[3:].partition(" ")[0]
        turns = (
            Message("user", f"Texto: {text}\n\nPregunta: ¿Qué hace el {subject}?"),
            Message("assistant", text[3:30].strip()),
        )
        conversations.append(Conversation(turns, document_hash(text), "deed", f"cuentos:{subject}"))
    return conversations


@pytest.fixture
def trained(model_config: ModelConfig, tokenizer: Tokenizer) -> Trained:
    model = Transformer(model_config, tokenizer.vocab_size).initialise(torch.Generator().manual_seed(0))
    return Trained(model.eval(), tokenizer, 256)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    folder = tmp_path_factory.mktemp("shards")
    _build(folder, ToolsConfig(searches=0.5, not_found=0.0))
    return Tokenizer.load(folder / "shards" / "tokenizer.json")


def _build(folder: Path, config: ToolsConfig) -> Shards:
    documents = [Document(f"cuentos:{i}", f"{t} {t.lower()}", "cuentos", {}) for i, t in enumerate(sentences())]
    shards = ShardsConfig(
        vocab_size=320, tokenizer_bytes=1_000_000, val_fraction=0.1, min_chars=10, shard_tokens=40_000, clean=NO_RULES
    )
    write_documents(folder / "cuentos.jsonl", documents)
    build_shards([folder / "cuentos.jsonl"], with_searches(_grounded(), config), shards, folder / "shards")
    return open_shards(folder / "shards")


def _speaking(monkeypatch: pytest.MonkeyPatch, trained: Trained, without: str, with_text: str, after: str) -> None:
    """A model that says these things: when a question comes alone, with its text, and after a search."""

    def generate_batch(_: object, prompts: list[list[int]], *__: object) -> list[list[int]]:
        return [trained.tokenizer.encode(_turn(trained.tokenizer.decode(ids))) for ids in prompts]

    def _turn(prompt: str) -> str:
        return after if "\ntool\n" in prompt else with_text if "Texto:" in prompt else without

    monkeypatch.setattr(greedy, "generate_batch", generate_batch)


@pytest.mark.parametrize(
    ("without", "with_text", "expected"),
    [
        ("buscar: Qué hace el", "pan", (1.0, 0.0, 1.0)),
        ("buscar: la luna llena", "buscar: Qué hace", (1.0, 1.0, 0.0)),
        ("pan", "pan", (0.0, 0.0, 0.0)),
        ("buscar: uno\nbuscar: dos", "voy a buscar: pan", (0.0, 0.0, 0.0)),
    ],
)
def test_calls_are_counted(
    monkeypatch: pytest.MonkeyPatch,
    trained: Trained,
    without: str,
    with_text: str,
    expected: tuple[float, float, float],
) -> None:
    _speaking(monkeypatch, trained, without, with_text, "come pan")
    figures = tool_figures(trained, _grounded(), 0.1, 500, 16)
    assert figures["questions"] == sum(int(c.document_hash, 16) < 0.1 * 2**64 for c in _grounded())
    measured = (figures["called_when_needed"], figures["called_needlessly"], figures["usable_query"])
    assert measured == expected
    assert 0 < figures["answer_from_result_f1"] < 1


def test_only_held_out_questions_that_fit_are_measured(trained: Trained) -> None:
    assert tool_figures(trained, [], 0.1, 500, 16) == {}
    assert tool_figures(trained, _grounded(), 0.1, 3, 16)["questions"] == 3
    short = Trained(trained.model, trained.tokenizer, 32)
    assert len(encode_prompt(short.tokenizer, _grounded()[0].messages[:-1])) > 16
    assert tool_figures(short, _grounded(), 0.1, 500, 16) == {}


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Threads of so small a model only wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.usefixtures("one_thread")
def test_a_few_seconds_of_training_teach_when_to_search(
    tmp_path: Path, model_config: ModelConfig, train_config: TrainConfig
) -> None:
    shards = _build(tmp_path, ToolsConfig(searches=0.5, not_found=0.0))
    train = train_config.model_copy(
        update={"seq_len": 128, "batch_tokens": 128 * 4, "steps": 90, "decay_steps": 80, "checkpoint_every": 1000}
    )
    mixture = PhaseMixture(stable=Mixture(corpus=0.0, chat=1.0), decay=Mixture(corpus=0.0, chat=1.0))
    trainer = make_trainer(model_config, train, mixture, shards, cpu_runtime(), 4, tmp_path / "run")
    losses = [json.loads(line)["loss"] for line in trained_log(trainer, tmp_path)]
    assert sum(losses[-10:]) < 0.7 * sum(losses[:10])
    tokenizer = Tokenizer.load(shards.tokenizer_path)
    figures = tool_figures(Trained(trainer.model.eval(), tokenizer, 256), _grounded(), 0.1, 500, 24)
    assert figures["called_when_needed"] > 0.9 and figures["called_needlessly"] < 0.1


def trained_log(trainer: Trainer, folder: Path) -> list[str]:
    """Train to the end; the lines of the log."""
    trainer.fit()
    return (folder / "run" / "log.jsonl").read_text().splitlines()
