"""Killed anywhere and run again, it ends the same, byte for byte, and nothing is paid for twice."""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from muerte import POINTS, fork, run, until
from servidor import Servidor

from enlace.config.schema import DistillConfig
from enlace.data.distill import ClienteAnthropic, DistillError, Peticion, Trabajo, collect, resumen_de_uso, submit
from enlace.data.distill.collecting import rebuild
from enlace.data.distill.exporting import export
from enlace.data.distill.retry import retry_failed
from enlace.data.distill.verifying import verify

pytest.importorskip("anthropic")  # imported before the forks: each would take seconds

CONFIG = DistillConfig(requests_per_batch=3, max_wait_hours=1.0, poll_interval_seconds=60.0)
ASKED = [
    Peticion("Sé breve.", text)
    for text in (
        *("uno", "dos [[max_tokens]]", "tres", "cuatro [[once:errored:api_error]]"),
        *("cinco\u2028ñ", "seis", "siete"),
    )
]


def no_wait(seconds: float) -> None:
    pass


def work(folder: Path, retry: bool = False) -> None:
    """All of it: send, collect, send the failures again, write the data set."""
    trabajo, cliente = Trabajo("t", folder), ClienteAnthropic(CONFIG)
    submit(trabajo, ASKED, cliente, CONFIG, dormir=no_wait)
    seconds = iter(range(0, 10**9, 60))
    collect(trabajo, cliente, CONFIG, ahora=lambda: float(next(seconds)), dormir=no_wait)
    if retry:
        retry_failed(trabajo, cliente, CONFIG, dormir=no_wait)
        collect(trabajo, cliente, CONFIG, ahora=lambda: float(next(seconds)), dormir=no_wait)
    export(trabajo, ASKED, folder / "dataset.jsonl", folder / "failed.jsonl")


def outcome(folder: Path) -> dict[str, bytes]:
    """What it ends in. Numbers of batches may differ: a submission that came to nothing takes one."""
    return {name: (folder / name).read_bytes() for name in ("dataset.jsonl", "failed.jsonl")}


@pytest.fixture
def expected(servidor: Servidor, cliente: ClienteAnthropic, tmp_path: Path) -> dict[str, bytes]:
    """What an undisturbed run ends in; the server is as new afterwards."""
    folder = tmp_path / "undisturbed"
    folder.mkdir()
    work(folder)
    servidor.reset()
    return outcome(folder)


@pytest.mark.parametrize("name", POINTS)
def test_killed_at(name: str, servidor: Servidor, expected: dict[str, bytes], tmp_path: Path) -> None:
    assert run(lambda: work(tmp_path), POINTS[name]) == -signal.SIGKILL
    work(tmp_path)
    assert outcome(tmp_path) == expected
    assert servidor.paid == Counter(peticion.custom_id for peticion in ASKED)
    assert list(verify(Trabajo("t", tmp_path), ClienteAnthropic(CONFIG))) == []


@pytest.mark.parametrize("fault", [{"create": [{"reply": "hang", "accept": True}]}, {"results": [{"cut": "hang"}]}])
def test_killed_while_the_server_holds_its_answer(
    fault: Any, servidor: Servidor, expected: dict[str, bytes], tmp_path: Path
) -> None:
    """The reports behind it: a worker lost right after the server accepted; a second paid batch on retry."""
    servidor.faults(**fault)
    (endpoint,) = fault
    child = fork(lambda: work(tmp_path))
    until(lambda: servidor.state()["calls"].get(endpoint) == 1 and (endpoint != "create" or bool(servidor.posts)))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    work(tmp_path)
    assert outcome(tmp_path) == expected
    assert servidor.paid == Counter(peticion.custom_id for peticion in ASKED)


def test_killed_holder_leaves_no_lock_and_two_at_once_pay_once(
    servidor: Servidor, expected: dict[str, bytes], tmp_path: Path
) -> None:
    servidor.faults(create=[{"reply": "hang", "accept": True}])
    child = fork(lambda: work(tmp_path))
    until(lambda: bool(servidor.posts))
    with pytest.raises(DistillError, match=f"otro proceso.*{child}"):
        work(tmp_path)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    work(tmp_path)
    assert outcome(tmp_path) == expected
    assert len(servidor.posts) == 3


def test_ctrl_c_while_sending_waits(servidor: Servidor, expected: dict[str, bytes], tmp_path: Path) -> None:
    def interrupted() -> None:
        real = ClienteAnthropic.crear

        def crear(self: ClienteAnthropic, pedidos: Any) -> str:
            os.kill(os.getpid(), signal.SIGINT)
            return real(self, pedidos)

        ClienteAnthropic.crear = crear  # type: ignore[method-assign]
        try:
            work(tmp_path)
        except KeyboardInterrupt:
            os._exit(130)

    assert run(interrupted) == 130
    trabajo = Trabajo("t", tmp_path)
    assert len(trabajo.leer_lotes()) == 1 and trabajo.en_duda() == []
    work(tmp_path)
    assert outcome(tmp_path) == expected
    assert servidor.paid == Counter(peticion.custom_id for peticion in ASKED)


FAULTS = st.fixed_dictionaries(
    {},
    optional={
        "create": st.lists(
            st.sampled_from(
                [
                    {"reply": "drop", "accept": True},
                    {"reply": "drop", "accept": False},
                    {"reply": "garbage", "accept": True},
                    {"reply": 500, "accept": True},
                    {"reply": 529, "accept": False},
                    {"reply": 429, "retry_after": 1},
                    {"max_requests": 2},
                ]
            ),
            max_size=2,
        ),
        "retrieve": st.lists(st.sampled_from([{"reply": 404}, {"reply": 529}, {"reply": "drop"}]), max_size=3),
        "list": st.lists(st.sampled_from([{"reply": 500}, {"hide": 1}]), max_size=2),
        "results": st.lists(
            st.sampled_from(
                [
                    {"cut": "midline"},
                    {"cut": "boundary"},
                    {"cut": "length"},
                    {"cut": "chunked"},
                    {"order": "reverse"},
                    {"duplicate": 1, "foreign": 1, "crlf": True, "blank": True},
                    {"reply": 404},
                ]
            ),
            max_size=4,
        ).filter(lambda faults: faults.count({"cut": "boundary"}) < 3),  # so many agree that an answer is missing
    },
)
STEPS = st.lists(st.tuples(st.sampled_from([None, *POINTS]), FAULTS, st.booleans()), min_size=1, max_size=3)


def hold_invariants(steps: list[tuple[str | None, dict[str, Any], bool]], servidor: Servidor, folder: Path) -> None:
    """Run with kills and faults, then undisturbed; check what has to hold whatever happened."""
    servidor.reset()
    servidor.faults(ends_after=1)
    for name, faults, retry in steps:
        servidor.faults(**{"create": [], "retrieve": [], "list": [], "results": []} | faults)
        status = run(lambda: work(folder, retry), POINTS[name] if name else None)  # noqa: B023
        assert status in (0, 3, -signal.SIGKILL), "neither a traceback nor silence"
    servidor.faults(create=[], retrieve=[], list=[], results=[])
    work(folder, retry=True)

    trabajo, cliente = Trabajo("t", folder), ClienteAnthropic(CONFIG)
    retries = len(list(trabajo.eventos("reenvio")))
    paid = servidor.paid
    assert all(1 <= paid[p.custom_id] <= 1 + retries for p in ASKED)
    assert all(paid[p.custom_id] == 1 for p in ASKED if "[[once" not in p.user), "only a failure may be sent again"
    # Each batch that the server accepted is known, and each request has one outcome.
    known = trabajo.lotes.ids()
    assert known == {post["id"] for post in servidor.posts if post["id"]}
    good = {row["custom_id"] for row in trabajo.leer_resultados()}
    bad = {row["custom_id"]: row["class"] for row in trabajo.leer_errores()}
    assert good.isdisjoint(bad) and good | bad.keys() == {p.custom_id for p in ASKED}
    assert set(bad.values()) == {"max_tokens"}
    # What is derived is a function of the raw answers, and so is the money.
    before = {path: path.read_bytes() for path in trabajo.carpeta.glob("*.jsonl")}
    rebuild(trabajo, cliente)
    assert before == {path: path.read_bytes() for path in trabajo.carpeta.glob("*.jsonl")}
    answers = [cliente.leer_linea(line) for path in trabajo.carpeta.glob("raw/*.jsonl") for line in path.open("rb")]
    billed = {str(row["custom_id"]) for row in answers if row["type"] == "succeeded" and row["custom_id"] in paid}
    each = (7 * Decimal(5) + 3 * Decimal(25)) / 2 / 10**6
    assert Decimal(resumen_de_uso(trabajo, CONFIG)["usd_total"]) == each * len(billed)
    assert list(verify(trabajo, cliente)) == []


@pytest.fixture
def fresh(tmp_path_factory: pytest.TempPathFactory) -> Callable[[], Path]:
    return lambda: tmp_path_factory.mktemp("run")


@pytest.mark.parametrize("cuts", [("midline", "midline", "boundary"), ("boundary", "length", "boundary")])
def test_an_answer_is_missing_only_when_three_whole_downloads_lack_it(
    cuts: tuple[str, ...], servidor: Servidor, cliente: ClienteAnthropic, fresh: Callable[[], Path]
) -> None:
    hold_invariants([(None, {"results": [{"cut": cut} for cut in cuts]}, False)], servidor, fresh())


@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=STEPS)
def test_whatever_happens(steps: Any, servidor: Servidor, cliente: ClienteAnthropic, fresh: Callable[[], Path]) -> None:
    hold_invariants(steps, servidor, fresh())


@pytest.mark.slow
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=STEPS)
def test_whatever_happens_at_length(
    steps: Any, servidor: Servidor, cliente: ClienteAnthropic, fresh: Callable[[], Path]
) -> None:
    hold_invariants(steps, servidor, fresh())
