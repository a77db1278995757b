"""lm-evaluation-harness finds on the export what `eval` found: not a look-alike, the figure itself."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from enlace import EnlaceError
from enlace.data.chat import CHAT_TEMPLATE
from enlace.data.shards import Shards
from enlace.eval import choices, minimal_pairs
from enlace.eval.harness import LIKELIHOOD, SETS, TASKS, WRITTEN, check_model, run_harness
from enlace.eval.minimal_pairs import FILE, load_phenomena
from enlace.eval.report import Measured, text_figures
from enlace.eval.sets import write_sets
from enlace.export.trained import Trained
from enlace.export.weights import save_weights
from tests.conftest import ROOT

CONTEXT = 56  # shorter than the documents, which are scored by windows, and than some questions


@pytest.fixture
def project(measured: Measured, trained: Trained, tmp_path: Path) -> Path:
    shutil.copytree(ROOT / TASKS, tmp_path / TASKS)
    write_sets(
        tmp_path / SETS,
        trained.tokenizer,
        measured.texts,
        measured.pairs,
        measured.choices,
        measured.asked[:3],
        measured.refused[:2],
    )
    return tmp_path


def _export(folder: Path, trained: Trained, tokenizer: Path, context: int, template: str | None) -> Path:
    save_weights(folder, trained.model, tokenizer.read_bytes(), context, {"run": "x"})
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<|endoftext|>",
        "eos_token": "<|im_end|>",
        "pad_token": "<|pad|>",
        "add_bos_token": False,
        "clean_up_tokenization_spaces": False,
        "chat_template": template,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder


def test_the_figures_are_those_of_eval(
    project: Path, measured: Measured, trained: Trained, small_shards: Shards, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("lm_eval", reason="pip install -e '.[eval]'")
    monkeypatch.setenv("HF_HOME", str(project / "hf"))
    short = replace(trained, context_length=CONTEXT)
    model = _export(project / "export", trained, small_shards.tokenizer_path, CONTEXT, CHAT_TEMPLATE)
    check_model(model)
    found = run_harness(project, model, LIKELIHOOD, None)

    assert max(len(ids) for ids in measured.texts["cuentos"]) > CONTEXT + 1
    ours = text_figures(short, measured.texts)["cuentos"]
    assert round(found["enlace_texto"]["bits_per_byte"], 4) == round(ours, 4)
    right = minimal_pairs.judge(short, measured.pairs)
    assert found["enlace_pares"]["acc"] == pytest.approx(sum(right) / len(right))
    for name, share in measured.shares.items():
        assert found["enlace_pares"][name] == pytest.approx(share.value), name
    chosen = choices.judge(short, measured.choices)
    assert found["enlace_titulos"]["acc_mutual_info"] == pytest.approx(sum(chosen) / len(chosen))


@pytest.mark.parametrize("template", [CHAT_TEMPLATE, None])
def test_what_is_written_is_compared_with_and_without_a_chat_template(
    project: Path, trained: Trained, small_shards: Shards, template: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("lm_eval", reason="pip install -e '.[eval]'")
    monkeypatch.setenv("HF_HOME", str(project / "hf"))
    model = _export(project / "export", trained, small_shards.tokenizer_path, 256, template)
    found = run_harness(project, model, WRITTEN, 2)
    assert set(found) == {"enlace_preguntas", "enlace_sin_respuesta"}
    assert set(found["enlace_preguntas"]) == {"f1", "exact", "refused"}
    assert found["enlace_sin_respuesta"] == {"refused": 0.0}


def test_the_tasks_know_every_phenomenon() -> None:
    lines = (ROOT / TASKS / "enlace_pares.yaml").read_text(encoding="utf-8").splitlines()
    metrics = [line.split("metric: ")[1].split(",")[0] for line in lines if "{metric: " in line]
    assert metrics == ["acc", *load_phenomena(ROOT / FILE)]


def test_what_is_no_model_or_has_no_sets_is_said(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}", encoding="utf-8")
    with pytest.raises(EnlaceError, match=r"tokenizer_config\.json.*enlace export hf"):
        check_model(tmp_path)
    with pytest.raises(EnlaceError, match=r"texts\.jsonl.*dvc repro eval"):
        run_harness(tmp_path, tmp_path, ["enlace_texto"], None)
