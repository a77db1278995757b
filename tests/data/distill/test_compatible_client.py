"""The teacher at home, against a real chat server on this machine that misbehaves in every way it is told to."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from maestro import answers, errors
from servidor_chat import Chat, ServidorChat, completion

from enlace.config.schema import DistillConfig, ServerConfig
from enlace.data.distill import ClienteCompatible, DistillError, Peticion, Trabajo, collect, status, submit
from enlace.data.distill.teachers import open_job

SCHEMA = {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"], "additionalProperties": False}


@pytest.fixture
def servidor() -> Iterator[ServidorChat]:
    servidor = ServidorChat()
    thread = threading.Thread(target=servidor.http.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    yield servidor
    servidor.http.shutdown()
    servidor.http.server_close()


@pytest.fixture
def config(servidor: ServidorChat, monkeypatch: pytest.MonkeyPatch) -> DistillConfig:
    monkeypatch.delenv("COMPATIBLE_API_KEY", raising=False)
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")  # a proxy is for the internet
    server = ServerConfig(base_url=servidor.url, concurrency=3, retries=2, backoff_seconds=0.01, timeout_seconds=5)
    return DistillConfig(
        teacher="compatible", model="modelo-de-casa", max_tokens=50, requests_per_batch=4, server=server
    )


@pytest.fixture
def cliente(config: DistillConfig, trabajo: Trabajo) -> Iterator[ClienteCompatible]:
    cliente = ClienteCompatible(config, trabajo.carpeta / "compatible")
    yield cliente
    cliente.cerrar()


def gather(trabajo: Trabajo, cliente: ClienteCompatible, config: DistillConfig) -> dict[str, int]:
    return collect(trabajo, cliente, config, dormir=lambda seconds: None)


def on_server(config: DistillConfig, **changes: Any) -> DistillConfig:
    assert config.server is not None
    return config.model_copy(update={"server": config.server.model_copy(update=changes)})


def test_from_request_to_result(
    servidor: ServidorChat,
    trabajo: Trabajo,
    peticiones: list[Peticion],
    cliente: ClienteCompatible,
    config: DistillConfig,
) -> None:
    assert len(submit(trabajo, peticiones, cliente, config)) == 2
    assert servidor.bodies == [], "putting a batch asks nothing"
    assert gather(trabajo, cliente, config) == {"ok": 7, "error": 0, "ya_estaban": 0}
    assert answers(trabajo) == {p.custom_id: f"eco: {p.user}" for p in peticiones}
    usage = {"input_tokens": 7, "output_tokens": 4, "cache_read_input_tokens": 2, "cache_creation_input_tokens": 0}
    assert all(row["usage"] == usage and row["stop_reason"] == "end_turn" for row in trabajo.leer_resultados())
    assert submit(trabajo, peticiones, cliente, config) == []
    assert gather(trabajo, cliente, config) == {"ok": 0, "error": 0, "ya_estaban": 7}
    assert len(servidor.bodies) == 7


def test_so_many_at_once_and_no_more(
    servidor: ServidorChat, trabajo: Trabajo, cliente: ClienteCompatible, config: DistillConfig
) -> None:
    together = threading.Barrier(3, timeout=10)
    servidor.fault = lambda chat, question, time: together.wait() < 0
    submit(trabajo, [Peticion("s", f"{i}") for i in range(12)], cliente, config)
    assert gather(trabajo, cliente, config)["ok"] == 12
    assert servidor.most_at_once == 3


def test_params(config: DistillConfig, tmp_path: Path) -> None:
    cliente = ClienteCompatible(config, tmp_path)
    messages = [{"role": "system", "content": "Sé breve."}, {"role": "user", "content": "¿Hola?"}]
    assert cliente.construir_params(Peticion("Sé breve.", "¿Hola?")) == {
        "model": "modelo-de-casa",
        "max_tokens": 50,
        "messages": messages,
    }
    warm = ClienteCompatible(on_server(config, temperature=0.0), tmp_path)
    params = warm.construir_params(Peticion("", "u", schema=SCHEMA))
    assert (params["temperature"], len(params["messages"])) == (0.0, 1)
    assert params["response_format"] == {
        "type": "json_schema",
        "json_schema": {"name": "respuesta", "strict": True, "schema": SCHEMA},
    }


def test_the_counts_are_true_and_the_first_look_only_counts(
    servidor: ServidorChat,
    trabajo: Trabajo,
    peticiones: list[Peticion],
    cliente: ClienteCompatible,
    config: DistillConfig,
) -> None:
    held = threading.Event()
    servidor.fault = lambda chat, question, time: question == "pregunta 2" and not held.wait(10)
    (lote, _) = submit(trabajo, peticiones, cliente, config)
    assert status(trabajo, cliente)[0]["processing"] == 4
    assert servidor.bodies == []
    while (state := cliente.estado(lote))["succeeded"] < 3:
        pass
    assert state == {
        "processing_status": "in_progress",
        "succeeded": 3,
        "errored": 0,
        "processing": 1,
        "canceled": 0,
        "expired": 0,
    }
    held.set()
    while (state := cliente.estado(lote))["processing_status"] != "ended":
        pass
    assert state["succeeded"] == 4


def reply(status: int, body: Any, **headers: str) -> Callable[[Chat, str, int], bool]:
    """A fault: this, the first time that a question is asked."""

    def fault(chat: Chat, question: str, time: int) -> bool:
        if time == 1:
            chat.reply(status, body, **headers)
        return time == 1

    return fault


def cut(chat: Chat, question: str, time: int) -> bool:
    if time == 1:
        chat.cut(completion("a medias"))
    return time == 1


@pytest.mark.parametrize(
    "fault",
    [
        *(pytest.param(reply(n, {"error": {"message": "uf"}}), id=str(n)) for n in (408, 409, 425, 429, 500, 502, 503)),
        pytest.param(reply(429, {"error": "espera"}, Retry_After="0"), id="retry-after"),
        pytest.param(reply(200, b"<html>"), id="html"),
        pytest.param(reply(200, b""), id="nothing"),
        pytest.param(reply(200, {"choices": []}), id="no choice"),
        pytest.param(reply(200, b"[" * 100_000), id="deep"),
        pytest.param(cut, id="cut"),
    ],
)
def test_what_passes_is_asked_again(
    fault: Callable[[Chat, str, int], bool],
    servidor: ServidorChat,
    trabajo: Trabajo,
    peticiones: list[Peticion],
    cliente: ClienteCompatible,
    config: DistillConfig,
) -> None:
    servidor.fault = fault
    submit(trabajo, peticiones, cliente, config)
    assert gather(trabajo, cliente, config)["ok"] == 7
    assert {servidor.times(p.user) for p in peticiones} == {2}


def test_retry_after_is_waited_for(
    servidor: ServidorChat, trabajo: Trabajo, cliente: ClienteCompatible, config: DistillConfig
) -> None:
    servidor.fault = reply(429, {}, Retry_After="1")
    submit(trabajo, [Peticion("s", "u")], cliente, config)
    before = time.monotonic()
    assert gather(trabajo, cliente, config)["ok"] == 1
    assert time.monotonic() - before >= 1  # the backoff alone would be a hundredth


@pytest.mark.parametrize(
    ("status", "class_", "tries"),
    [
        (500, "api_error", 3),
        (503, "overloaded_error", 3),
        (429, "rate_limit_error", 3),
        (400, "invalid_request_error", 1),
        (413, "request_too_large", 1),
    ],
)
def test_what_does_not_pass_is_the_error_of_its_request_alone(
    status: int,
    class_: str,
    tries: int,
    servidor: ServidorChat,
    trabajo: Trabajo,
    peticiones: list[Peticion],
    cliente: ClienteCompatible,
    config: DistillConfig,
) -> None:
    def fault(chat: Chat, question: str, time: int) -> bool:
        if question == "pregunta 3":
            chat.reply(status, {"error": {"message": "no puedo\ncon esto"}})
        return question == "pregunta 3"

    servidor.fault = fault
    submit(trabajo, peticiones, cliente, config)
    assert gather(trabajo, cliente, config) == {"ok": 6, "error": 1, "ya_estaban": 0}
    assert errors(trabajo) == {peticiones[3].custom_id: class_}
    assert f"HTTP {status}: no puedo con esto" in trabajo.errores_path.read_text(encoding="utf-8")
    assert servidor.times("pregunta 3") == tries


def test_a_server_that_never_answers_is_late(
    servidor: ServidorChat, trabajo: Trabajo, cliente: ClienteCompatible, config: DistillConfig
) -> None:
    patient = on_server(config, timeout_seconds=0.1)
    free = threading.Event()
    servidor.fault = lambda chat, question, time: free.wait(10)
    cliente = ClienteCompatible(patient, trabajo.carpeta / "compatible")
    submit(trabajo, [Peticion("s", "u")], cliente, config)
    assert gather(trabajo, cliente, config)["error"] == 1
    free.set()
    assert set(errors(trabajo).values()) == {"timeout_error"}
    assert len(servidor.bodies) == 3


@pytest.mark.parametrize(
    ("body", "class_"),
    [
        (completion("a medias", "length"), "max_tokens"),
        (completion("no", "content_filter"), "refusal"),
        (completion(None, refusal="No puedo."), "refusal"),
        (completion(None, "tool_calls", tool_calls=[]), "tool_use"),
        (completion("hm", "otra_cosa"), "finish_reason=otra_cosa"),
        (completion("hm", None), "finish_reason=None"),  # type: ignore[arg-type]
        (completion(""), "empty"),
        (completion(None), "empty"),
        (completion("<think>déjame ver"), "empty"),
    ],
)
def test_what_is_no_answer(
    body: Any, class_: str, servidor: ServidorChat, trabajo: Trabajo, cliente: ClienteCompatible, config: DistillConfig
) -> None:
    def fault(chat: Chat, question: str, time: int) -> bool:
        chat.reply(200, body)
        return True

    servidor.fault = fault
    submit(trabajo, [Peticion("s", "u")], cliente, config)
    assert gather(trabajo, cliente, config)["error"] == 1
    assert set(errors(trabajo).values()) == {class_}
    assert len(servidor.bodies) == 1


@pytest.mark.parametrize("usage", [None, {}, {"prompt_tokens": None}, {"prompt_tokens": "9"}, [3]])
def test_thoughts_are_no_part_of_the_answer_and_usage_may_lack(
    usage: Any, servidor: ServidorChat, trabajo: Trabajo, cliente: ClienteCompatible, config: DistillConfig
) -> None:
    text = "\n<think>veamos\u2028</think>\n\nUno\u2028dos \ud83d <think>"
    servidor.fault = reply(200, json.dumps(completion(text) | {"usage": usage}).encode())
    submit(trabajo, [Peticion("s", "u")], cliente, config)
    assert gather(trabajo, cliente, config)["ok"] == 1
    (row,) = trabajo.leer_resultados()
    assert row["text"] == "Uno\u2028dos \ud83d <think>"
    assert set(row["usage"].values()) == {0}


def test_nobody_listens(
    servidor: ServidorChat, trabajo: Trabajo, cliente: ClienteCompatible, config: DistillConfig
) -> None:
    submit(trabajo, [Peticion("s", "u")], cliente, config)
    servidor.http.shutdown()
    servidor.http.server_close()
    with pytest.raises(DistillError, match=r"/v1: nadie contesta .*Arranca el servidor"):
        gather(trabajo, cliente, config)
    assert errors(trabajo) == {}, "the request is still to be asked"


def test_a_server_that_goes_away_takes_no_request_with_it(
    servidor: ServidorChat,
    trabajo: Trabajo,
    peticiones: list[Peticion],
    cliente: ClienteCompatible,
    config: DistillConfig,
) -> None:
    def fault(chat: Chat, question: str, time: int) -> bool:
        if question != "pregunta 0":
            servidor.http.socket.close()  # nobody else gets in
            chat.connection.close()
            return True
        return False

    servidor.fault = fault
    submit(trabajo, peticiones, cliente, config)
    with pytest.raises(DistillError, match="nadie contesta"):
        gather(trabajo, cliente, config)
    assert errors(trabajo) == {}

    again = ServidorChat()
    threading.Thread(target=again.http.serve_forever, args=(0.02,), daemon=True).start()
    moved = ClienteCompatible(on_server(config, base_url=again.url), trabajo.carpeta / "compatible")
    assert gather(trabajo, moved, config)["ok"] == 7
    assert sorted([*servidor.answered, *again.answered]) == [p.user for p in peticiones]
    again.http.shutdown()
    again.http.server_close()


def test_a_model_that_does_not_exist(
    servidor: ServidorChat,
    trabajo: Trabajo,
    peticiones: list[Peticion],
    cliente: ClienteCompatible,
    config: DistillConfig,
) -> None:
    servidor.fault = lambda chat, question, time: reply(404, {"error": {"message": 'model "x" not found'}})(chat, "", 1)
    submit(trabajo, peticiones, cliente, config)
    with pytest.raises(DistillError, match=r"modelo «modelo-de-casa».*not found.*Los que tiene: modelo-de-casa"):
        gather(trabajo, cliente, config)
    assert errors(trabajo) == {} and servidor.answered == []


@pytest.mark.parametrize("status", [401, 403])
@pytest.mark.parametrize("key", [None, "clave-secreta"])
def test_a_key_that_is_asked_for(
    status: int,
    key: str | None,
    servidor: ServidorChat,
    trabajo: Trabajo,
    cliente: ClienteCompatible,
    config: DistillConfig,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if key:
        monkeypatch.setenv("COMPATIBLE_API_KEY", key)
    servidor.get_status = status
    submit(trabajo, [Peticion("s", "u")], cliente, config)
    with pytest.raises(DistillError, match=r"la clave .*COMPATIBLE_API_KEY.*\.env") as caught:
        gather(trabajo, cliente, config)
    assert "secreta" not in str(caught.value)
    assert servidor.credentials == {key and f"Bearer {key}"} and servidor.bodies == []


def test_the_key_is_never_told(
    servidor: ServidorChat,
    trabajo: Trabajo,
    peticiones: list[Peticion],
    cliente: ClienteCompatible,
    config: DistillConfig,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COMPATIBLE_API_KEY", "clave-secreta")
    servidor.fault = reply(400, {"error": "mala cabecera: Bearer clave-secreta"})
    submit(trabajo, peticiones[:1], cliente, config)
    assert gather(trabajo, cliente, config)["error"] == 1
    assert servidor.credentials == {"Bearer clave-secreta"}
    written = b"".join(path.read_bytes() for path in trabajo.carpeta.rglob("*") if path.is_file())
    assert b"***" in written and b"clave-secreta" not in written

    monkeypatch.setenv("COMPATIBLE_API_KEY", "clave-secreta\nX: y")
    submit(trabajo, peticiones[1:2], cliente, config)
    with pytest.raises(DistillError, match="saltos de línea") as caught:
        gather(trabajo, cliente, config)
    assert "secreta" not in str(caught.value)


def test_a_server_that_fails_everything_does_not_use_up_the_requests(
    servidor: ServidorChat, trabajo: Trabajo, config: DistillConfig, cliente: ClienteCompatible
) -> None:
    def fault(chat: Chat, question: str, time: int) -> bool:
        chat.reply(400, {"error": {"message": "response_format no existe"}})
        return True

    servidor.fault = fault
    peticiones = [Peticion("s", f"pregunta {i}") for i in range(200)]
    submit(trabajo, peticiones, cliente, config.model_copy(update={"requests_per_batch": 200}))
    with pytest.raises(DistillError, match=r"20 peticiones seguidas.*response_format no existe"):
        gather(trabajo, cliente, config)
    assert 20 <= len(servidor.bodies) < 30
    servidor.fault = lambda chat, question, time: False
    assert gather(trabajo, cliente, config)["ok"] > 170


CHILD = """
import sys
from pathlib import Path
from enlace.config.schema import DistillConfig
from enlace.data.distill import Trabajo, collect, ClienteCompatible
config = DistillConfig.model_validate_json(sys.argv[1])
trabajo = Trabajo("prueba", Path(sys.argv[2]))
collect(trabajo, ClienteCompatible(config, trabajo.carpeta / "compatible"), config, dormir=lambda seconds: None)
"""


@pytest.mark.parametrize("sign", [signal.SIGKILL, signal.SIGINT])
def test_killed_in_the_middle_it_goes_on_and_asks_nothing_answered_again(
    sign: signal.Signals, servidor: ServidorChat, trabajo: Trabajo, config: DistillConfig, cliente: ClienteCompatible
) -> None:
    peticiones = [Peticion("s", f"pregunta {i}") for i in range(40)]
    config = config.model_copy(update={"requests_per_batch": 25})
    submit(trabajo, peticiones, cliente, config)
    command = [sys.executable, "-c", CHILD, config.model_dump_json(), str(trabajo.raiz)]
    kept: set[str] = set()
    again: list[str] = []
    for stop in (7, 18, 31):
        reached, held = threading.Event(), threading.Event()

        def fault(
            chat: Chat,
            question: str,
            time: int,
            stop: int = stop,
            reached: threading.Event = reached,
            held: threading.Event = held,
            kept: set[str] = kept,
        ) -> bool:
            again.extend({question} & kept)
            if len(servidor.answered) >= stop:
                reached.set()
                held.wait(30)
                return True
            return False

        servidor.fault = fault
        child = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        assert reached.wait(60)
        os.kill(child.pid, sign)
        assert child.wait(30) != 0
        held.set()
        folder = trabajo.carpeta / "compatible"
        lines = [line for path in folder.glob("*.answers.jsonl") for line in path.read_bytes().split(b"\n")[:-1]]
        kept = {json.loads(line)["text"].removeprefix("eco: ") for line in lines}
        assert len(kept) >= stop - 9  # each time, what was on its way may be lost
        with next(folder.glob("*.answers.jsonl")).open("ab") as torn:
            torn.write(b'{"custom_id": "v1-')  # what a power cut leaves
    servidor.fault = lambda chat, question, time: again.extend({question} & kept)  # type: ignore[func-returns-value]
    counts = gather(trabajo, cliente, config)
    assert (counts["ok"] + counts["ya_estaban"], counts["error"]) == (40, 0)
    assert again == []
    assert answers(trabajo) == {p.custom_id: f"eco: {p.user}" for p in peticiones}


def test_a_batch_put_twice_is_one_until_it_has_ended(
    cliente: ClienteCompatible, servidor: ServidorChat, trabajo: Trabajo
) -> None:
    pedidos = [{"custom_id": "a", "params": {"messages": [{"content": "u"}]}}]
    first = cliente.crear(pedidos)
    assert cliente.crear(pedidos) == first
    while cliente.estado(first)["processing_status"] != "ended":
        pass
    assert cliente.crear(pedidos) != first, "asked on purpose: what failed goes again"


def test_a_cancelled_batch_keeps_what_was_answered(
    servidor: ServidorChat,
    trabajo: Trabajo,
    peticiones: list[Peticion],
    cliente: ClienteCompatible,
    config: DistillConfig,
) -> None:
    held = threading.Event()
    servidor.fault = lambda chat, question, time: question != "pregunta 0" and held.wait(10) and False
    (lote, _) = submit(trabajo, peticiones, cliente, config)
    while cliente.estado(lote)["succeeded"] < 1:
        pass
    other = ClienteCompatible(config, trabajo.carpeta / "compatible")  # as another process would
    other.cancelar(lote)
    held.set()
    state = cliente.estado(lote)
    assert (state["processing_status"], state["succeeded"], state["canceled"]) == ("ended", 1, 3)
    assert sorted(row["type"] for row in cliente.resultados(lote)) == ["canceled"] * 3 + ["succeeded"]
    assert gather(trabajo, cliente, config) == {"ok": 4, "error": 3, "ya_estaban": 0}
    assert set(errors(trabajo).values()) == {"canceled"}


def test_two_processes_do_not_ask_the_same(
    servidor: ServidorChat, trabajo: Trabajo, cliente: ClienteCompatible, config: DistillConfig
) -> None:
    held = threading.Event()
    servidor.fault = lambda chat, question, time: held.wait(10) and False
    (lote,) = submit(trabajo, [Peticion("s", "u")], cliente, config)
    cliente.estado(lote), cliente.estado(lote)
    other = ClienteCompatible(config, trabajo.carpeta / "compatible")
    other.estado(lote)
    with pytest.raises(DistillError, match="otro proceso está preguntando"):
        other.estado(lote)
    held.set()
    assert gather(trabajo, cliente, config)["ok"] == 1


def test_a_lost_batch_and_a_damaged_file_are_named(cliente: ClienteCompatible, trabajo: Trabajo) -> None:
    with pytest.raises(DistillError, match="falta el lote nada"):
        cliente.estado("nada")
    lote = cliente.crear([{"custom_id": "a", "params": {}}])
    (trabajo.carpeta / "compatible" / f"{lote}.answers.jsonl").write_bytes(b"{\n{}\n")
    with pytest.raises(DistillError, match=r"answers\.jsonl:1: línea dañada"):
        cliente.estado(lote)


def test_the_job_is_the_model(config: DistillConfig, tmp_path: Path) -> None:
    trabajo, cliente = open_job(config, tmp_path)
    assert trabajo.nombre == "compatible-modelo-de-casa"
    assert isinstance(cliente, ClienteCompatible)
    assert open_job(on_server(config, base_url="http://otro/v1"), tmp_path)[0] == trabajo


def test_a_job_keeps_its_parameters_but_not_its_address(
    servidor: ServidorChat, trabajo: Trabajo, peticiones: list[Peticion], config: DistillConfig
) -> None:
    folder = trabajo.carpeta / "compatible"
    moved = ClienteCompatible(on_server(config, base_url="http://127.0.0.1:9/v1"), folder)
    submit(trabajo, peticiones[:1], moved, config)
    with pytest.raises(DistillError, match=r"temperature: None → 0\.5"):
        submit(trabajo, peticiones, ClienteCompatible(on_server(config, temperature=0.5), folder), config)
    assert gather(trabajo, ClienteCompatible(config, folder), config)["ok"] == 1


@pytest.mark.parametrize("url", ["localhost:8080/v1", "ftp://casa/v1", "http://yo:clave@casa/v1", "http://casa/v1?k=1"])
def test_an_address_that_is_none(url: str) -> None:
    with pytest.raises(ValueError, match="base_url"):
        ServerConfig(base_url=url)


def test_the_teacher_and_its_server_go_together() -> None:
    with pytest.raises(ValueError, match="acompaña"):
        DistillConfig(teacher="compatible")
    with pytest.raises(ValueError, match="acompaña"):
        DistillConfig(server=ServerConfig(base_url="http://casa/v1"))


def test_importing_it_is_cheap() -> None:
    code = "import sys, enlace.data.distill; print([m for m in ('httpx', 'asyncio', 'anthropic') if m in sys.modules])"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "[]"
