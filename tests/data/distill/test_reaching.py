"""Collecting from a teacher that cannot always be reached: the wait goes on, and the other batches do not suffer."""

from __future__ import annotations

import errno
import shutil
from collections.abc import Callable, Iterator

import pytest
from maestro import Maestro, Row, answers

from enlace.config.schema import DistillConfig
from enlace.data.distill import DistillError, Peticion, Trabajo, collect, status, submit


class Roto(Maestro):
    """Raises `failures[batch]` when asked about it: the next one of the list, each once, or always the same."""

    def __init__(self) -> None:
        super().__init__()
        self.failures: dict[str, list[Exception] | Exception] = {}

    def fail(self, key: str) -> None:
        failure = self.failures.get(key, [])
        if isinstance(failure, Exception):
            raise failure
        if failure:
            raise failure.pop()

    def estado(self, batch_id: str) -> Row:
        self.fail(batch_id)
        return super().estado(batch_id)

    def resultados(self, batch_id: str) -> Iterator[Row]:
        rows = super().resultados(batch_id)
        yield next(rows)
        self.fail(f"{batch_id}/results")
        yield from rows


@pytest.fixture
def roto(trabajo: Trabajo, peticiones: list[Peticion], config: DistillConfig) -> Roto:
    """It has been sent three batches."""
    roto = Roto()
    submit(trabajo, peticiones, roto, config)
    return roto


def test_a_passing_failure_does_not_end_the_wait(
    trabajo: Trabajo, roto: Roto, config: DistillConfig, capsys: pytest.CaptureFixture[str]
) -> None:
    roto.failures = {
        "lote_1": [TimeoutError("uf"), TimeoutError("uf")],
        "lote_2": [RuntimeError("404")],
        "lote_3/results": [ConnectionResetError("se cortó")],
    }
    waits: list[float] = []
    assert collect(trabajo, roto, config, ahora=lambda: sum(waits), dormir=waits.append)["ok"] == 7
    assert waits == [10.0] * 2
    said = capsys.readouterr().out
    assert [said.count(name) for name in ("TimeoutError", "RuntimeError", "ConnectionResetError")] == [1, 1, 1]


def test_past_the_limit_the_failure_is_named(trabajo: Trabajo, roto: Roto, config: DistillConfig) -> None:
    roto.failures = {"lote_2/results": ConnectionResetError("se cortó")}
    waits: list[float] = []
    with pytest.raises(DistillError, match=r"max_wait_hours.*lote_2.*se cortó"):
        collect(trabajo, roto, config, ahora=lambda: sum(waits), dormir=waits.append)
    assert sum(waits) == 3600
    assert len(answers(trabajo)) == 4 and not trabajo.crudo_path("lote_2").exists()
    roto.failures = {}
    assert collect(trabajo, roto, config) == {"ok": 3, "error": 0, "ya_estaban": 4}


def test_one_batch_that_cannot_be_collected_does_not_starve_the_others(
    trabajo: Trabajo, roto: Roto, config: DistillConfig
) -> None:
    roto.failures = {"lote_1": DistillError("no lo encuentro")}
    roto.tardanza = 1
    waits: list[float] = []
    with pytest.raises(DistillError, match=r"1 lotes: lote_1 \(no lo encuentro\)"):
        collect(trabajo, roto, config, ahora=lambda: sum(waits), dormir=waits.append)
    assert waits == [10.0]
    assert len(answers(trabajo)) == 4
    rows = status(trabajo, roto)
    assert (rows[0]["id"], rows[0]["processing_status"], rows[0]["error"]) == (
        "lote_1",
        "desconocido",
        "no lo encuentro",
    )
    assert {"succeeded", "errored", "processing", "canceled", "expired"} <= rows[0].keys()
    assert [row["processing_status"] for row in rows[1:]] == ["ended", "ended"]


def test_a_damaged_download_does_not_starve_the_others(trabajo: Trabajo, roto: Roto, config: DistillConfig) -> None:
    raw = trabajo.crudo_path("lote_1")
    raw.parent.mkdir()
    raw.write_text("{\n{}\n", encoding="utf-8")
    with pytest.raises(DistillError, match=r"lote_1 .*lote_1\.jsonl:1:"):
        collect(trabajo, roto, config)
    assert len(answers(trabajo)) == 4


def test_a_full_disk_is_no_silence_of_the_teacher(
    trabajo: Trabajo, roto: Roto, config: DistillConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("enlace.data.distill.downloading.os.fsync", full)
    with pytest.raises(DistillError, match="disco lleno"):
        collect(trabajo, roto, config, dormir=lambda seconds: pytest.fail("nothing to wait for"))


def test_what_nobody_could_mend_is_not_waited_for(trabajo: Trabajo, roto: Roto, config: DistillConfig) -> None:
    roto.failures = {f"lote_{i}": DistillError("falta la clave") for i in (1, 2, 3)}
    with pytest.raises(DistillError, match="falta la clave"):
        collect(trabajo, roto, config, dormir=lambda seconds: pytest.fail("nothing to wait for"))


def test_only_the_batches_of_some_requests_are_needed(
    trabajo: Trabajo, peticiones: list[Peticion], roto: Roto, config: DistillConfig
) -> None:
    roto.failures = {"lote_1": DistillError("perdido"), "lote_2": TimeoutError()}
    no_wait: Callable[[float], object] = lambda seconds: pytest.fail("nothing to wait for")  # noqa: E731
    assert collect(trabajo, roto, config, dormir=no_wait, peticiones=peticiones[6:])["ok"] == 1
    roto.failures = {"lote_1": DistillError("perdido")}
    assert collect(trabajo, roto, config, dormir=no_wait, peticiones=peticiones[6:])["ok"] == 3
    with pytest.raises(DistillError, match="lote_1"):
        collect(trabajo, roto, config, dormir=no_wait, peticiones=peticiones[:1])


def test_without_its_batches_what_was_answered_still_is(
    trabajo: Trabajo, peticiones: list[Peticion], maestro: Maestro, config: DistillConfig
) -> None:
    maestro.alterar = lambda rows: [row | {"stop_reason": "max_tokens"} for row in rows]
    submit(trabajo, peticiones, maestro, config)
    collect(trabajo, maestro, config)
    shutil.rmtree(trabajo.carpeta / "batches")
    assert submit(trabajo, peticiones, maestro, config) == []
    assert collect(trabajo, maestro, config) == {"ok": 0, "error": 0, "ya_estaban": 7}
