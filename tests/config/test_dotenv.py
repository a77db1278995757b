from __future__ import annotations

import os
import string
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from enlace import EnlaceError
from enlace.config.dotenv import load_dotenv


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("A", "B", "C", "D"):
        monkeypatch.delenv(name, raising=False)


def _load(tmp_path: Path, text: str) -> list[str]:
    path = tmp_path / ".env"
    path.write_bytes(text.encode())
    return load_dotenv(path)


def test_sets_what_is_missing_and_returns_names_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("B", "")
    names = _load(tmp_path, "# comentario\n\nA=uno # nota\nexport C='dos tres'\nB=pierde\nD=\n")
    assert names == ["A", "C"]
    assert (os.environ["A"], os.environ["C"], os.environ["B"]) == ("uno", "dos tres", "")
    assert "D" not in os.environ


def test_no_file_is_no_problem(tmp_path: Path) -> None:
    assert load_dotenv(tmp_path / "nada") == []


@pytest.mark.parametrize(
    "line", ["A=$HOME", "A=a b", 'A="x$y"', "A=`id`", "A='sin cerrar", "A=x;y", "A=~", "A=(1)", "A=a\\b", "A=x\r"]
)
def test_what_bash_would_read_otherwise_is_refused_without_showing_it(tmp_path: Path, line: str) -> None:
    with pytest.raises(EnlaceError) as error:
        _load(tmp_path, f"B=bien\n{line}\n")
    assert ".env:2" in str(error.value) and " A " in str(error.value)
    assert line.removeprefix("A=").strip() not in str(error.value)
    assert "B" not in os.environ, "nothing is set from a file with a bad line"


@pytest.mark.parametrize("line", ["A = 1", "1A=2", "solo texto", "A"])
def test_what_is_no_assignment_is_refused(tmp_path: Path, line: str) -> None:
    with pytest.raises(EnlaceError, match=r"\.env:1"):
        _load(tmp_path, line)


@settings(max_examples=60, deadline=None)
@given(
    st.text(alphabet=string.printable + "ñ«€", max_size=12), st.sampled_from(["A={}", "export A='{}'", 'A="{}" # x'])
)
def test_bash_reads_every_accepted_line_the_same(
    tmp_path_factory: pytest.TempPathFactory, value: str, form: str
) -> None:
    path = tmp_path_factory.mktemp("env") / ".env"
    path.write_bytes((form.format(value) + "\n").encode())
    os.environ.pop("A", None)
    try:
        load_dotenv(path)
    except EnlaceError:
        return
    finally:
        got = os.environ.pop("A", "")
    script = 'set -a; source "$1"; printf %s "${A-}"'
    out = subprocess.run(["bash", "-c", script, "-", str(path)], capture_output=True, check=True)
    assert out.stdout.decode() == got


def test_a_temporary_experiment_reads_that_of_the_main_checkout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    main, clone = tmp_path / "main", tmp_path / "clone"
    main.mkdir()
    clone.mkdir()
    (main / ".env").write_text("A=principal\n", encoding="utf-8")
    monkeypatch.chdir(clone)
    monkeypatch.delenv("DVC_ROOT", raising=False)
    assert load_dotenv() == []
    monkeypatch.setenv("DVC_ROOT", str(main))
    assert load_dotenv(tmp_path / "nada") == []
    assert load_dotenv() == ["A"]
    monkeypatch.delenv("A")
    (clone / ".env").write_text("B=propio\n", encoding="utf-8")
    assert load_dotenv() == ["B"]
