"""What several test files need: small configurations, small shards."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from enlace.config.schema import CleanConfig, Mixture, ModelConfig, PhaseMixture, ShardsConfig, TrainConfig
from enlace.data.build import build_shards
from enlace.data.conversations import read_conversations
from enlace.data.documents import Document, write_documents
from enlace.data.shards import Shards, open_shards

ROOT = Path(__file__).parents[1]
os.environ.pop("GPUS", None)  # make exports it; a test that trains in several processes says so itself
NO_RULES = CleanConfig(
    boilerplate=False,
    spanish=None,
    symbols=None,
    repetition=None,
    personal_data=False,
    near_duplicates=None,
)


@pytest.fixture
def model_config() -> ModelConfig:
    return ModelConfig(
        d_model=32,
        n_layers=2,
        n_heads=4,
        n_kv_heads=2,
        intermediate_size=48,
        rope_theta=10000.0,
        rms_norm_eps=1e-6,
    )


@pytest.fixture
def train_config() -> TrainConfig:
    return TrainConfig(
        seed=3,
        seq_len=32,
        batch_tokens=256,
        steps=24,
        warmup_steps=3,
        decay_steps=12,
        min_lr_ratio=0.0,
        optimizer="muon",
        lr=0.01,
        muon_lr=0.02,
        beta1=0.9,
        beta2=0.95,
        muon_momentum=0.95,
        weight_decay=0.1,
        grad_clip=1.0,
        z_loss=1e-4,
        document_mask=False,
        checkpoint_every=5,
        keep_checkpoints=2,
        keep_every=None,
        val_every=8,
    )


@pytest.fixture
def mixture() -> PhaseMixture:
    return PhaseMixture(stable=Mixture(corpus=1.0, chat=0.0), decay=Mixture(corpus=0.5, chat=0.5))


ANIMALS = ("perro", "gato", "burro", "caballo", "gallo", "cordero", "conejo", "zorro", "tejón", "búho")
PLACES = ("en el corral", "junto al río", "bajo la encina", "detrás de la casa", "en la plaza del pueblo")
DEEDS = ("come pan con aceite", "duerme la siesta", "canta al amanecer", "busca a sus crías", "mira la lluvia")


def sentences() -> list[str]:
    """250 short Spanish sentences, all different."""
    return [f"El {a} {d} {p}, y después vuelve a casa." for a in ANIMALS for d in DEEDS for p in PLACES]


@pytest.fixture(scope="session")
def small_shards(tmp_path_factory: pytest.TempPathFactory) -> Shards:
    """Shards of 250 sentences and 250 conversations, with a vocabulary of 320."""
    folder = tmp_path_factory.mktemp("shards")
    texts = sentences()
    documents = [Document(f"cuentos:{i}", f"{t} {t.lower()}", "cuentos", {}) for i, t in enumerate(texts)]
    conversations = folder / "conversations.jsonl"
    lines = [
        {"custom_id": str(i), "system": "", "user": f"¿Quién {t[3:20]}?", "assistant": t[:12], "meta": {"n": i}}
        for i, t in enumerate(texts)
    ]
    conversations.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    config = ShardsConfig(
        vocab_size=320, tokenizer_bytes=1_000_000, val_fraction=0.1, min_chars=10, shard_tokens=4000, clean=NO_RULES
    )
    write_documents(folder / "cuentos.jsonl", documents)
    build_shards([folder / "cuentos.jsonl"], read_conversations(conversations), config, folder / "shards")
    return open_shards(folder / "shards")
