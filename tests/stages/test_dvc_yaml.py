"""dvc.yaml tells the truth: what a stage imports and reads is what it is rerun for."""

from __future__ import annotations

import ast
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from enlace.config import yaml12
from enlace.config.load import flatten, load_config
from enlace.config.schema import Config
from enlace.stages import build_shards
from enlace.train.family import SOURCES
from tests.stages.closure import ROOT, import_closure

STAGES: dict[str, dict[str, Any]] = yaml12.load(ROOT / "dvc.yaml")["stages"]
NAMED = {"hardware": "hardware", "model": "model", "corpus": "data", "distill": "distill"}
PARAM_OF = {"distill": "teacher"}
# The folder of the ledger's job and the name on a message: neither is read by anything that decides an output.
NAMES_READ = {"layers"}


def _module(stage: str) -> str:
    return stage.replace("-", "_")


def _outs(stage: str) -> list[str]:
    entries = [*STAGES[stage].get("outs", []), *STAGES[stage].get("metrics", []), *STAGES[stage].get("plots", [])]
    return [entry if isinstance(entry, str) else next(iter(entry)) for entry in entries]


def _config_reads(stage: str) -> set[str]:
    """Dotted keys of the configuration that the stage's file reads or hands over, such as "train" or "data.shards"."""
    tree = ast.parse((ROOT / f"src/enlace/stages/{_module(stage)}.py").read_text(encoding="utf-8"))
    inner = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    reads = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and node.id == "config" and isinstance(node.ctx, ast.Load):
            assert id(node) in inner, f"{stage} hands over the whole configuration: what it reads cannot be seen"
        if isinstance(node, ast.Attribute) and id(node) not in inner:
            names: list[str] = []
            while isinstance(node, ast.Attribute):
                names.append(node.attr)
                node = node.value
            if isinstance(node, ast.Name) and node.id == "config":
                reads.add(".".join(reversed(names)))
    return {_known(read) for read in reads}


def _known(read: str) -> str:
    """The part of a dotted name that is a key (the rest is a method or a derived property)."""
    model: Any = Config
    kept = []
    for part in read.split("."):
        if not hasattr(model, "model_fields") or part not in model.model_fields:
            break
        kept.append(part)
        model = model.model_fields[part].annotation
    return ".".join(kept)


@pytest.mark.parametrize("stage", STAGES)
def test_the_source_deps_are_exactly_what_the_stage_imports(stage: str) -> None:
    listed = {dep for dep in STAGES[stage]["deps"] if dep.endswith(".py")}
    assert listed == import_closure(f"enlace.stages.{_module(stage)}")


@pytest.mark.parametrize("stage", STAGES)
def test_every_value_that_a_stage_reads_is_tracked_and_nothing_else(stage: str) -> None:
    tracked = set(STAGES[stage].get("params", []))
    reads = _config_reads(stage)
    used = set()
    for read in reads:
        section = read.split(".")[0]
        if section in NAMES_READ:
            continue
        if section in NAMED:
            name = PARAM_OF.get(section, section)
            assert f"configs/{NAMED[section]}/${{{name}}}.yaml" in STAGES[stage]["deps"], read
            assert name in tracked, read
            used.add(name)
        else:
            covering = {param for param in tracked if read == param or read.startswith(param + ".")}
            assert covering, f"{stage} reads {read}, which dvc.yaml does not track"
            used |= covering
    assert used == tracked, f"{stage} is rerun for values that it does not read"


def test_every_value_of_params_is_tracked_by_some_stage() -> None:
    tracked = {param for stage in STAGES.values() for param in stage.get("params", [])}
    for key in flatten(load_config(ROOT)):
        section = key.split(".")[0]
        if section in ("layers", "agent"):  # how a finished model is talked to
            continue
        name = PARAM_OF.get(section, section)
        assert name in tracked or any(key == param or key.startswith(param + ".") for param in tracked), key


def test_the_fingerprint_of_a_run_covers_the_training_source() -> None:
    hashed = {f"src/enlace/{source}" for source in SOURCES}
    listed = {dep for dep in STAGES["train"]["deps"] if dep.endswith(".py")}
    after = {"stages/train.py", "export/weights.py", "train/finished.py", "train/log.py"}
    storing = {"train/checkpoint.py", "train/family.py", "train/stopping.py"}
    showing = {"train/progress.py"}
    hardware = {"train/backends.py", "train/launch.py"}  # an unfinished run may move to another
    assert listed - hashed == {f"src/enlace/{source}" for source in after | storing | showing | hardware}
    assert hashed <= listed


def test_the_texts_that_shards_are_made_of_or_kept_from_are_dependencies() -> None:
    """Other evaluation sets are other shards, under plain `dvc repro` too."""
    read = {str(path) for path in (build_shards.RAW, build_shards.EVALS, build_shards.CONVERSATIONS)}
    assert read <= set(STAGES["build-shards"]["deps"])


def test_nothing_switches_the_run_cache_off() -> None:
    text = (ROOT / "dvc.yaml").read_text(encoding="utf-8")
    without_comments = re.sub(r"#.*", "", text)
    assert not re.search(r"persist|frozen|always_changed", without_comments)
    for stage in STAGES.values():
        assert all(isinstance(out, str) for out in stage.get("outs", [])), "an uncached out switches the run-cache off"


def test_every_output_is_git_ignored_and_no_tracked_file_lies_inside_one() -> None:
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    for stage in STAGES:
        cached = set(STAGES[stage].get("outs", []))
        for out in _outs(stage):
            ignored = subprocess.run(["git", "check-ignore", "-q", out], cwd=ROOT, check=False).returncode == 0
            assert ignored == (out in cached), out
            if out in cached:
                assert not [path for path in tracked if path == out or path.startswith(out + "/")]


def test_what_is_paid_or_takes_days_is_no_output() -> None:
    outs = [Path(out) for stage in STAGES for out in _outs(stage)]
    for kept in (Path("data/ledger"), Path(".runs")):
        assert not any(kept.is_relative_to(out) or out.is_relative_to(kept) for out in outs)
        assert subprocess.run(["git", "check-ignore", "-q", f"{kept}/x"], cwd=ROOT, check=False).returncode == 0


def test_layers_point_one_way() -> None:
    """The library does not know the stages, the commands or dvc; config knows nothing; each room keeps its bounds."""
    forbidden = {
        "config": r"enlace\.(?!config\b)",
        "data": r"enlace\.(stages|cli|train|eval|agent|export|model)|torch(?!.*loader)",
        "data/distill": r"torch|enlace\.(stages|cli|train|eval|agent|model)",
        "model": r"enlace\.(stages|cli|train|eval|agent|data|export)",
        "train": r"enlace\.(stages|cli|eval|agent|export)",
        "agent": r"enlace\.(stages|cli|train|data\.distill)",
    }
    for room, pattern in forbidden.items():
        for path in (ROOT / "src/enlace" / room).rglob("*.py"):
            if path.name == "loader.py" and room == "data":
                continue  # the one file of data that makes tensors
            for line in path.read_text(encoding="utf-8").splitlines():
                if found := re.match(r"\s*(?:from|import) (\S+)", line):
                    assert not re.match(pattern, found[1]), f"{path}: {line}"
    for path in (ROOT / "src/enlace").rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        assert not re.search(r"^\s*(?:from|import) dvc", text, re.MULTILINE), path
        assert not re.search(r"^(?:from|import) anthropic", text, re.MULTILINE), path
