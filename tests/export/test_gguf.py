"""The file as a real llama.cpp reads it (xllamacpp), and its metadata read back."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch

from enlace import EnlaceError
from enlace.data.chat import Message, encode_prompt
from enlace.data.special_tokens import SPECIAL_TOKENS
from enlace.export import gguf as export
from enlace.export.gguf import export_gguf
from enlace.export.trained import Trained
from enlace.model.generate import Sampling, generate

gguf = pytest.importorskip("gguf")
# How far each may be from the float32 model, in nats, over the whole vocabulary.
FURTHEST = {"f32": 1e-3, "f16": 3e-2, "q8_0": 0.5}


@pytest.fixture(scope="module")
def files(source: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("gguf")
    for dtype in FURTHEST:
        export_gguf(source, folder / f"{dtype}.gguf", dtype, force=False)  # type: ignore[arg-type]
    assert len(list(folder.iterdir())) == len(FURTHEST), "nothing is left beside them"
    return {dtype: folder / f"{dtype}.gguf" for dtype in FURTHEST}


# ── Read back ────────────────────────────────────────────────────────────────────────────────────────────────────────


def _metadata(path: Path) -> dict[str, Any]:
    return {name: field.contents() for name, field in gguf.GGUFReader(path).fields.items()}


def test_the_ends_and_the_splitter_are_written(files: dict[str, Path], trained: Trained) -> None:
    """ggml-org/llama.cpp#6745, #6920: without them token 11 is the end, and another splitter degrades all text."""
    data = _metadata(files["f32"])
    assert data["general.architecture"] == "qwen3"
    tokens = data["tokenizer.ggml.tokens"]
    ends = {name: tokens[data[f"tokenizer.ggml.{name}_token_id"]] for name in ("bos", "eos", "padding")}
    assert ends == {"bos": "<|endoftext|>", "eos": "<|im_end|>", "padding": "<|pad|>"}
    assert (data["tokenizer.ggml.model"], data["tokenizer.ggml.pre"]) == ("gpt2", "qwen2")
    assert data["tokenizer.ggml.add_bos_token"] is False
    assert "<|im_start|>" in data["tokenizer.chat_template"]
    types = data["tokenizer.ggml.token_type"]
    assert len(tokens) == len(types) == trained.tokenizer.vocab_size
    assert [token for token, kind in zip(tokens, types) if kind == 3] == list(SPECIAL_TOKENS)


def test_the_shape_is_written(files: dict[str, Path], trained: Trained) -> None:
    data, config = _metadata(files["f16"]), trained.model.config
    expected = {
        "context_length": trained.context_length,
        "block_count": config.n_layers,
        "embedding_length": config.d_model,
        "feed_forward_length": config.intermediate_size,
        "attention.head_count": config.n_heads,
        "attention.head_count_kv": config.n_kv_heads,
        "attention.key_length": config.head_dim,
        "attention.value_length": config.head_dim,
        "rope.freq_base": config.rope_theta,
        "vocab_size": trained.tokenizer.vocab_size,
    }
    assert {name: data[f"qwen3.{name}"] for name in expected} == expected
    assert data["qwen3.attention.layer_norm_rms_epsilon"] == pytest.approx(config.rms_norm_eps)


@pytest.mark.parametrize(("dtype", "matrices"), [("f32", {"F32"}), ("f16", {"F16"}), ("q8_0", {"Q8_0"})])
def test_matrices_are_of_the_type_asked_for_and_vectors_exact(
    files: dict[str, Path], dtype: str, matrices: set[str]
) -> None:
    tensors = gguf.GGUFReader(files[dtype]).tensors
    assert {t.tensor_type.name for t in tensors if len(t.shape) == 2} == matrices
    assert {t.tensor_type.name for t in tensors if len(t.shape) == 1} == {"F32"}
    assert "output.weight" not in {t.name for t in tensors}, "the head is the embedding"
    assert len(tensors) == 2 + 3 * 11


def test_an_error_on_the_way_leaves_no_file(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(export, "_add_tensors", fail)
    with pytest.raises(EnlaceError, match="disco lleno"):
        export_gguf(source, tmp_path / "m.gguf", "f16", force=False)
    assert list(tmp_path.iterdir()) == []


def test_what_is_there_stays_unless_asked(source: Path, tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(b"mine")
    with pytest.raises(EnlaceError, match=r"ya existe.*--force"):
        export_gguf(source, path, "f16", force=False)
    assert path.read_bytes() == b"mine"
    export_gguf(source, path, "f16", force=True)
    assert path.read_bytes()[:4] == b"GGUF"
    with pytest.raises(EnlaceError, match="es una carpeta"):
        export_gguf(source, tmp_path, "f16", force=True)


# ── In llama.cpp ─────────────────────────────────────────────────────────────────────────────────────────────────────


class LlamaCpp:
    """A server of llama.cpp on the loopback, with a float32 cache."""

    def __init__(self, path: Path) -> None:
        xllamacpp = pytest.importorskip("xllamacpp")
        params = xllamacpp.CommonParams()
        params.model.path = str(path)
        params.n_ctx, params.n_parallel, params.warmup, params.port, params.verbosity = 256, 1, False, 0, -1
        params.cpuparams.n_threads = 1
        params.cache_type_k = params.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
        params.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
        self._server = xllamacpp.Server(params)
        self._client = httpx.Client(base_url=self._server.listening_address, timeout=60, trust_env=False)

    def post(self, path: str, **body: Any) -> Any:
        answer = self._client.post(path, json=body)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def log_probabilities(self, ids: list[int], vocab_size: int) -> torch.Tensor:
        """Of what follows `ids`, for every token [V]."""
        answer = self.post("/completion", prompt=ids, n_predict=1, n_probs=vocab_size, temperature=0)
        scores = torch.full((vocab_size,), float("nan"))
        for entry in answer["completion_probabilities"][0]["top_logprobs"]:
            scores[entry["id"]] = entry["logprob"]
        return scores


@pytest.fixture(scope="module")
def running(files: dict[str, Path]) -> Iterator[dict[str, LlamaCpp]]:
    yield {dtype: LlamaCpp(path) for dtype, path in files.items()}


@pytest.mark.parametrize("dtype", FURTHEST)
def test_llama_cpp_says_the_same(running: dict[str, LlamaCpp], trained: Trained, dtype: str) -> None:
    ids = torch.randint(4, trained.tokenizer.vocab_size, (200,), generator=torch.Generator().manual_seed(3))
    with torch.inference_mode():
        ours = torch.log_softmax(trained.model.logits(trained.model(ids[None]))[0], -1)
    assert float(ours.std()) > 0.5
    furthest = 0.0
    for length in (1, 2, 3, 10, 64, 200):
        theirs = running[dtype].log_probabilities(ids[:length].tolist(), trained.tokenizer.vocab_size)
        assert not theirs.isnan().any(), "the whole vocabulary was compared"
        furthest = max(furthest, float((theirs - ours[length - 1]).abs().max()))
    assert furthest < FURTHEST[dtype]
    if dtype != "f32":
        assert furthest > 1e-4, "it is really of fewer bits"


def test_llama_cpp_continues_alike(running: dict[str, LlamaCpp], trained: Trained) -> None:
    prompt = trained.tokenizer.encode("El perro come pan con aceite")
    ours = list(generate(trained.model, prompt, Sampling(30, 0, 1, 0), trained.stop_ids, 256))
    theirs = running["f32"].post("/completion", prompt=prompt, n_predict=30, temperature=0, return_tokens=True)
    assert theirs["tokens"][: len(ours)] == ours and len(ours) > 5


def test_llama_cpp_tokenises_alike_400_texts(running: dict[str, LlamaCpp], trained: Trained, texts: list[str]) -> None:
    """ggml-org/llama.cpp#8649: with another splitter, newline groups and signs before them come out differently."""
    assert len(texts) >= 400
    for text in texts:
        assert running["f32"].post("/tokenize", content=text)["tokens"] == trained.tokenizer.encode(text), text


@pytest.mark.parametrize("end", ["<|im_end|>", "<|endoftext|>"])
def test_llama_cpp_stops_at_the_end_of_a_turn(running: dict[str, LlamaCpp], trained: Trained, end: str) -> None:
    """QwenLM/Qwen3#927: an end that is not known as one is spelt out, and the answer goes on."""
    bias = [[SPECIAL_TOKENS.index(end), 1e4]]
    answer = running["f32"].post("/completion", prompt=[1, 50, 60], n_predict=20, logit_bias=bias)
    assert (answer["stop_type"], answer["content"]) == ("eos", "")


SEARCH = [Message("assistant", "buscar: Qué es el mate"), Message("tool", "[1] Mate (e.org): Una infusión.")]


@pytest.mark.parametrize("ending", [[], SEARCH, SEARCH * 2], ids=["question", "search", "two searches"])
def test_llama_cpp_renders_the_chat_as_it_was_taught(
    running: dict[str, LlamaCpp], trained: Trained, ending: list[Message]
) -> None:
    turns = [
        Message("system", "Breve."),
        Message("user", "¿Qué?\n\n- uno"),
        Message("assistant", "Sí"),
        Message("user", "¡Ah!"),
        *ending,
    ]
    dicts = [{"role": turn.role, "content": turn.content} for turn in turns]
    rendered = running["f32"].post("/apply-template", messages=dicts)["prompt"]
    ids = running["f32"].post("/tokenize", content=rendered, parse_special=True, add_special=True)["tokens"]
    assert ids == encode_prompt(trained.tokenizer, turns)
