"""A small model of random weights, measured whole."""

from __future__ import annotations

import pytest
import torch

from enlace.config.schema import EvalConfig, ModelConfig
from enlace.data.chat import Message
from enlace.data.conversations import Conversation
from enlace.data.documents import Document
from enlace.data.shards import Shards
from enlace.data.tokenizer import Tokenizer
from enlace.eval.minimal_pairs import FILE, load_phenomena
from enlace.eval.report import Measured, measure
from enlace.export.trained import Trained
from enlace.model.transformer import Transformer
from tests.conftest import ROOT, sentences

SETTINGS = EvalConfig(
    max_documents=50,
    max_pairs=4,
    max_choices=10,
    max_conversations=40,
    max_unanswerable=4,
    samples=3,
    max_new_tokens=8,
    temperature=0.8,
    top_p=0.9,
    seed=1,
    prompts=("El perro come",),
)


@pytest.fixture(scope="session")
def trained(small_shards: Shards) -> Trained:
    config = ModelConfig(
        d_model=32,
        n_layers=2,
        n_heads=4,
        n_kv_heads=2,
        intermediate_size=48,
        rope_theta=10000.0,
        rms_norm_eps=1e-6,
    )
    model = Transformer(config, small_shards.manifest.vocab_size).initialise(torch.Generator().manual_seed(0))
    return Trained(model.eval(), Tokenizer.load(small_shards.tokenizer_path), 128)


def conversations() -> list[Conversation]:
    """Held out (hash 0) and trained on (hash f), each about a passage of its own."""
    asked = [
        (
            Message("user", f"Texto: {text}\n\nPregunta: ¿Quién {text.split(' ', 2)[2][:20].strip()}?"),
            Message("assistant", " ".join(text.split(" ", 2)[:2])),
        )
        for text in sentences()[::30]
    ]
    return [Conversation(turns, digit * 16, "quién") for digit in "0f" for turns in asked]


@pytest.fixture(scope="session")
def measured(trained: Trained, small_shards: Shards) -> Measured:
    documents = [
        Document(f"w:{i}", text, "w", {"title": f"Título {i}", "description": f"<b>número</b> {i}"})
        for i, text in enumerate(sentences())
    ]
    phenomena = load_phenomena(ROOT / FILE)
    return measure(trained, small_shards, phenomena, documents, conversations(), 0.1, SETTINGS)
