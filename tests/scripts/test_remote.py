"""scripts/remote.sh against a real sshd on loopback: the real pipeline, small, and connections cut in the middle."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import yaml

from enlace.config.dotenv import load_dotenv
from enlace.durable import locked
from tests.clone import clean_environment, clone_project, virtual_environment
from tests.conftest import ROOT
from tests.scripts.server import MISSING, Server

needs_server = pytest.mark.skipif(bool(MISSING), reason=f"missing: {', '.join(MISSING)}")
STEPS = 500
CHECKPOINT_EVERY = 20
SECRET = "sk-" + "muy-secreto" * 3  # so that this file does not hold it


class Home:
    """The person's computer: a clone of the project with its shards made, and remote.sh pointed at a server."""

    def __init__(self, project: Path, server: Server, folder: str) -> None:
        self.project, self.server = project, server
        self.there = server.folder / folder
        self.environment = clean_environment(server.folder) | {"REMOTE_HOST": "casa", "REMOTE_DIR": str(self.there)}
        self.environment["PATH"] = f"{server.folder}/client-bin:{self.environment['PATH']}"

    def run(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["scripts/remote.sh", *arguments],
            cwd=self.project,
            env=self.environment | environment,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )

    def does(self, *arguments: str, **environment: str) -> str:
        result = self.run(*arguments, **environment)
        assert result.returncode == 0, result.stdout + result.stderr + self.log()
        return result.stdout

    def fails(self, *arguments: str, says: str) -> None:
        result = self.run(*arguments)
        assert result.returncode in (1, 2) and says in result.stderr, (result.returncode, result.stdout, result.stderr)

    def install(self) -> None:
        """A virtual environment on the server, as `make setup` leaves it, out of this one."""
        virtual_environment(self.there / ".venv")

    def log(self) -> str:
        log = self.there / ".remote/train.log"
        return log.read_text(encoding="utf-8") if log.exists() else ""

    def wait_for(self, what: str, condition: object) -> None:
        for _ in range(4800):  # minutes, on a machine with other work
            if condition():  # type: ignore[operator]
                return
            time.sleep(0.05)
        raise AssertionError(f"{what}: {self.log()[-3000:]}")

    def steps_done(self) -> int:
        return sum(path.read_bytes().count(b"\n") for path in self.there.glob(".runs/*/log.jsonl"))

    def wait_for_ends(self, count: int) -> None:
        self.wait_for("end", lambda: self.log().count("acaba con estado") == count)

    def processes(self) -> list[int]:
        """Of the training on the server."""
        found = []
        for path in Path("/proc").glob("[0-9]*/cwd"):
            with suppress(OSError, RuntimeError):
                if path.resolve(strict=True) == self.there and int(path.parent.name) != os.getpid():
                    found.append(int(path.parent.name))
        return found

    def kill_all(self) -> None:
        """As a power cut: every process of the training at once, without a word."""
        for pid in self.processes():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server(tmp_path_factory.mktemp("srv"))
    # The machine's own table of scheduled jobs is not the tests' to change.
    table = server.folder / "crontab"
    server.tool("crontab", f'if [[ $1 == -l ]]; then cat "{table}" 2>/dev/null; else cat > "{table}"; fi')
    yield server
    server.close()


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The project, set to a small run on own text, its shards made by the pipeline and all committed."""
    folder = tmp_path_factory.mktemp("home")
    project = folder / "mi enlace"
    changed = {"steps": str(STEPS), "checkpoint_every": str(CHECKPOINT_EVERY), "val_every": "200"}
    clone_project(project, changed)
    # One thread: two that wait for each other on a busy machine take a hundred times as long.
    cpu = (project / "configs/hardware/cpu.yaml").read_text(encoding="utf-8")
    profile = re.sub(r"^threads: \d+", "threads: 1", cpu, flags=re.MULTILINE)
    profile = profile.replace("precision: auto", "precision: float32")
    (project / "configs/hardware/lento.yaml").write_text(profile, encoding="utf-8")
    environment = clean_environment(folder)
    for command in (
        ["git", "init", "-q", "-b", "main"],
        ["git", "add", "-A"],
        ["git", "commit", "-qm", "start"],
        ["dvc", "repro", "build-shards"],
        ["git", "add", "-A"],
        ["git", "commit", "-qm", "shards"],
    ):
        subprocess.run(command, cwd=project, check=True, env=environment, capture_output=True)
    (project / ".env").write_text(f"ANTHROPIC_API_KEY={SECRET}\n", encoding="utf-8")
    (project / ".env").chmod(0o600)
    return project


@pytest.fixture
def home(made: Path, server: Server, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Home]:
    project = tmp_path / "mi enlace"
    shutil.copytree(made, project, symlinks=True)
    home = Home(project, server, f"disco grande/{request.node.name}")
    server.proxy.cut(0, 0)
    yield home
    home.kill_all()


# --- without a server -------------------------------------------------------------------------------------------------


@pytest.fixture
def script(tmp_path: Path) -> Path:
    """remote.sh in a project with nothing else."""
    (tmp_path / "scripts").mkdir()
    return Path(shutil.copy(ROOT / "scripts/remote.sh", tmp_path / "scripts"))


def _dry(script: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("REMOTE_")}
    command = ["bash", str(script), *arguments, "--dry-run"]
    return subprocess.run(command, env=clean | environment, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((), "Uso: scripts/remote.sh ORDEN"),
        (("vuela",), "No hay orden «vuela»"),
        (("status", "--nada"), "No hay opción --nada"),
        (("status", "otra"), "Sobra «otra»"),
        (("status", "--host"), "--host necesita un valor"),
        (("train", "--host", "casa"), "Falta HW"),
        (("train", "HW=cpu", "S=a;id", "--host", "casa"), "«a;id» no es CLAVE=VALOR"),
        (("train", "HW=cpu", "GPUS=muchas", "--host", "casa"), "GPUS=muchas no es un número"),
    ],
)
def test_a_command_line_that_makes_no_sense(script: Path, arguments: tuple[str, ...], says: str) -> None:
    result = subprocess.run(["bash", str(script), *arguments], capture_output=True, text=True, check=False)
    assert result.returncode == 2
    assert says in result.stdout + result.stderr


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({}, "Pon REMOTE_HOST"),
        ({"REMOTE_HOST": "-oProxyCommand=id"}, "no es un servidor"),
        ({"REMOTE_HOST": "casa", "REMOTE_PORT": "x"}, "REMOTE_PORT"),
    ],
)
def test_a_server_that_cannot_be(script: Path, settings: dict[str, str], says: str) -> None:
    result = _dry(script, "status", **settings)
    assert result.returncode == 1 and says in result.stderr


def test_flags_win_over_the_environment_and_that_over_the_file(script: Path) -> None:
    (script.parents[1] / ".env").write_text("REMOTE_HOST=fichero\nexport REMOTE_DIR='una carpeta'\n", encoding="utf-8")
    assert "[en fichero] abre una terminal en una carpeta" in _dry(script, "shell").stdout
    assert "[en entorno]" in _dry(script, "shell", REMOTE_HOST="entorno").stdout
    assert "[en opción]" in _dry(script, "shell", "--host", "opción", REMOTE_HOST="entorno").stdout
    assert "Pon REMOTE_HOST" in _dry(script, "shell", REMOTE_HOST="").stderr, "an empty one of the caller wins too"


@pytest.mark.parametrize(
    "line",
    [
        "X=a b",
        "X=$(touch corrido)",
        "X=`id`",
        "X='a",
        'X="$HOME"',
        "X=a\\b",
        "X=~",
        "X={a,b}",
        "X=a;b",
        "X = 1",
        "x",
        "X=a\r",
        "X=b",
        "X=a=b==",
        "X=año",
        "X=b#c",
        "X=b # c",
        "X=#c",
        "X='a b' # d",
        'X="a\\"b"',
        "X='p$B'",
        "X=*[a]?^",
        "export\tX=b",
        "X=1\nX=2",
        "X=x\nX=",
        "X=ñ\u2028",
        'X="a!"',
    ],
)
def test_reads_a_settings_file_as_python_does(script: Path, line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from enlace import EnlaceError

    monkeypatch.delenv("REMOTE_DIR", raising=False)
    env = script.parents[1] / ".env"
    env.write_bytes(line.replace("X", "REMOTE_DIR").encode())
    result = _dry(script, "shell", REMOTE_HOST="casa")
    assert not (script.parents[1] / "corrido").exists()
    try:
        load_dotenv(env)
    except EnlaceError:
        assert result.returncode == 1 and ".env:1: " in result.stderr
        return
    value = os.environ.get("REMOTE_DIR") or "enlace"
    monkeypatch.delenv("REMOTE_DIR", raising=False)
    assert result.stdout == f"[en casa] abre una terminal en {value}\n"


def test_says_what_it_would_do_and_does_nothing(script: Path) -> None:
    out = _dry(script, "pull", REMOTE_HOST="casa", REMOTE_PORT="2222").stdout
    assert "\\ -p\\ 2222" in out and "casa:enlace/.remote/out/" in out
    assert not (script.parents[1] / ".remote").exists()


def test_a_push_sends_all_that_the_stages_of_the_server_read(script: Path) -> None:
    stages = yaml.safe_load((ROOT / "dvc.yaml").read_text(encoding="utf-8"))["stages"]
    made = {out for name, stage in stages.items() if name not in ("train", "eval") for out in stage["outs"]}
    read = {dep for name in ("train", "eval") for dep in stages[name]["deps"]}
    (needed,) = re.findall(r"^NEEDED=\((.*)\)$", script.read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert set(needed.split()) == made & read


# --- with one ---------------------------------------------------------------------------------------------------------


@needs_server
def test_the_whole_way_stopped_and_resumed(home: Home) -> None:
    home.fails("status", says="Haz antes: scripts/remote.sh setup")
    home.install()
    assert "Servidor listo" in home.does("setup", "HW=lento")
    home.fails("train", "HW=lento", says="El envío no está entero".lower())
    home.does("push")
    assert (home.there / "data/shards/manifest.json").is_file()
    with locked(home.there / ".remote/starting", "ocupado"):
        home.fails("train", "HW=lento", says="otra orden está empezando un entrenamiento")
    cut = 0
    for after in (7000, 9000, 9800):  # before the server has the whole command, or while it answers
        home.server.proxy.cut(1, after)
        home.run("train", "HW=lento")
        cut += home.server.proxy.was_cut
    assert cut > 0
    home.server.proxy.cut(0, 0)
    again = home.run("train", "HW=lento")
    assert again.returncode == 0 or "ya hay un entrenamiento en marcha" in again.stderr
    home.fails("train", "HW=lento", says="ya hay un entrenamiento en marcha")
    home.fails("push", says="se está entrenando")
    home.wait_for("steps", lambda: home.steps_done() > CHECKPOINT_EVERY)
    told = home.does("status")
    assert (
        re.search(rf"en marcha \(proceso \d+\): paso \d+ de {STEPS}", told)
        and "tokens/s" in told
        and "Quedan unos" in told
    )
    stopped = home.does("stop")
    step = int(re.search(r"guardado en el paso (\d+)", stopped)[1])  # type: ignore[index]
    assert "Nada en marcha" in stopped and step < STEPS
    assert "No ha acabado" in home.does("pull")
    (brought,) = home.project.glob(".runs/*/step-*")
    there = home.there / brought.relative_to(home.project)
    assert int(brought.name[5:]) == step and not list(home.project.glob("models/enlace"))
    assert "no está en marcha" in home.does("status")
    assert home.does("stop").strip() == "No hay ningún entrenamiento en marcha."
    assert there.parent.is_dir()

    home.does("train", "HW=lento")
    home.wait_for_ends(2)
    assert f"Continúo en el paso {step}" in home.does("logs") and "acaba con estado 0" in home.log()
    assert "Modelo y medidas" in home.does("pull")
    results = (
        "models/enlace/model.safetensors",
        "models/MODEL_CARD.md",
        "reports/metrics.json",
        "reports/informe.html",
    )
    for name in results:
        assert _sha256(home.project / name) == _sha256(home.there / name), name
    assert (
        "up to date"
        in subprocess.run(
            ["dvc", "status", "train", "eval"], cwd=home.project, env=home.environment, capture_output=True, text=True
        ).stdout
    )

    # What changed here since is not overwritten.
    metrics = home.project / "reports/metrics.json"
    metrics.write_text("{}", encoding="utf-8")
    home.fails("pull", says="reports/metrics.json")
    assert metrics.read_text(encoding="utf-8") == "{}"
    assert SECRET not in home.log() and not (home.there / ".env").exists()


@needs_server
def test_a_push_cut_anywhere_and_repeated(home: Home, server: Server) -> None:
    home.install()
    # Connections of a push: prepare, code, checkout, shards, note.
    for connection, after in ((1, 1000), (2, 6000), (4, 30_000), (5, 4000)):
        server.proxy.cut(connection, after)
        result = home.run("push")
        assert server.proxy.was_cut, (connection, after)
        assert result.returncode == 1 and "sigue donde estaba" in result.stderr, (connection, result.stderr)
        server.proxy.cut(0, 0)
        home.fails("train", "HW=lento", says="error: ")
        assert not (home.there / ".remote/pushed").exists(), "half of it is not taken for all"
    assert "Enviado" in home.does("push")
    sent = [path for path in (home.project / "data/shards").rglob("*") if path.is_file()]
    assert sent
    for path in sent:
        assert _sha256(path) == _sha256(home.there / path.relative_to(home.project))
    commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=home.project, capture_output=True, text=True, check=True)
    assert (home.there / ".remote/pushed").read_text() == commit.stdout
    assert not list(home.there.rglob(".rsync-partial"))


@needs_server
def test_what_is_not_committed_is_sent_only_when_told_and_secrets_only_by_name(home: Home) -> None:
    home.install()
    (home.project / "params.yaml").open("a").write("# probando\n")
    (home.project / "src/enlace/nuevo.py").write_text("X = 1\n", encoding="utf-8")
    before = subprocess.run(["git", "status", "--porcelain"], cwd=home.project, capture_output=True, check=True).stdout
    home.fails("push", says="push --dirty")
    home.does("push", "--dirty")
    assert (home.there / "params.yaml").read_text().endswith("# probando\n")
    assert (home.there / "src/enlace/nuevo.py").is_file()
    after = subprocess.run(["git", "status", "--porcelain"], cwd=home.project, capture_output=True, check=True).stdout
    assert after == before, "nothing here changed"
    for path in home.there.rglob("*"):
        if path.is_file() and ".venv" not in path.parts:
            assert SECRET.encode() not in path.read_bytes(), path
    # Edited there since: kept aside, not lost.
    (home.there / "params.yaml").open("a").write("# allí\n")
    directly = {"REMOTE_HOST": "directa", "REMOTE_PORT": str(home.server.port)}
    home.does("push", "--dirty", **directly)
    stash = subprocess.run(["git", "stash", "show", "-p"], cwd=home.there, capture_output=True, text=True, check=True)
    assert "+# allí" in stash.stdout and "# allí" not in (home.there / "params.yaml").read_text()

    home.does("push-env", **directly)
    sent = home.there / ".env"
    assert sent.read_bytes() == (home.project / ".env").read_bytes() and sent.stat().st_mode & 0o777 == 0o600


@pytest.mark.slow
@needs_server
def test_a_training_outlives_its_connection_and_a_power_cut(home: Home, server: Server) -> None:
    """Without tmux, started by a connection that is cut; then killed outright, and started as cron does at boot."""
    home.install()
    home.does("push")
    server.tool("tmux", "exit 127")
    server.proxy.cut(1, 9000)
    home.run("train", "HW=lento", "--on-boot")
    server.proxy.cut(0, 0)
    again = home.run("train", "HW=lento", "--on-boot")
    assert again.returncode == 0 or "ya hay un entrenamiento" in again.stderr, again.stderr
    table = server.folder / "crontab"
    assert table.read_text().count(str(home.there)) == 2, "one line, that names the folder twice"
    home.wait_for("steps", lambda: home.steps_done() > 2 * CHECKPOINT_EVERY)
    home.kill_all()
    assert "parado" in home.does("status")
    (server.folder / "bin/tmux").unlink()
    line = table.read_text().removeprefix("@reboot ").strip()
    cron = {
        "PATH": f"{server.folder}/bin:/usr/bin:/bin",
        "HOME": str(server.folder / "home"),
        "DVC_SITE_CACHE_DIR": str(server.folder / "site"),
    }
    subprocess.run(["/bin/sh", "-c", line], env=cron, check=True, timeout=120)
    assert re.search(r"Continúo en el paso \d+", home.log()) and "acaba con estado 0" in home.log()
    assert str(home.there) not in table.read_text(), "done: the next boot starts nothing"

    # The same bits as a training that nobody stopped.
    alone = home.environment | {"PYTHONPATH": "src"}
    for command in (["enlace", "config", "hardware", "lento"], ["python", "-m", "enlace.stages.train"]):
        subprocess.run(command, cwd=home.project, env=alone, check=True, capture_output=True)
    model = "models/enlace/model.safetensors"
    assert _sha256(home.project / model) == _sha256(home.there / model)


@pytest.mark.slow
@needs_server
def test_two_processes_train_stop_and_go_on(home: Home) -> None:
    home.install()
    home.does("push")
    home.does("train", "HW=lento", "GPUS=2")
    home.wait_for("steps", lambda: home.steps_done() > 3)
    stopped = home.does("stop")
    step = int(re.search(r"guardado en el paso (\d+)", stopped)[1])  # type: ignore[index]
    assert 3 <= step < STEPS and "2 × cpu" in home.log()
    assert not home.processes(), "none of them is left"
    home.does("train", "HW=lento", f"S=train.steps={step + 3} train.decay_steps=2 train.checkpoint_every=1")
    home.wait_for_ends(2)
    assert "acaba con estado 0" in home.log(), "with one process again"


@pytest.mark.slow
@needs_server
def test_other_values_run_as_an_experiment(home: Home) -> None:
    home.install()
    home.does("push")
    home.does("train", "HW=lento", "S=train.steps=24 train.lr=0.005")
    home.wait_for_ends(1)
    assert "acaba con estado 0" in home.log()
    home.does("pull")
    params = (home.project / "params.yaml").read_text(encoding="utf-8")
    assert "steps: 24" in params and "lr: 0.005" in params and "hardware: lento" in params
    assert (home.project / "models/enlace/model.safetensors").is_file()


@pytest.mark.slow
@needs_server
def test_a_pull_cut_in_the_middle_and_repeated(home: Home, server: Server) -> None:
    home.install()
    home.does("push")
    # A finished training, as its files are: what pull does not look into needs no training.
    run = home.there / ".runs/0123456789abcdef"
    (run / "step-00000040").mkdir(parents=True)
    (run / ".lock").write_text("1")
    (run / "log.jsonl").write_text("".join(f'{{"step": {i}, "loss": 2.0}}\n' for i in range(40)))
    (run / "step-00000040/state.pt").write_bytes(os.urandom(3_000_000))
    (run / "step-00000040/manifest.json").write_text("{}")
    model = home.there / "models/enlace/model.safetensors"
    model.parent.mkdir(parents=True)
    model.write_bytes(os.urandom(2_000_000))
    (home.there / "params.yaml").open("a").write("# allí\n")
    (home.there / ".remote/done").touch()
    home.fails("push", says="sin traer")

    for connection, after in ((1, 5000), (2, 400_000), (2, 1_500_000)):
        server.proxy.cut(connection, after)
        result = home.run("pull")
        assert server.proxy.was_cut and result.returncode == 1 and "sigue donde estaba" in result.stderr, result.stderr
        assert not (home.project / "models/enlace").exists() and not (home.project / ".runs").exists()
    assert list((home.project / ".remote/in").rglob(".rsync-partial/*")), "what came is kept, to go on from it"
    server.proxy.cut(0, 0)
    home.does("pull")
    for name in (".runs/0123456789abcdef/step-00000040/state.pt", "models/enlace/model.safetensors", "params.yaml"):
        assert _sha256(home.project / name) == _sha256(home.there / name)
    assert (home.project / ".runs/0123456789abcdef/log.jsonl").read_bytes() == (run / "log.jsonl").read_bytes()

    home.does("push", "--dirty")
    assert "No ha acabado" in home.does("pull"), "what was trained before the push is old"
    (home.there / ".remote/done").touch()

    # A checkpoint that is further on here stays, and so does a model that was trained here since.
    (home.project / ".runs/0123456789abcdef/step-00000040").rename(
        home.project / ".runs/0123456789abcdef/step-00000060"
    )
    (home.project / "models/enlace/model.safetensors").write_bytes(b"otro")
    model.write_bytes(b"del servidor")
    home.fails("pull", says="models/enlace/model.safetensors")
    assert (home.project / "models/enlace/model.safetensors").read_bytes() == b"otro"
    assert [path.name for path in (home.project / ".runs/0123456789abcdef").glob("step-*")] == ["step-00000060"]
