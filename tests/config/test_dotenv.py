from __future__ import annotations

import ast
import os
import string
import subprocess
from pathlib import Path

import dotenv
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from enlace import EnlaceError
from enlace.config.dotenv import load_dotenv
from tests.conftest import ROOT


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("A", "B", "C", "D"):
        monkeypatch.delenv(name, raising=False)


def _load(tmp_path: Path, text: str) -> list[str]:
    path = tmp_path / ".env"
    path.write_bytes(text.encode())
    path.chmod(0o600)
    return load_dotenv(path)


def _as_bash_reads(path: Path, *names: str) -> list[str]:
    script = 'cd "$2"; set -a; source "$1"; shift 2; for name; do printf "%s\\0" "${!name-}"; done'
    command = ["bash", "--norc", "-c", script, "-", str(path), str(path.parent), *names]
    out = subprocess.run(
        command, capture_output=True, check=True, env={"PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8"}
    )
    assert not out.stderr
    return out.stdout.decode().split("\0")[:-1]


def test_sets_what_is_missing_and_returns_names_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("B", "")
    names = _load(tmp_path, "# comentario\n\nA=uno # nota\nexport C='dos tres'\nB=pierde\nD=\n")
    assert names == ["A", "C"]
    assert (os.environ["A"], os.environ["C"], os.environ["B"]) == ("uno", "dos tres", "")
    assert "D" not in os.environ


def test_the_projects_file_is_found_from_a_folder_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DVC_ROOT", raising=False)
    (tmp_path / "params.yaml").touch()
    (tmp_path / "src/x").mkdir(parents=True)
    (tmp_path / ".env").write_text("A=uno\n")
    (tmp_path / ".env").chmod(0o600)
    monkeypatch.chdir(tmp_path / "src/x")
    assert load_dotenv() == ["A"]


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


@pytest.mark.parametrize(
    ("line", "value"),
    [
        ("A=b", "b"),
        ("export A=b", "b"),
        ("export\tA=b", "b"),
        ("  A=b  ", "b"),
        ("A=b=c==", "b=c=="),
        ("A=año", "año"),
        ("A=http://x/y?z=1#frag", "http://x/y?z=1#frag"),
        ("A=b#c", "b#c"),
        ("A=b #c", "b"),
        ("A=#c", "#c"),
        ("A= #c", ""),
        ("A='b # c' # d", "b # c"),
        ('A="b # c" # d', "b # c"),
        ('A="b\\"c"', 'b"c'),
        ("A='p$B'", "p$B"),
        ("A='p${B}'", "p${B}"),
        ("export A=*[a]?", "*[a]?"),
        ("A=1\nA=2", "2"),
        ("A=x\nA=", ""),
    ],
)
def test_accepted_lines_mean_the_same_in_bash(tmp_path: Path, line: str, value: str) -> None:
    assert _load(tmp_path, line) == (["A"] if value else [])
    assert os.environ.get("A", "") == value
    assert _as_bash_reads(tmp_path / ".env", "A") == [value]


@pytest.mark.parametrize(
    "line",
    [
        "A = b", "A= b", "A=b c", "A=p$B", 'A="p$B"', "A=p${B}", "A=$(id)", "A=`id`", 'A="a\\nb"', "A=a\\nb",
        "A='b\\'c'", "A='b'c", 'A="l1\nl2"', "A=a&b;c", "A=a(b)", "A=~/x", "A=a:~/x", "A={a,b}", "\ufeffA=b", "A=b\r",
        "export A=b B=c", "A-B=c", "A.B=c", "1A=c", "A+=2", "hola", "A='sin cerrar", "A='a\0b'", "A=\xa0\t\xa0", "_=x",
        "UID=5", "RANDOM=4", "BASH_ENV=x", "OPTIND=x", "PIPESTATUS=1", "\r",
    ],
)  # fmt: skip
def test_refused_lines_name_file_and_line(tmp_path: Path, line: str) -> None:
    with pytest.raises(EnlaceError, match=r"\.env:1: "):
        _load(tmp_path, line)
    assert "A" not in os.environ


def test_no_exception_carries_a_value(tmp_path: Path) -> None:
    path = tmp_path / ".env"
    path.write_bytes(b"A=secreto\nB=\xff\n")
    with pytest.raises(EnlaceError, match="no es UTF-8") as error:
        load_dotenv(path)
    chain: BaseException | None = error.value
    while chain is not None:
        assert "secreto" not in repr(chain) and "secreto" not in str(vars(chain))
        chain = chain.__cause__ or chain.__context__


_VALUES = st.one_of(
    st.text(alphabet=string.printable + "ñ«€\xa0\u2028\0", max_size=12),
    st.text(alphabet="ab=#*?[]{},:~!^\\\"'$ \t", max_size=8),
)
_LINES = st.builds(
    lambda form, name, value: form.format(name, value),
    st.sampled_from(["{}={}", "export {}='{}'", '{}="{}" # x', "  export\t{}={}  ", "{} = {}", "# {}={}", "{}='{}'"]),
    st.sampled_from(["A", "B", "C"]),
    _VALUES,
)


@settings(max_examples=150, deadline=None)
@given(st.lists(_LINES, max_size=4))
def test_bash_reads_every_accepted_file_the_same(tmp_path_factory: pytest.TempPathFactory, lines: list[str]) -> None:
    path = tmp_path_factory.mktemp("env") / ".env"
    path.write_bytes("\n".join(lines).encode())
    path.chmod(0o600)
    try:
        names = load_dotenv(path)
    except EnlaceError as error:
        for value in (line.partition("=")[2] for line in lines):
            assert len(value) < 6 or value not in str(error)
        return
    finally:
        ours = {name: os.environ.pop(name, "") for name in ("A", "B", "C")}
    assert sorted(names) == [name for name, value in ours.items() if value]
    assert _as_bash_reads(path, "A", "B", "C") == list(ours.values())
    # A second opinion, on what it reads as bash does: in single quotes it expands ${B} and takes \n as an escape.
    if not any("$" in line or "\\" in line for line in lines) and all(line.isprintable() for line in lines):
        theirs = dotenv.dotenv_values(path, interpolate=False)
        assert [theirs.get(name) or "" for name in ours] == list(ours.values())


def test_warns_when_others_can_read_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _load(tmp_path, "A=secreto\n")
    assert capsys.readouterr().err == ""
    os.environ.pop("A")
    (tmp_path / ".env").chmod(0o640)
    assert load_dotenv(tmp_path / ".env") == ["A"]
    warned = capsys.readouterr().err
    assert "chmod 600" in warned and "secreto" not in warned
    (tmp_path / ".env").write_text("A=\n", encoding="utf-8")
    load_dotenv(tmp_path / ".env")
    assert capsys.readouterr().err == "", "a copy of .env.example holds nothing to hide"


# What needs a credential, or a folder that .env may move.
_NEEDS = {"open_job", "ledger_dir", "runs_dir", "ClienteAnthropic"}


def test_stages_and_commands_that_need_it_read_it_once_at_their_start() -> None:
    package = ROOT / "src/enlace"
    checked = 0
    for path in [*(package / "stages").glob("*.py"), *(package / "commands").glob("*.py")]:
        tree = ast.parse(path.read_text(encoding="utf-8"))
        calls = [n.func.id for n in ast.walk(tree) if isinstance(n, ast.Call) and isinstance(n.func, ast.Name)]
        if not _NEEDS & set(calls):
            continue
        checked += 1
        assert "load_dotenv" in calls, path
        if path.parent.name == "stages":
            (main,) = (n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name == "main")
            assert calls.count("load_dotenv") == 1 and ast.unparse(main.body[1]) == "load_dotenv()", path
    assert checked >= 3


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
