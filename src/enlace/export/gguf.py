"""One file for llama.cpp and what is built on it (ollama, LM Studio, Jan).

Written directly: llama.cpp's own converter knows a tokenizer by a hash of what it gives, so never a new one.
"""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

import torch

from enlace import EnlaceError
from enlace.data.chat import CHAT_TEMPLATE
from enlace.data.special_tokens import SPECIAL_TOKENS
from enlace.export.folder import in_place
from enlace.export.trained import Trained, load_trained
from enlace.model.transformer import head_dim

Dtype = Literal["f32", "f16", "q8_0"]
_FILE_TYPE = {"f32": 0, "f16": 1, "q8_0": 7}  # llama.cpp's llama_ftype
_NORMAL, _CONTROL = 1, 3  # types of a token


def export_gguf(source: Path, target: Path, dtype: Dtype, *, force: bool) -> None:
    """Write the trained model in the folder `source` to the file `target`.

    Args:
        dtype: of the matrices: as trained (f32), in half the size (f16), or in a quarter (q8_0: blocks of 32 weights
            of 8 bits and a scale). Matrices that do not divide into blocks stay f16; vectors stay f32 always.

    Raises:
        EnlaceError: the package `gguf` or the trained model is missing; or `target` cannot be written.
    """
    try:
        gguf: Any = import_module("gguf")
    except ImportError:
        raise EnlaceError("Falta el paquete gguf. Instálalo con: pip install -e '.[export]'") from None
    trained = load_trained(source)
    tokenizer_json = json.loads((source / "tokenizer.json").read_bytes())
    name = json.loads((source / "run.json").read_bytes()).get("model", "")
    if target.is_dir():
        raise EnlaceError(f"{target}: es una carpeta; hace falta un archivo, por ejemplo {target / 'enlace.gguf'}")
    with in_place(target, force=force, replaceable="") as path:
        writer = gguf.GGUFWriter(path, "qwen3")
        try:
            _add_metadata(writer, trained, f"ENLACE {name}".strip(), dtype)
            _add_tokenizer(writer, trained, tokenizer_json)
            _add_tensors(gguf, writer, trained, dtype)
            writer.write_header_to_file()
            writer.write_kv_data_to_file()
            writer.write_tensors_to_file()
        finally:
            writer.close()


def _add_metadata(writer: Any, trained: Trained, name: str, dtype: Dtype) -> None:
    config = trained.model.config
    writer.add_name(name)
    writer.add_languages(["es"])
    writer.add_file_type(_FILE_TYPE[dtype])
    writer.add_quantization_version(2)
    writer.add_vocab_size(trained.tokenizer.vocab_size)
    writer.add_context_length(trained.context_length)
    writer.add_block_count(config.n_layers)
    writer.add_embedding_length(config.d_model)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.n_heads)
    writer.add_head_count_kv(config.n_kv_heads)
    writer.add_key_length(head_dim(config))
    writer.add_value_length(head_dim(config))
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_theta)


def _add_tokenizer(writer: Any, trained: Trained, tokenizer_json: dict[str, Any]) -> None:
    """Split as Qwen2, nothing put before a text, and the end of a turn as the end: without that it never stops."""
    vocabulary = tokenizer_json["model"]["vocab"]
    tokens = sorted(vocabulary, key=vocabulary.__getitem__)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(tokens)
    # llama.cpp knows the first and the third special token as the end of generation by their names, and <|pad|> is none
    # of them, so that hiding the padding never hides the end of an answer.
    writer.add_token_types([_CONTROL if token in SPECIAL_TOKENS else _NORMAL for token in tokens])
    writer.add_token_merges(
        [merge if isinstance(merge, str) else " ".join(merge) for merge in tokenizer_json["model"]["merges"]]
    )
    writer.add_bos_token_id(trained.tokenizer.end_of_text_id)
    writer.add_eos_token_id(trained.tokenizer.im_end_id)
    writer.add_pad_token_id(trained.tokenizer.pad_id)
    writer.add_add_bos_token(False)
    writer.add_chat_template(CHAT_TEMPLATE)


def _add_tensors(gguf: Any, writer: Any, trained: Trained, dtype: Dtype) -> None:
    """No rows of queries and keys are permuted: llama.cpp rotates this architecture half-split, as we do."""
    types = gguf.GGMLQuantizationType
    wanted = {"f32": types.F32, "f16": types.F16, "q8_0": types.Q8_0}[dtype]
    block = gguf.GGML_QUANT_SIZES[types.Q8_0][0]
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.QWEN3, trained.model.config.n_layers)
    for name, tensor in trained.model.state_dict().items():
        kind = types.F32 if tensor.ndim == 1 else wanted
        if kind == types.Q8_0 and tensor.shape[-1] % block:
            kind = types.F16
        data = gguf.quants.quantize(tensor.to(torch.float32).numpy(), kind)
        writer.add_tensor(names.get_name(f"model.{name}", try_suffixes=(".weight",)), data, raw_dtype=kind)
