"""A folder that Hugging Face's transformers, vLLM and the like load as a Qwen3 model, with no code of ours.

The folder of the trained model has the layout already (`weights`). What is added here is what talking needs: the chat
template, when to stop, how to sample; and the model card.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from enlace import EnlaceError
from enlace.config.schema import AgentConfig
from enlace.data.chat import CHAT_TEMPLATE
from enlace.data.special_tokens import SPECIAL_TOKENS
from enlace.export.folder import in_place
from enlace.export.trained import Trained, load_trained

_COPIED = ("config.json", "model.safetensors", "tokenizer.json", "run.json")


def export_huggingface(source: Path, card: Path, target: Path, agent: AgentConfig, *, force: bool) -> None:
    """Write the trained model in the folder `source` to the folder `target`.

    Args:
        card: the model card that `eval` wrote about it; a model without its sources and licences is not to be given
            away.
        agent: how the model is talked to; becomes its default way of sampling.

    Raises:
        EnlaceError: there is no trained model, or no card of that model; or `target` cannot be written.
    """
    trained = load_trained(source)
    text = _card_of(card, source)
    with in_place(target, force=force, replaceable="config.json") as folder:
        folder.mkdir()
        for name in _COPIED:
            shutil.copyfile(source / name, folder / name)
        (folder / "README.md").write_text(text, encoding="utf-8")
        (folder / "chat_template.jinja").write_text(CHAT_TEMPLATE, encoding="utf-8")
        _write_json(folder / "tokenizer_config.json", _tokenizer_config(trained))
        _write_json(folder / "generation_config.json", _generation_config(trained, agent))


def _card_of(card: Path, source: Path) -> str:
    try:
        text = card.read_text(encoding="utf-8")
        run = str(json.loads((source / "run.json").read_bytes()).get("run"))
    except (OSError, ValueError) as error:
        raise EnlaceError(
            f"{card}: falta la ficha del modelo, con sus medidas, fuentes y licencias. Hazla con: dvc repro eval"
        ) from error
    if run not in text:
        raise EnlaceError(f"{card}: la ficha no es de este modelo (ejecución {run}). Rehazla con: dvc repro -f -s eval")
    return text


def _tokenizer_config(trained: Trained) -> dict[str, Any]:
    """The padding is not the end of a turn, or training on this would unlearn to stop (huggingface/trl#976)."""
    end_of_text, _, im_end, pad = SPECIAL_TOKENS
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": end_of_text,
        "eos_token": im_end,
        "pad_token": pad,
        "add_bos_token": False,
        "clean_up_tokenization_spaces": False,
        "model_max_length": trained.context_length,
        "chat_template": CHAT_TEMPLATE,
    }


def _generation_config(trained: Trained, agent: AgentConfig) -> dict[str, Any]:
    tokenizer = trained.tokenizer
    sampling = {
        "temperature": agent.temperature,
        "top_p": agent.top_p,
        "top_k": agent.top_k,
        "min_p": agent.min_p,
        "repetition_penalty": agent.repetition_penalty,
    }
    return {
        "bos_token_id": tokenizer.end_of_text_id,
        "eos_token_id": [tokenizer.im_end_id, tokenizer.end_of_text_id],
        "pad_token_id": tokenizer.pad_id,
        "max_new_tokens": agent.max_new_tokens,
        "do_sample": agent.temperature > 0,
        **(sampling if agent.temperature > 0 else {"repetition_penalty": agent.repetition_penalty}),
    }


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, ensure_ascii=False, indent=2) + "\n", encoding="utf-8")
