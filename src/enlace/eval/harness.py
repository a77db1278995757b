"""lm-evaluation-harness on the sets that `eval` wrote, for the export and for any other model, on equal terms.

The tasks are in configs/lm_eval; everything runs in float32 and without a network, unless stock tasks are asked for by
name, whose data comes from a hub.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from enlace import EnlaceError

TASKS = Path("configs/lm_eval")
SETS = Path("reports/sets")
LIKELIHOOD = ("enlace_texto", "enlace_pares", "enlace_titulos")
WRITTEN = ("enlace_preguntas", "enlace_sin_respuesta")
_SET_OF = {
    "enlace_texto": "texts",
    "enlace_pares": "pairs",
    "enlace_titulos": "choices",
    "enlace_preguntas": "questions",
    "enlace_sin_respuesta": "unanswerable",
}
_OFFLINE = ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE", "TRANSFORMERS_OFFLINE")

Results = dict[str, dict[str, float]]  # task -> metric -> value


def check_model(folder: Path) -> None:
    """Raise EnlaceError unless `folder` holds a model with the tokenizer files of Hugging Face."""
    if missing := [name for name in ("config.json", "tokenizer_config.json") if not (folder / name).is_file()]:
        raise EnlaceError(
            f"{folder}: falta {missing[0]}; hace falta un modelo en el formato de Hugging Face. El tuyo se exporta "
            f"con: enlace export hf CARPETA"
        )


def run_harness(root: Path, model: Path, tasks: Sequence[str], limit: int | None) -> Results:
    """The figures of `model` in `tasks`, by name: ours, or stock ones.

    What is written is asked for in the model's own chat template, and plainly of a model that has none.

    Args:
        root: the project, where the tasks and the sets are.
        limit: only the first so many examples of each task.

    Raises:
        EnlaceError: lm-evaluation-harness is not installed, or the sets are not there.
    """
    ours = all(task in _SET_OF for task in tasks)
    for task in tasks:
        if task in _SET_OF and not (path := root / SETS / f"{_SET_OF[task]}.jsonl").is_file():
            raise EnlaceError(f"{path}: no está; lo escribe la evaluación: dvc repro eval")
    if ours:  # read when the libraries are imported
        os.environ.update(dict.fromkeys(_OFFLINE, "1"))
    try:
        import torch
        from lm_eval import simple_evaluate
        from lm_eval.models.huggingface import HFLM
        from lm_eval.tasks import TaskManager
    except ImportError as error:
        raise EnlaceError("Hace falta lm-evaluation-harness: pip install -e '.[eval]'") from error
    device = "cuda" if torch.cuda.is_available() else "cpu"
    with contextlib.chdir(root):  # the tasks name the sets from here
        loaded = HFLM(pretrained=str(model), dtype="float32", device=device, batch_size=16)
        manager = TaskManager(include_path=str(TASKS), include_defaults=not ours)
        chat = bool(loaded.tokenizer.chat_template)
        written = [task if chat else f"{task}_sin_chat" for task in tasks if task in WRITTEN]
        plain = [task for task in tasks if task not in WRITTEN]
        results: Results = {}
        for names, templated in ((plain, False), (written, chat)):
            if names:
                found = simple_evaluate(
                    loaded,
                    tasks=names,
                    task_manager=manager,
                    apply_chat_template=templated,
                    limit=limit,
                    bootstrap_iters=0,
                    log_samples=False,
                )
                results |= {name.removesuffix("_sin_chat"): _figures(of) for name, of in found["results"].items()}
    return results


def _figures(of: dict[str, Any]) -> dict[str, float]:
    return {
        key.removesuffix(",none"): float(value)
        for key, value in of.items()
        if isinstance(value, float) and "stderr" not in key
    }
