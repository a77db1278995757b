"""The documents: both READMEs give the same commands, these exist and run, and tables are what is computed."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import yaml
from typer.main import get_command

from enlace.cli import app
from enlace.commands import plan
from enlace.config.schema import ModelConfig
from enlace.data.shards import Shards
from enlace.export.weights import save_weights
from enlace.model.transformer import Transformer
from tests.clone import clean_environment, clone_project
from tests.conftest import ROOT

DOCUMENTS = (
    "README.md",
    "README.es.md",
    *(str(path.relative_to(ROOT)) for path in sorted((ROOT / "docs").glob("*.md"))),
)
IN_ENGLISH = [name for name in DOCUMENTS if (ROOT / name).with_suffix(".es.md").exists()]
# What cannot run in a test: the tests themselves, days of training, a page that stays open (tests/agent opens one),
# models that others made (tests/eval compares some), what is bought (tests/data/distill buys from a server of its own).
NEVER = (
    "make test",
    "make train HW=rtx2060",
    "enlace serve",
    "enlace eval lm models/mi-modelo ../otro-modelo",
    "enlace eval lm models/mi-modelo --tasks xnli_es_spanish_bench,multiblimp_spa",
    "enlace distill submit --teacher anthropic --specs prueba.jsonl --max-usd 1",
    "enlace distill collect --teacher anthropic",
    "enlace distill usage --teacher anthropic",
    "enlace distill export --teacher anthropic --out respuestas.jsonl",
)
OURS = ("make", "enlace", "dvc", "scripts/remote.sh", "python", "mkdir")  # another's program may not be there
SLOW = ("make repro", 'make train SET="train.lr=1e-3"')


def _text(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def _commands(name: str) -> list[str]:
    """The lines of the shell blocks of a document, without their comments."""
    blocks = re.findall(r"^```sh\n(.*?)^```", _text(name), flags=re.MULTILINE | re.DOTALL)
    lines = [re.sub(r"\s+# .*", "", line) for block in blocks for line in block.splitlines()]
    return [line for line in lines if line and not line.startswith("#")]


def _spans(name: str) -> list[str]:
    """What stands between backquotes outside of blocks."""
    text = re.sub(r"^```.*?^```", "", _text(name), flags=re.MULTILINE | re.DOTALL)
    return re.findall(r"`([^`\n]+)`", text)


@pytest.mark.parametrize("name", IN_ENGLISH)
def test_both_languages_give_the_same_commands(name: str) -> None:
    other = name.replace(".md", ".es.md")
    assert _commands(name) == _commands(other)
    assert _heads(name) == _heads(other), "in the text too, though names of files may be translated"
    assert _text(name).count("\n## ") == _text(other).count("\n## ")


def _heads(name: str) -> set[tuple[str, ...]]:
    """The commands of ours in the text of a document, without their arguments."""
    return {tuple(words[:2]) for words in map(str.split, _spans(name)) if words[0] in OURS}


@pytest.mark.parametrize("name", DOCUMENTS)
def test_what_a_document_points_to_is_there(name: str) -> None:
    ignored = ("http", "#")
    for target in re.findall(r"\]\(([^)]+)\)", _text(name)):
        if not target.startswith(ignored):
            assert ((ROOT / name).parent / target.partition("#")[0]).exists(), target
        if "#" in target and not target.startswith("http"):
            path, _, anchor = target.partition("#")
            text = ((ROOT / name).parent / path).read_text(encoding="utf-8") if path else _text(name)
            titles = re.findall(r"^##+ (.*)$", text, flags=re.MULTILINE)
            assert anchor in [re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles], target
    for span in _spans(name):
        if re.fullmatch(r"(src|tests|configs|scripts|docs)/[\w./-]+", span):
            assert (ROOT / span).exists() or (ROOT / "src/enlace" / span).exists(), span


@pytest.mark.parametrize("name", DOCUMENTS)
def test_every_command_of_a_document_exists(name: str) -> None:
    targets = re.findall(r"^([a-z-]+):", _text("Makefile"), flags=re.MULTILINE)
    usage = _text("scripts/remote.sh")
    stages = yaml.safe_load(_text("dvc.yaml"))["stages"]
    told = [part for text in [*_commands(name), *_spans(name)] for part in re.split(r" \\?\| | && ", text)]
    for words in [command.split() for command in told]:
        if words[0] == "make" and len(words) > 1 and "=" not in words[1]:
            assert words[1] in targets, words
        elif words[0] == "scripts/remote.sh" and len(words) > 1:
            assert re.search(rf"^  {re.escape(words[1])} ", usage, flags=re.MULTILINE), words
        elif words[:2] == ["dvc", "repro"]:
            assert {word for word in words[2:] if word[0] != "-"} <= stages.keys(), words
        elif words[0] == "enlace" and len(words) > 1:
            found, rest = get_command(app), words[1:]
            while hasattr(found, "commands") and rest:
                assert rest[0] in found.commands, words
                found, rest = found.commands[rest[0]], rest[1:]
            options = {option for param in found.params for option in param.opts}
            assert {word for word in rest if word.startswith("--")} <= options, words


def _enlace(*arguments: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "enlace.cli", *arguments]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=120, check=False)


def test_the_table_of_the_plan_is_what_the_command_prints() -> None:
    (written,) = re.findall(r"<!-- enlace plan -->\n(.*?)\n<!-- ", _text("docs/PLAN.md"), flags=re.DOTALL)
    assert written == plan.table(ROOT), "write it again with: enlace plan"


def test_the_formula_of_the_plan_gives_about_the_same() -> None:
    by_hand, command = _commands("docs/PLAN.md")
    out = subprocess.run(
        shlex.split(by_hand.replace("python3", sys.executable)), capture_output=True, text=True, check=True
    )
    parameters, tokens = map(int, out.stdout.split())
    told = _enlace(*shlex.split(command)[1:]).stdout
    said = [float(number) for number in re.findall(r"([\d.]+) M de", told)]
    assert 0.75 * parameters < said[0] < parameters
    assert 0.75 * tokens < said[1] < 1.1 * tokens


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--hardware", "rtx9000"), "no existe configs/hardware/rtx9000.yaml"),
        (("--hours", "0"), "--hours=0"),
        (("--hours", "mucho"), "tiene que ser un número"),
    ],
)
def test_a_plan_that_cannot_be(arguments: tuple[str, ...], says: str) -> None:
    result = _enlace("plan", *arguments)
    assert result.returncode != 0 and says in result.stderr and "Traceback" not in result.stderr


def test_a_plan_does_not_ask_that_the_present_model_fits(tmp_path: Path) -> None:
    """It is what says which one would."""
    shutil.copytree(ROOT / "configs", tmp_path / "configs")
    shutil.copy(ROOT / "configs/presets/grande-350m.yaml", tmp_path / "params.yaml")
    assert plan.table(tmp_path) == plan.table(ROOT)


def test_the_plan_says_what_was_measured_and_what_is_assumed() -> None:
    assert "supuesta, sin medir en la tarjeta" in _enlace("plan", "--hardware", "h200").stdout
    assert "medida: 0.33 TFLOP/s" in _enlace("plan", "--hardware", "cpu").stdout


@pytest.fixture
def project(tmp_path: Path) -> Path:
    clone = tmp_path / "enlace"
    clone_project(clone)
    for command in (["init", "-q", "-b", "main"], ["add", "-A"], ["commit", "-qm", "start"]):
        subprocess.run(["git", *command], cwd=clone, check=True, env=clean_environment(tmp_path))
    return clone


def _run(command: str, project: Path) -> str:
    if command.startswith("scripts/remote.sh"):
        # tests/scripts runs them against a server. What is not committed is not sent.
        command = f"git add -A; git commit -qm cambios; {command} --dry-run --host casa"
    environment = clean_environment(project.parent)
    result = subprocess.run(
        ["bash", "-c", command],
        cwd=project,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert result.returncode == 0, f"{command}\n{result.stdout[-3000:]}{result.stderr[-3000:]}"
    return result.stdout


@pytest.mark.skipif(shutil.which("dvc") is None, reason="dvc is not installed: pip install -e '.[pipeline]'")
def test_the_quick_commands_of_the_readmes_run(project: Path, model_config: ModelConfig, small_shards: Shards) -> None:
    model = Transformer(model_config, small_shards.manifest.vocab_size).initialise(torch.Generator().manual_seed(0))
    save_weights(project / "models/enlace", model, small_shards.tokenizer_path.read_bytes(), 256, {"run": "prueba"})
    (project / "models/MODEL_CARD.md").write_text("# Ficha de prueba\n", encoding="utf-8")
    (project / "data/shards").mkdir(parents=True)
    (project / "data/raw").mkdir()
    (project / "data/distill").mkdir()
    (project / "data/distill/conversations.jsonl").touch()
    (project / ".venv/bin").unlink()  # whether those shards are up to date is not what is tried here
    (project / ".venv/bin").mkdir()
    for path in (Path(sys.prefix) / "bin").iterdir():
        if path.name != "dvc":
            (project / ".venv/bin" / path.name).symlink_to(path)
    told = [command for name in IN_ENGLISH for command in _commands(name)]
    ours = [command for command in told if command.split()[0] in OURS]
    quick = [command for command in ours if command not in (*NEVER, *SLOW)]
    assert len(quick) > 10
    for command in quick:
        _run(command, project)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("dvc") is None, reason="dvc is not installed: pip install -e '.[pipeline]'")
def test_the_long_commands_of_the_readmes_run(project: Path) -> None:
    assert set(SLOW) | set(NEVER) <= {command for name in IN_ENGLISH for command in _commands(name)}
    for command in SLOW:
        _run(command, project)
    assert "Bits por byte" in _run("enlace summary", project)
    assert "train.lr" in _run("dvc exp show --csv", project)
