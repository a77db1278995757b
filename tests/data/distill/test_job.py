"""The files of a job: nothing forgotten, torn lines, damage, one writer."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from enlace.data.distill import DistillError, Peticion, Trabajo
from enlace.data.distill.errors import TrabajoOcupado
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
        with pytest.raises(TrabajoOcupado, match=str(holder.pid)) as caught:
            trabajo.guardar_peticiones(peticiones)
        assert caught.value.exit_status == 3
    finally:
        holder.kill()
        holder.communicate()
    assert trabajo.guardar_peticiones(peticiones) == peticiones


def test_a_bad_receipt_is_named(trabajo: Trabajo) -> None:
    numero = trabajo.lotes.escribir_intento(["a"], idempotente=False)
    trabajo.recibo_path(numero).write_text("{}", encoding="utf-8")
    with pytest.raises(DistillError, match=r"000001\.receipt\.json"):
        trabajo.leer_lotes()


def test_a_receipt_without_its_intent_is_not_ignored(trabajo: Trabajo) -> None:
    numero = trabajo.lotes.escribir_intento(["a"], idempotente=False)
    trabajo.lotes.escribir_recibo(numero, "lote_1")
    trabajo.intento_path(numero).unlink()
    for read in (trabajo.leer_lotes, trabajo.en_duda):
        with pytest.raises(DistillError, match=r"000001\.intent\.json.*000001\.receipt\.json"):
            read()


@pytest.mark.parametrize(
    "content", ["{", "[]", "{}", '{"custom_ids": ["a"]}', '{"custom_ids": [1], "idempotente": true}']
)
def test_a_damaged_intent_is_named(trabajo: Trabajo, content: str) -> None:
    numero = trabajo.lotes.escribir_intento(["a"], idempotente=False)
    trabajo.intento_path(numero).write_text(content, encoding="utf-8")
    with pytest.raises(DistillError, match=r"000001\.intent\.json"):
        trabajo.en_duda()


def test_nobody_is_waited_for_when_the_lock_is_not_held(trabajo: Trabajo) -> None:
    (trabajo.carpeta / "LOCK").mkdir(parents=True)
    with pytest.raises(DistillError, match="es una carpeta") as caught:
        trabajo.guardar_peticiones([])
    assert "Espera" not in str(caught.value)


def test_an_intent_alone_was_never_sent(trabajo: Trabajo) -> None:
    """The receipt is reserved before anything is sent, so without one there is nothing to doubt."""
    numero = trabajo.lotes.escribir_intento(["a"])
    assert [intento["numero"] for intento in trabajo.en_duda()] == [numero]
    trabajo.recibo_path(numero).unlink()
    assert trabajo.en_duda() == [] and trabajo.leer_lotes() == []
    trabajo.lotes.olvidar_no_enviados()
    assert not trabajo.intento_path(numero).exists()


def test_the_id_of_a_batch_needs_no_new_room_on_the_disk(trabajo: Trabajo) -> None:
    numero = trabajo.lotes.escribir_intento(["a"])
    before = trabajo.recibo_path(numero).stat()
    trabajo.lotes.escribir_recibo(numero, "lote_1")
    after = trabajo.recibo_path(numero).stat()
    assert (after.st_ino, after.st_size, after.st_blocks) == (before.st_ino, before.st_size, before.st_blocks)
    assert [lote["id"] for lote in trabajo.leer_lotes()] == ["lote_1"]


def test_a_torn_manifest_loses_only_the_torn_request(trabajo: Trabajo, peticiones: list[Peticion]) -> None:
    trabajo.guardar_peticiones(peticiones[:3])
    whole = trabajo.manifiesto_path.read_bytes()
    trabajo.manifiesto_path.write_bytes(whole[:-5])
    assert trabajo.leer_peticiones() == peticiones[:2]
    trabajo.guardar_peticiones(peticiones)
    assert trabajo.leer_peticiones() == peticiones
    trabajo.manifiesto_path.write_bytes(whole.replace(b'"user"', b'"usar"', 1))
    with pytest.raises(DistillError, match=r"manifest\.jsonl"):
        trabajo.leer_peticiones()


def test_a_job_is_bound_to_who_began_it(trabajo: Trabajo) -> None:
    trabajo.exigir_identidad({"model": "a", "cuenta": "x"})
    trabajo.exigir_identidad({"cuenta": "x"})
    before = (trabajo.carpeta / "job.json").read_bytes()
    with pytest.raises(DistillError, match=r"cuenta: x → y.*--rebind"):
        trabajo.exigir_identidad({"model": "a", "cuenta": "y"})
    assert (trabajo.carpeta / "job.json").read_bytes() == before
    trabajo.exigir_identidad({"cuenta": "y"}, rebind=True)
    trabajo.exigir_identidad({"model": "a", "cuenta": "y"})
    assert [event["cambios"] for event in trabajo.eventos("rebind")] == [["cuenta: x → y"]]
