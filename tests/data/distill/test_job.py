"""The files of a job: nothing forgotten, torn lines, damage, one writer."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from enlace.data.distill import DistillError, Peticion, Trabajo
from enlace.data.distill.records import append_records, read_records


def test_manifest_round_trip_drops_duplicates_and_forgets_nothing(trabajo: Trabajo, peticiones: list[Peticion]) -> None:
    repeated = Peticion(peticiones[0].system, peticiones[0].user, {"otra": "meta"})
    assert trabajo.guardar_peticiones([*peticiones[:3], repeated]) == peticiones[:3]
    assert trabajo.leer_peticiones() == peticiones[:3]
    assert trabajo.guardar_peticiones(peticiones[2:]) == peticiones[2:]
    assert Trabajo("prueba", trabajo.raiz).leer_peticiones() == peticiones


def test_no_manifest(trabajo: Trabajo) -> None:
    with pytest.raises(DistillError, match="manifiesto"):
        trabajo.leer_peticiones()
    assert trabajo.guardar_peticiones([]) == []
    assert trabajo.leer_peticiones() == []


def test_names_of_the_contract(trabajo: Trabajo) -> None:
    assert trabajo.errores_path.name == "errors.jsonl"
    assert trabajo.resultados_path.parent == trabajo.errores_path.parent
    assert trabajo.leer_lotes() == []


def test_every_torn_tail_is_moved_aside(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    whole, last = {"n": 1, "t": "ñ\u2028"}, json.dumps({"n": 2, "t": "é"}, ensure_ascii=False).encode()
    for cut in range(1, len(last) + 1):
        path.unlink(missing_ok=True)
        append_records(path, [whole])
        with path.open("ab") as file:
            file.write(last[:cut])
        assert list(read_records(path)) == [whole]
        append_records(path, [{"n": 3}])
        assert list(read_records(path)) == [whole, {"n": 3}]
        assert path.with_name("x.jsonl.torn").read_bytes().endswith(last[:cut] + b"\n")


def test_damage_elsewhere_is_an_error_with_its_place(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_bytes(b'{"n": 1}\n{"n": \n{"n": 3}\n')
    with pytest.raises(DistillError, match=r"x\.jsonl:2:"):
        list(read_records(path))


def test_half_a_surrogate_pair_survives(tmp_path: Path) -> None:
    append_records(tmp_path / "x.jsonl", [{"t": "\ud83d"}])
    assert list(read_records(tmp_path / "x.jsonl")) == [{"t": "\ud83d"}]


def test_one_writer_and_the_lock_dies_with_its_holder(trabajo: Trabajo, peticiones: list[Peticion]) -> None:
    program = (
        "import sys, time; from pathlib import Path; from enlace.data.distill import Trabajo\n"
        "with Trabajo('prueba', Path(sys.argv[1])).bloqueo(): print('mío', flush=True); time.sleep(60)"
    )
    holder = subprocess.Popen([sys.executable, "-c", program, trabajo.raiz], stdout=subprocess.PIPE, text=True)
    try:
        assert holder.stdout is not None and holder.stdout.readline() == "mío\n"
        with pytest.raises(DistillError, match=str(holder.pid)):
            trabajo.guardar_peticiones(peticiones)
    finally:
        holder.kill()
        holder.communicate()
    assert trabajo.guardar_peticiones(peticiones) == peticiones


def test_a_bad_receipt_is_named(trabajo: Trabajo) -> None:
    numero = trabajo.escribir_intento(["a"], idempotente=False)
    trabajo.recibo_path(numero).write_text("{}", encoding="utf-8")
    with pytest.raises(DistillError, match=r"000001\.receipt\.json"):
        trabajo.leer_lotes()


def test_a_receipt_without_its_intent_is_not_ignored(trabajo: Trabajo) -> None:
    numero = trabajo.escribir_intento(["a"], idempotente=False)
    trabajo.escribir_recibo(numero, "lote_1")
    trabajo.intento_path(numero).unlink()
    for read in (trabajo.leer_lotes, trabajo.en_duda):
        with pytest.raises(DistillError, match=r"000001\.intent\.json.*000001\.receipt\.json"):
            read()


@pytest.mark.parametrize(
    "content", ["{", "[]", "{}", '{"custom_ids": ["a"]}', '{"custom_ids": [1], "idempotente": true}']
)
def test_a_damaged_intent_is_named(trabajo: Trabajo, content: str) -> None:
    numero = trabajo.escribir_intento(["a"], idempotente=False)
    trabajo.intento_path(numero).write_text(content, encoding="utf-8")
    with pytest.raises(DistillError, match=r"000001\.intent\.json"):
        trabajo.en_duda()


def test_nobody_is_waited_for_when_the_lock_is_not_held(trabajo: Trabajo) -> None:
    (trabajo.carpeta / "LOCK").mkdir(parents=True)
    with pytest.raises(DistillError, match="es una carpeta") as caught:
        trabajo.guardar_peticiones([])
    assert "Espera" not in str(caught.value)
