"""The identity of a request, and requests in files."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from enlace.data.distill import DistillError, Peticion, leer_especificaciones
from enlace.data.distill.requests import especificaciones

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
objects = st.dictionaries(st.text(max_size=5), json_values, max_size=3)
peticiones = st.builds(Peticion, st.text(), st.text(min_size=1).filter(str.strip), objects, st.none() | objects)


def test_identity_is_stable_across_processes_and_versions() -> None:
    peticion = Peticion("Sé breve.", "¿Qué es un ñandú?", {"n": 1}, {"type": "object", "a": 1})
    assert peticion.custom_id == "v1-39c64ac85c6d121227a41206228f00c6e115010610e433aa"
    program = (
        "from enlace.data.distill import Peticion;"
        "print(Peticion('Sé breve.', '¿Qué es un ñandú?', {}, {'a': 1, 'type': 'object'}).custom_id)"
    )
    other = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert other.stdout.strip() == peticion.custom_id


def test_identity_is_what_is_sent() -> None:
    base = Peticion("s", "u")
    assert base.custom_id == Peticion("s", "u", {"origen": "otro"}).custom_id
    different = [Peticion("s ", "u"), Peticion("s", "u "), Peticion("u", "s"), Peticion("s", "u", schema={})]
    assert len({base.custom_id, *(peticion.custom_id for peticion in different)}) == 5


@settings(max_examples=50)
@given(peticiones)
def test_identity_fits_the_api(peticion: Peticion) -> None:
    assert re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", peticion.custom_id)


def test_a_request_is_a_value() -> None:
    assert Peticion("s", "u", {"a": [1]}) == Peticion("s", "u", {"a": [1]})
    assert Peticion("s", "u", {"a": 1}) != Peticion("s", "u", {"a": 2})
    assert len({Peticion("s", "u", {"a": 1}), Peticion("s", "u", {"a": 1})}) == 1


@pytest.mark.parametrize(
    "fields",
    [
        ("\ud83d", "u"),
        ("s", "\udc00"),
        ("s", "u", {"x": float("nan")}),
        ("s", "u", {"x": (1, 2)}),
        ("s", "u", {1: "x"}),
        ("s", "u", {"x": object()}),
        ("s", "u", {}, {"minimum": float("inf")}),
        ("s", None),
        ("s", ""),
        ("s", " \n"),
        ("s", "u", []),
    ],
)
def test_what_could_not_be_sent_is_refused_at_once(fields: tuple[object, ...]) -> None:
    with pytest.raises(DistillError):
        Peticion(*fields)  # type: ignore[arg-type]


@settings(max_examples=50)
@given(st.lists(peticiones, max_size=3))
def test_round_trip_through_a_file(tmp_path_factory: pytest.TempPathFactory, some: list[Peticion]) -> None:
    path = tmp_path_factory.mktemp("specs") / "specs.jsonl"
    path.write_bytes(especificaciones(some))
    assert leer_especificaciones(path) == some


def test_blank_lines_bom_crlf_and_strange_separators(tmp_path: Path) -> None:
    path = tmp_path / "specs.jsonl"
    line = json.dumps({"system": "s", "user": "uno\u2028dos\x85tres"}, ensure_ascii=False)
    path.write_bytes(b"\xef\xbb\xbf" + f"{line}\r\n\n  \n{line}".encode())
    assert leer_especificaciones(path) == [Peticion("s", "uno\u2028dos\x85tres")] * 2


@pytest.mark.parametrize(
    "line",
    [
        b"{",
        b"[]",
        b'{"system": "s"}',
        b'{"system": "s", "user": "u", "mota": {}}',
        b'{"system": "s", "user": 3}',
        b'{"system": "s", "user": "  "}',
        b'{"system": "s", "user": "u", "meta": []}',
        b'{"system": "s", "user": "\\ud800"}',
        b'{"system": "s", "user": "\xff"}',
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, line: bytes) -> None:
    path = tmp_path / "specs.jsonl"
    path.write_bytes(b'{"system": "s", "user": "u"}\n\n' + line + b"\n")
    with pytest.raises(DistillError, match=r"specs\.jsonl:3:"):
        leer_especificaciones(path)


def test_a_missing_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DistillError, match="no-hay"):
        leer_especificaciones(tmp_path / "no-hay.jsonl")


def test_importing_the_package_is_light() -> None:
    program = (
        "import sys, enlace.data.distill;"
        "print([m for m in ('torch', 'anthropic', 'httpx', 'rich', 'pydantic') if m in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"
