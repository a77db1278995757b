"""The weights on disk, in the layout of Hugging Face's Qwen3: what reads those reads this.

model.safetensors   float32, the tied embedding stored once
config.json         of `Qwen3ForCausalLM`
tokenizer.json      run.json: what made it
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save

from enlace import EnlaceError
from enlace.config.schema import ModelConfig
from enlace.durable import write_atomic
from enlace.model.transformer import Transformer, head_dim

_PREFIX = "model."


def save_weights(
    folder: Path, model: Transformer, tokenizer_json: bytes, context_length: int, run: Mapping[str, Any]
) -> None:
    """Write a trained model; the same model gives the same bytes.

    Args:
        context_length: tokens that the model was trained to read at once.
        run: what made it, for the record.
    """
    weights = {_PREFIX + name: tensor.detach().cpu().contiguous() for name, tensor in model.state_dict().items()}
    write_atomic(folder / "tokenizer.json", tokenizer_json)
    _write_json(folder / "config.json", qwen3_config(model, tokenizer_json, context_length))
    _write_json(folder / "run.json", run)
    write_atomic(folder / "model.safetensors", save(weights, metadata={"format": "pt"}))


def load_weights(folder: Path) -> tuple[Transformer, int]:
    """The model that `save_weights` wrote, on the CPU, and its context length.

    Raises:
        EnlaceError: there is no trained model there, or a file of it is damaged.
    """
    if not (folder / "model.safetensors").is_file():
        raise EnlaceError(f"{folder}: no hay ningún modelo entrenado. Entrénalo con: make repro")
    try:
        config = json.loads((folder / "config.json").read_bytes())
        shape = ModelConfig(
            d_model=config["hidden_size"],
            n_layers=config["num_hidden_layers"],
            n_heads=config["num_attention_heads"],
            n_kv_heads=config["num_key_value_heads"],
            intermediate_size=config["intermediate_size"],
            rope_theta=config["rope_theta"],
            rms_norm_eps=config["rms_norm_eps"],
        )
        model = Transformer(shape, config["vocab_size"])
        weights = load_file(folder / "model.safetensors")
        model.load_state_dict({name.removeprefix(_PREFIX): tensor for name, tensor in weights.items()})
        return model.eval(), int(config["max_position_embeddings"])
    except (OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
        raise damaged(folder) from error


def damaged(folder: Path) -> EnlaceError:
    """The error for a folder that holds a model that is not whole, with the way out."""
    return EnlaceError(
        f"{folder}: el modelo está dañado o incompleto. Recupéralo con: dvc checkout --force {folder}, "
        f"o entrénalo: make repro"
    )


def qwen3_config(model: Transformer, tokenizer_json: bytes, context_length: int) -> dict[str, Any]:
    """config.json of `Qwen3ForCausalLM`; the rotary base in the spelling of transformers 4 and in that of 5."""
    config = model.config
    special = {token["content"]: token["id"] for token in json.loads(tokenizer_json)["added_tokens"]}
    return {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "vocab_size": model.embed_tokens.num_embeddings,
        "hidden_size": config.d_model,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": config.n_layers,
        "num_attention_heads": config.n_heads,
        "num_key_value_heads": config.n_kv_heads,
        "head_dim": head_dim(config),
        "hidden_act": "silu",
        "max_position_embeddings": context_length,
        "rms_norm_eps": config.rms_norm_eps,
        "rope_theta": config.rope_theta,
        "rope_parameters": {"rope_type": "default", "rope_theta": config.rope_theta},
        "tie_word_embeddings": True,
        "attention_bias": False,
        "attention_dropout": 0.0,
        "use_sliding_window": False,
        "bos_token_id": special["<|endoftext|>"],
        "eos_token_id": special["<|im_end|>"],
        "pad_token_id": special["<|pad|>"],
        "dtype": "float32",
    }


def _write_json(path: Path, content: Mapping[str, Any]) -> None:
    write_atomic(path, (json.dumps(content, ensure_ascii=False, indent=2) + "\n").encode())
