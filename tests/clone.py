"""A clone of the project as it stands here, set to a tiny run on own text, for tests that drive its commands."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from tests.conftest import ROOT, sentences
from tests.stages.test_pipeline import MODEL, SMALL


def clone_project(clone: Path, changes: Mapping[str, str] | None = None) -> None:
    """Make `clone`: the files that git knows or would, other values in params.yaml, 250 texts; no repository yet."""
    listed = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    for name in subprocess.run(listed, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines():
        if (ROOT / name).is_file() and not name.startswith(("reports/", "dvc.lock")):
            (clone / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, clone / name)
    (clone / "configs/model/prueba.yaml").write_text(MODEL, encoding="utf-8")
    params = (clone / "params.yaml").read_text(encoding="utf-8")
    for key, value in (SMALL | dict(changes or {})).items():
        params, n = re.subn(rf"^( *{key}:) \S+", rf"\1 {value}", params, flags=re.MULTILINE)
        assert n == 1, key
    (clone / "params.yaml").write_text(params, encoding="utf-8")
    (clone / "data/propio").mkdir(parents=True)
    for i, sentence in enumerate(sentences()):
        (clone / f"data/propio/{i:03}.txt").write_text(f"{sentence} {sentence.upper()}", encoding="utf-8")
    virtual_environment(clone / ".venv")


def virtual_environment(folder: Path) -> None:
    """What `make setup` leaves, out of the environment that runs the tests."""
    folder.mkdir(parents=True)
    for path in Path(sys.prefix).iterdir():
        if path.name != ".instalado":
            (folder / path.name).symlink_to(path)
    (folder / ".instalado").touch()
    os.utime(folder / ".instalado", (2**31, 2**31))  # newer than any pyproject.toml


def clean_environment(folder: Path) -> dict[str, str]:
    """Of a process that sees nothing of this machine's own dvc, git and project; its home is in `folder`."""
    (folder / "home").mkdir(exist_ok=True)
    dropped = ("DVC_", "XDG_", "REMOTE_", "LEDGER_", "RUNS_", "GIT_", "MAKE", "MFLAGS")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(dropped)}
    who = {f"GIT_{role}_{what}": "prueba" for role in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return environment | who | {"HOME": str(folder / "home"), "DVC_SITE_CACHE_DIR": str(folder / "site"), "PATH": path}
