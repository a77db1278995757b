from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from enlace.config.schema import ModelConfig
from enlace.data.shards import Shards
from enlace.export.weights import save_weights
from enlace.model.transformer import Transformer
from tests.conftest import ROOT


@pytest.fixture
def project(tmp_path: Path) -> Path:
    shutil.copytree(ROOT / "configs", tmp_path / "configs")
    shutil.copy(ROOT / "params.yaml", tmp_path)
    return tmp_path


@pytest.fixture
def with_model(project: Path, model_config: ModelConfig, small_shards: Shards) -> Path:
    model = Transformer(model_config, small_shards.manifest.vocab_size).initialise(torch.Generator().manual_seed(0))
    save_weights(project / "models/enlace", model, small_shards.tokenizer_path.read_bytes(), 128, {})
    return project


def _enlace(cwd: Path, *arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "enlace.cli", *arguments]
    return subprocess.run(command, cwd=cwd, input=stdin, capture_output=True, text=True, timeout=120, check=False)


def _fails(result: subprocess.CompletedProcess[str], *says: str) -> None:
    assert result.returncode == 1, result.stdout
    assert "Traceback" not in result.stderr
    assert all(text in result.stderr for text in says), result.stderr


def test_help_is_in_spanish_and_lists_the_commands(project: Path) -> None:
    out = _enlace(project, "--help").stdout
    assert "modelo de lenguaje propio" in out
    assert all(command in out for command in ("chat", "ask", "config", "summary"))


def test_config_check_show_and_diff(project: Path) -> None:
    check = _enlace(project, "config", "check")
    assert check.returncode == 0 and "modelo mini" in check.stdout
    assert "train.z_loss = 0.0001" in _enlace(project, "config", "show").stdout
    assert "Igual que el preset «demo»" in _enlace(project, "config", "diff").stdout
    diff = _enlace(project, "config", "diff", "hogar-100m").stdout
    assert "model.d_model: 768 -> 128" in diff and "layers.hardware: rtx2060 -> cpu" in diff


def test_a_bad_configuration_is_one_message_and_status_1(project: Path) -> None:
    with (project / "params.yaml").open("a") as file:
        file.write("\nnada: 1\n")
    _fails(_enlace(project, "config", "check"), "params.yaml", "clave desconocida: nada")


def test_outside_a_project_it_says_where_to_go(tmp_path: Path) -> None:
    _fails(_enlace(tmp_path, "config", "check"), "params.yaml", "carpeta del proyecto")


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine may suit a GPU profile")
def test_hardware_that_is_not_there_is_refused_and_params_stays(project: Path) -> None:
    before = (project / "params.yaml").read_bytes()
    _fails(_enlace(project, "config", "hardware", "h200"), "«h200»", "HW=cpu")
    _fails(_enlace(project, "config", "hardware", "h20"), "¿querías decir «h200»?")
    assert (project / "params.yaml").read_bytes() == before
    assert _enlace(project, "config", "hardware", "cpu").returncode == 0


def test_preset_is_written_and_the_old_one_kept(project: Path) -> None:
    assert "params.anterior.yaml" in _enlace(project, "config", "preset", "base-25m").stdout
    assert "modelo base" in _enlace(project, "config", "check").stdout
    _fails(_enlace(project, "config", "preset"), "Hay: base-25m")


def test_ask_answers_from_argument_and_standard_input(with_model: Path) -> None:
    once = _enlace(with_model, "ask", "¿Qué come el perro?", "--max-new-tokens", "8")
    assert once.returncode == 0
    assert once.stdout == _enlace(with_model, "ask", "-", "--max-new-tokens", "8", stdin="¿Qué come el perro?").stdout


def test_chat_goes_on_until_the_input_ends(with_model: Path) -> None:
    result = _enlace(with_model, "chat", "--max-new-tokens", "8", stdin="¿Qué come el perro?\n/nuevo\n\nhola\n")
    assert result.returncode == 0
    assert "Conversación nueva." in result.stdout
    result = _enlace(with_model, "chat", stdin="perro " * 400 + "\n/salir\n")
    assert result.returncode == 0 and "demasiado largo" in result.stdout


def test_without_a_model_or_a_report_it_says_how_to_make_one(project: Path) -> None:
    _fails(_enlace(project, "ask", "hola"), "models/enlace", "make repro")
    _fails(_enlace(project, "summary"), "metrics.json", "make repro")


def test_summary_shows_figures_beside_chance_and_samples(project: Path) -> None:
    reports = project / "reports"
    reports.mkdir()
    grounded = {
        "questions": 200,
        "choice_accuracy": 0.61,
        "choice_interval": 0.07,
        "choice_chance": 0.25,
        "f1": 0.31,
        "f1_chance": 0.12,
    }
    (reports / "metrics.json").write_text(json.dumps({"bits_per_byte": {"wiki": 1.5}, "grounded": grounded}))
    sample = {"question": "¿Qué [es] esto?", "answer": "pan", "right": "pan"}
    continued = {"prompt": "El arroz", "text": " es blanco"}
    (reports / "samples.json").write_text(json.dumps({"answers": [sample], "continuations": [continued]}))
    out = _enlace(project, "summary").stdout
    assert "1.500" in out and "61 %" in out and "azar 25 %" in out and "¿Qué [es] esto?" in out and "make chat" in out
