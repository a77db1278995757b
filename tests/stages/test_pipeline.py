"""The real pipeline, small: `dvc repro` from end to end in a clone of its own, offline, on the user's own text."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.conftest import ROOT, sentences

pytestmark = pytest.mark.skipif(
    shutil.which("dvc") is None, reason="dvc is not installed: pip install -e '.[pipeline]'"
)

MODEL = """
d_model: 32
n_layers: 2
n_heads: 2
n_kv_heads: 1
intermediate_size: 48
rope_theta: 10000
rms_norm_eps: 1e-6
"""
SMALL = {
    "model": "prueba",
    "corpus": "propio",
    "vocab_size": "400",
    "val_fraction": "0.2",
    "min_chars": "20",
    "repetition": "null",  # the texts are sentences made of the same few words
    "near_duplicates": "null",
    "seq_len": "256",
    "batch_tokens": "1024",
    "steps": "24",
    "warmup_steps": "4",
    "decay_steps": "10",
    "checkpoint_every": "4",
    "val_every": "12",
    "max_pairs": "2",
    "max_conversations": "6",
    "max_unanswerable": "2",
    "samples": "2",
    "max_new_tokens": "4",
}


@pytest.fixture
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Of a process that sees nothing of this machine's own dvc, git and project."""
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("DVC_SITE_CACHE_DIR", str(tmp_path / "site"))
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    for name in ("DVC_ROOT", "LEDGER_DIR", "RUNS_DIR", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name in ("GIT_AUTHOR_NAME", "GIT_COMMITTER_NAME"):
        monkeypatch.setenv(name, "Prueba")
    for name in ("GIT_AUTHOR_EMAIL", "GIT_COMMITTER_EMAIL"):
        monkeypatch.setenv(name, "prueba@example.org")
    return dict(os.environ)


@pytest.fixture
def clone(tmp_path: Path, environment: dict[str, str]) -> Path:
    """The project as it stands here, in a repository of its own, set to a tiny run on a folder of own text."""
    clone = tmp_path / "enlace"
    listed = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    files = subprocess.run(listed, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    for name in files:
        if (ROOT / name).is_file() and not name.startswith(("reports/", "dvc.lock")):
            (clone / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, clone / name)
    (clone / "configs/model/prueba.yaml").write_text(MODEL, encoding="utf-8")
    params = (clone / "params.yaml").read_text(encoding="utf-8")
    for key, value in SMALL.items():
        params, n = re.subn(rf"^( *{key}:) \S+", rf"\1 {value}", params, flags=re.MULTILINE)
        assert n == 1, key
    (clone / "params.yaml").write_text(params, encoding="utf-8")
    own = clone / "data/propio"
    own.mkdir(parents=True)
    for i, sentence in enumerate(sentences()):
        (own / f"{i:03}.txt").write_text(f"{sentence} {sentence.upper()}", encoding="utf-8")
    for command in (["init", "-q", "-b", "main"], ["add", "-A"], ["commit", "-qm", "start"]):
        subprocess.run(["git", *command], cwd=clone, check=True, env=environment)
    return clone


def _dvc(clone: Path, *arguments: str) -> str:
    result = subprocess.run(["dvc", *arguments], cwd=clone, capture_output=True, text=True, timeout=300, check=False)
    assert result.returncode == 0, result.stdout[-3000:] + result.stderr[-3000:]
    return result.stdout


def _digests(clone: Path, *folders: str) -> dict[str, str]:
    files = [path for folder in folders for path in sorted((clone / folder).rglob("*")) if path.is_file()]
    return {str(path.relative_to(clone)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def test_repro_runs_everything_once_and_an_experiment_runs_what_it_changes(clone: Path) -> None:
    out = _dvc(clone, "repro")
    assert "Running stage 'eval'" in out
    made = _digests(clone, "data/shards", "models/enlace")
    assert "models/enlace/model.safetensors" in made and "data/shards/manifest.json" in made
    metrics = json.loads((clone / "reports/metrics.json").read_bytes())
    assert 0 < metrics["bits_per_byte"]["propio"] < 12
    assert 0 <= metrics["pairs"]["accuracy"] <= 1 and metrics["choices"] == {}, "own text has no titles"
    assert "Gramática: pares mínimos" in (clone / "reports/informe.html").read_text(encoding="utf-8")
    plots = json.loads(_dvc(clone, "plots", "show", "--json"))
    assert not plots.get("errors") and {"bits por byte", "pares mínimos", "pérdida"} <= set(plots["data"])
    assert "propio" in (clone / "models/MODEL_CARD.md").read_text(encoding="utf-8")
    kept = sorted(path.name for path in clone.glob(".runs/*/step-*"))
    assert kept == ["step-00000014", "step-00000024"], "a finished run leaves its last checkpoint of each phase"
    assert "up to date" in _dvc(clone, "repro")
    # Nothing that git would take by mistake, and the whole run in a commit.
    status = subprocess.run(["git", "status", "--porcelain"], cwd=clone, capture_output=True, text=True, check=True)
    assert {line.split()[-1] for line in status.stdout.splitlines()} == {"dvc.lock", "reports/"}
    subprocess.run("git add dvc.lock reports && git commit -qm run", shell=True, cwd=clone, check=True)

    out = _dvc(clone, "exp", "run", "-S", "train.lr=1e-3")
    assert len(list(clone.glob(".runs/*/step-*"))) == 2, "those of this run: the one before is forgotten"
    assert "Running stage 'train'" in out and "Running stage 'build-shards'" not in out
    assert _digests(clone, "data/shards") == {k: v for k, v in made.items() if k.startswith("data/shards")}
    diff = json.loads(_dvc(clone, "metrics", "diff", "--json"))
    assert diff["reports/metrics.json" if "reports/metrics.json" in diff else "diff"]

    # Own text that changed is seen by make, and read again also where git-ignored text is not: in a temporary clone.
    corpus = ["enlace", "corpus"]
    assert subprocess.run(corpus, cwd=clone, check=False).returncode == 0
    (clone / "data/propio/nuevo.txt").write_text("El gato duerme al sol de la tarde, en el patio.", encoding="utf-8")
    assert subprocess.run(corpus, cwd=clone, check=False).returncode == 1
    assert "Running stage 'fetch-corpus'" in _dvc(clone, "exp", "run", "--temp", "-f", "-s", "fetch-corpus")
    (clone / "data/propio/nuevo.txt").unlink()
    assert subprocess.run(corpus, cwd=clone, check=False).returncode == 0

    # The old values come out of the run-cache: nothing is trained again, and the bytes are those of before.
    out = _dvc(clone, "exp", "run", "-S", "train.lr=" + _param(clone, "lr"))
    assert "is cached" in out
    assert _digests(clone, "models/enlace") == {k: v for k, v in made.items() if k.startswith("models/enlace")}


def _param(clone: Path, key: str) -> str:
    text = subprocess.run(
        ["git", "show", "HEAD:params.yaml"], cwd=clone, capture_output=True, text=True, check=True
    ).stdout
    found = re.search(rf"^ *{key}: (\S+)", text, re.MULTILINE)
    assert found
    return found[1]


@pytest.mark.slow
def test_queue_show_plots_and_a_fresh_clone(clone: Path) -> None:
    _dvc(clone, "repro")
    subprocess.run("git add dvc.lock reports && git commit -qm run", shell=True, cwd=clone, check=True)
    made = _digests(clone, "data/shards", "models/enlace")
    _dvc(clone, "exp", "run", "--queue", "-S", "train.lr=1e-3,2e-3")
    _dvc(clone, "queue", "start", "-j", "1")
    deadline = time.monotonic() + 240
    while "Running" in (status := _dvc(clone, "queue", "status")) or "Queued" in status:
        assert time.monotonic() < deadline, status
        time.sleep(2)
    assert status.count("Success") == 2, status
    table = _dvc(clone, "exp", "show", "--csv")
    assert "0.001" in table and "0.002" in table
    _dvc(clone, "plots", "show", "-o", "pagina")
    assert (clone / "pagina/index.html").is_file()

    other = clone.with_name("otra")
    subprocess.run(["git", "clone", "-q", str(clone), str(other)], check=True)
    shutil.copytree(clone / "data/propio", other / "data/propio")
    _dvc(other, "repro")
    assert _digests(other, "data/shards", "models/enlace") == made
    diff = subprocess.run(["git", "status", "--porcelain"], cwd=other, capture_output=True, text=True, check=True)
    assert diff.stdout == "", "dvc.lock, metrics and pictures come out the same"


def _train(clone: Path) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": "src"}
    command = [sys.executable, "-m", "enlace.stages.train"]
    return subprocess.Popen(
        command, cwd=clone, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_cut_training_stage_goes_on_and_exports_the_same_bytes(clone: Path, number: signal.Signals) -> None:
    _dvc(clone, "repro", "build-shards")
    whole = _train(clone)
    out, _ = whole.communicate(timeout=120)
    assert whole.returncode == 0, out
    made = _digests(clone, "models/enlace", "reports")

    # DVC could not store the model (a kill, a full disk) and deletes it: it is exported again, not trained again.
    shutil.rmtree(clone / "models/enlace")
    twice = _train(clone)
    out, _ = twice.communicate(timeout=60)
    assert twice.returncode == 0 and "Continúo en el paso 24 de 24" in out, out
    assert _digests(clone, "models/enlace", "reports") == made
    shutil.rmtree(clone / "models/enlace")
    shutil.rmtree(clone / ".runs")

    cut = _train(clone)
    while not (checkpoints := list(clone.glob(".runs/*/step-*8"))) and cut.poll() is None:
        time.sleep(0.002)
    cut.send_signal(number)
    out, _ = cut.communicate(timeout=60)
    assert checkpoints and cut.returncode == (-number if number == signal.SIGKILL else 128 + number), out
    if number == signal.SIGTERM:
        assert "repite el mismo comando" in out
    assert not (clone / "models/enlace").exists(), "nothing half-made is left where a model should be"

    again = _train(clone)
    out, _ = again.communicate(timeout=120)
    assert again.returncode == 0 and "Continúo en el paso" in out, out
    assert _digests(clone, "models/enlace", "reports") == made
    assert len(list(clone.glob(".runs/*/step-*"))) == 2, "until another run begins"
