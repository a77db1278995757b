from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors import safe_open

from enlace import EnlaceError
from enlace.config.schema import ModelConfig
from enlace.data.shards import Shards
from enlace.export.trained import load_trained
from enlace.export.weights import save_weights
from enlace.model.transformer import Transformer


@pytest.fixture
def model(model_config: ModelConfig, small_shards: Shards) -> Transformer:
    model = Transformer(model_config, small_shards.manifest.vocab_size)
    return model.initialise(torch.Generator().manual_seed(0)).eval()


@pytest.fixture
def folder(model: Transformer, small_shards: Shards, tmp_path: Path) -> Path:
    save_weights(tmp_path / "m", model, small_shards.tokenizer_path.read_bytes(), 64, {"run": "abc"})
    return tmp_path / "m"


def test_comes_back_as_it_was(folder: Path, model: Transformer, small_shards: Shards) -> None:
    trained = load_trained(folder)
    assert trained.context_length == 64
    assert trained.tokenizer.sha256 == small_shards.manifest.tokenizer_sha256
    for (name, a), (other, b) in zip(model.state_dict().items(), trained.model.state_dict().items(), strict=True):
        assert name == other and torch.equal(a, b)
    assert not trained.model.training


def test_the_same_model_gives_the_same_bytes(folder: Path, model: Transformer, small_shards: Shards) -> None:
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    save_weights(folder, model, small_shards.tokenizer_path.read_bytes(), 64, {"run": "abc"})
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def test_the_tied_embedding_is_stored_once(folder: Path) -> None:
    with safe_open(folder / "model.safetensors", "pt") as file:
        assert file.metadata() == {"format": "pt"}
        assert "lm_head.weight" not in file.keys()  # noqa: SIM118 (not a dict)
    assert json.loads((folder / "config.json").read_bytes())["tie_word_embeddings"] is True


def test_transformers_reads_it_and_says_the_same(folder: Path, model: Transformer) -> None:
    transformers = pytest.importorskip("transformers")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(folder).eval()
    ids = torch.randint(0, 320, (2, 40))
    with torch.no_grad():
        torch.testing.assert_close(theirs(ids).logits, model.logits(model(ids)), rtol=0, atol=1e-4)


def test_no_model_and_a_damaged_one_are_told_apart(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(EnlaceError, match="make repro"):
        load_trained(tmp_path / "nada")
    tokenizer = folder / "tokenizer.json"
    good = tokenizer.read_bytes()
    other = json.loads(good)
    other["model"]["vocab"]["otra"] = len(other["model"]["vocab"])
    for bad in (b"{}", json.dumps(other).encode()):
        tokenizer.write_bytes(bad)
        with pytest.raises(EnlaceError, match=r"dañado.*dvc checkout --force"):
            load_trained(folder)
    tokenizer.write_bytes(good)
    (folder / "model.safetensors").write_bytes((folder / "model.safetensors").read_bytes()[:-100])
    with pytest.raises(EnlaceError, match="dañado"):
        load_trained(folder)
