"""What is exported is the same model in transformers, with no code of ours."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from enlace import EnlaceError
from enlace.config.schema import AgentConfig
from enlace.data.chat import Message, encode_prompt
from enlace.data.special_tokens import SPECIAL_TOKENS
from enlace.data.tokenizer import Tokenizer
from enlace.export.huggingface import export_huggingface
from enlace.export.trained import Trained, load_trained
from enlace.model.generate import Sampling, generate, generate_batch
from tests.conftest import ROOT

transformers = pytest.importorskip("transformers")


@pytest.fixture(scope="module")
def exported(source: Path, card: Path, agent: AgentConfig, tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("salida") / "hf"
    export_huggingface(source, card, target, agent, force=False)
    return target


@pytest.fixture(scope="module")
def theirs(exported: Path) -> Any:
    return transformers.AutoModelForCausalLM.from_pretrained(exported).eval()


@pytest.fixture(scope="module")
def their_tokenizer(exported: Path) -> Any:
    return transformers.AutoTokenizer.from_pretrained(exported)


def test_logits_are_the_same_at_all_positions(theirs: Any, trained: Trained) -> None:
    """huggingface/nanotron#427: the wrong rotary order is silent, and position 0 never shows it."""
    assert type(theirs).__name__ == "Qwen3ForCausalLM"
    ids = torch.randint(0, trained.tokenizer.vocab_size, (3, 256), generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        ours, there = trained.model.logits(trained.model(ids)), theirs(ids).logits
    assert float(ours.std()) > 0.5
    torch.testing.assert_close(there, ours, rtol=0, atol=1e-4)


def test_the_head_is_the_embedding(theirs: Any) -> None:
    """sgl-project/sglang#1508: a tie that is lost on the way gives a head of random weights."""
    assert theirs.config.tie_word_embeddings
    assert theirs.get_output_embeddings().weight.data_ptr() == theirs.get_input_embeddings().weight.data_ptr()


def test_greedy_says_the_same_as_transformers(theirs: Any, trained: Trained) -> None:
    greedy = Sampling(40, 0, 1, 0)
    stop = trained.stop_ids
    prompts = [[5 + i, 40, 3 * i + 7, 100 + i] * (i % 5 + 1) for i in range(12)]
    ours = [list(generate(trained.model, prompt, greedy, stop, 256)) for prompt in prompts]
    for prompt, answer in zip(prompts, ours):
        assert _by_transformers(theirs, [prompt])[0] == answer
    assert len({tuple(answer) for answer in ours}) > 6, "it does not say the same to everything"
    assert _by_transformers(theirs, prompts) == ours, "also theirs padded on the left"
    assert generate_batch(trained.model, prompts, greedy, stop, 256) == ours


def test_greedy_with_a_penalty_says_the_same_as_transformers(theirs: Any, trained: Trained) -> None:
    prompt = [5, 40, 7, 100, 5, 40]
    sampling = Sampling(40, 0, 1, 0, repetition_penalty=1.4)
    ours = list(generate(trained.model, prompt, sampling, trained.stop_ids, 256))
    assert _by_transformers(theirs, [prompt], repetition_penalty=1.4)[0] == ours


def _by_transformers(theirs: Any, prompts: list[list[int]], **settings: Any) -> list[list[int]]:
    longest = max(map(len, prompts))
    pad = theirs.generation_config.pad_token_id
    padded = torch.tensor([[pad] * (longest - len(p)) + p for p in prompts])
    mask = torch.tensor([[0] * (longest - len(p)) + [1] * len(p) for p in prompts])
    out = theirs.generate(padded, attention_mask=mask, max_new_tokens=40, do_sample=False, **settings)
    answers = out[:, longest:].tolist()
    ends = theirs.generation_config.eos_token_id
    return [a[: next((i for i, token in enumerate(a) if token in ends), len(a))] for a in answers]


def test_it_stops_at_the_end_of_a_turn_and_pads_with_something_else(theirs: Any, their_tokenizer: Any) -> None:
    """ggml-org/llama.cpp#6745, QwenLM/Qwen3#927: with the end of the base model, answers never stop."""
    end_of_text, im_start, im_end, pad = range(4)
    assert set(theirs.generation_config.eos_token_id) == {im_end, end_of_text}
    assert theirs.generation_config.pad_token_id == their_tokenizer.pad_token_id == pad
    assert (their_tokenizer.bos_token_id, their_tokenizer.eos_token_id) == (end_of_text, im_end)
    forced = torch.zeros(len(their_tokenizer))
    forced[im_end] = 1e9

    def force(ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        return scores + forced

    prompt = torch.tensor([[im_start, 50, 60]])
    out = theirs.generate(prompt, max_new_tokens=20, do_sample=False, logits_processor=[force])
    assert out[0, 3:].tolist() == [im_end]


def test_tokens_are_the_same_on_400_texts(their_tokenizer: Any, trained: Trained, texts: list[str]) -> None:
    """huggingface/transformers#47862, #2742: a prefix space, an accent or the user's own spaces lost."""
    assert len(texts) >= 400
    for text in texts:
        ids = trained.tokenizer.encode(text)
        assert their_tokenizer.encode(text, add_special_tokens=False) == ids, text
        assert their_tokenizer.decode(ids) == text
    assert their_tokenizer("hola").input_ids == trained.tokenizer.encode("hola"), "nothing is put before a text"


def test_tokens_are_the_same_on_400_documents_of_the_real_corpus(agent: AgentConfig, tmp_path: Path) -> None:
    raw, model = ROOT / "data/raw/wikipedia-es.jsonl", ROOT / "models/enlace"
    if not (raw.is_file() and model.is_dir()):
        pytest.skip("no corpus and model here: make repro makes them")
    card = tmp_path / "card.md"
    card.write_text(json.loads((model / "run.json").read_bytes())["run"])
    export_huggingface(model, card, tmp_path / "hf", agent, force=False)
    there = transformers.AutoTokenizer.from_pretrained(tmp_path / "hf")
    tokenizer = Tokenizer.load(model / "tokenizer.json")
    with raw.open(encoding="utf-8") as file:
        documents = [json.loads(next(file))["text"] for _ in range(400)]
    assert [there.encode(text, add_special_tokens=False) for text in documents] == [
        tokenizer.encode(text) for text in documents
    ]


def test_the_template_gives_what_the_chat_gives(their_tokenizer: Any, trained: Trained) -> None:
    turns = [
        Message("system", "Breve."),
        Message("user", "¿Qué?\n\n- uno"),
        Message("assistant", " sí"),
        Message("user", "¡Ah!"),
    ]
    dicts = [{"role": turn.role, "content": turn.content.strip()} for turn in turns]
    ids = their_tokenizer.apply_chat_template(dicts, add_generation_prompt=True, return_dict=True)["input_ids"]
    assert ids == encode_prompt(trained.tokenizer, turns)


def test_the_old_spelling_of_the_rotary_base_is_there_too(exported: Path) -> None:
    """Readers of transformers 4's spelling take 10000 for a base that they do not find, in silence."""
    config = json.loads((exported / "config.json").read_bytes())
    assert config["rope_theta"] == config["rope_parameters"]["rope_theta"] == 10000.0
    assert {"head_dim", "rms_norm_eps", "num_key_value_heads", "max_position_embeddings"} <= set(config)


def test_it_loads_here_as_well_and_carries_card_and_template(exported: Path, card: Path, trained: Trained) -> None:
    again = load_trained(exported)
    assert again.context_length == trained.context_length
    assert (exported / "README.md").read_text(encoding="utf-8") == card.read_text(encoding="utf-8")
    assert not list(exported.parent.glob(".*")), "nothing is left beside it"
    assert not list(exported.glob("*.py")), "no code to trust"
    config = json.loads((exported / "tokenizer_config.json").read_bytes())
    assert (config["bos_token"], config["eos_token"], config["pad_token"]) == (
        SPECIAL_TOKENS[0],
        SPECIAL_TOKENS[2],
        SPECIAL_TOKENS[3],
    )


def test_the_way_of_sampling_is_the_configured_one(exported: Path, agent: AgentConfig, theirs: Any) -> None:
    assert theirs.generation_config.do_sample is True
    assert theirs.generation_config.temperature == agent.temperature
    assert theirs.generation_config.top_p == agent.top_p
    assert theirs.generation_config.top_k == agent.top_k == 0, "0 is all, and not transformers' own 50"
    sampled = theirs.generate(torch.tensor([[5, 6, 7]]), max_new_tokens=5)
    assert sampled.shape[1] > 3


def test_a_model_without_a_card_of_its_own_is_not_given_away(source: Path, tmp_path: Path, agent: AgentConfig) -> None:
    with pytest.raises(EnlaceError, match=r"falta la ficha.*licencias.*dvc repro eval"):
        export_huggingface(source, tmp_path / "nada.md", tmp_path / "hf", agent, force=False)
    (tmp_path / "otra.md").write_text("# Otra ejecución: ffff")
    with pytest.raises(EnlaceError, match=r"no es de este modelo.*dvc repro -f -s eval"):
        export_huggingface(source, tmp_path / "otra.md", tmp_path / "hf", agent, force=False)
    assert not (tmp_path / "hf").exists()
