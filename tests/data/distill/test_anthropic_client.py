"""The real SDK against a small server on this machine: no key, no network."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from typing import Any

import pytest
from servidor import Servidor

from enlace.config.schema import DistillConfig
from enlace.data.distill import (
    ClienteAnthropic,
    DistillError,
    EnvioRechazado,
    Peticion,
    Trabajo,
    collect,
    resumen_de_uso,
    submit,
)

anthropic = pytest.importorskip("anthropic")


def message(text: str, stop_reason: str = "end_turn") -> dict[str, Any]:
    content = [{"type": "thinking", "thinking": "mmm", "signature": "x"}, {"type": "text", "text": text}]
    usage = {"input_tokens": 7, "output_tokens": 3, "cache_read_input_tokens": None}
    return {"type": "message", "content": content, "stop_reason": stop_reason, "usage": usage, "stop_details": None}


def test_params() -> None:
    params = ClienteAnthropic(DistillConfig(max_tokens=300)).construir_params(Peticion("Sé breve.", "¿Hola?"))
    assert params == {
        "model": "claude-opus-5",
        "max_tokens": 300,
        "system": [{"type": "text", "text": "Sé breve.", "cache_control": {"type": "ephemeral"}}],
        "messages": [{"role": "user", "content": "¿Hola?"}],
    }
    schema = {"type": "object", "properties": {}, "additionalProperties": False}
    params = ClienteAnthropic().construir_params(Peticion("", "u", schema=schema))
    assert "system" not in params
    assert params["output_config"] == {"format": {"type": "json_schema", "schema": schema}}


def test_from_request_to_result(cliente: ClienteAnthropic, servidor: Servidor, trabajo: Trabajo) -> None:
    peticiones = [Peticion("Sé breve.", f"pregunta {i}") for i in range(4)]
    ids = [peticion.custom_id for peticion in peticiones]
    assert submit(trabajo, peticiones, cliente, DistillConfig()) == ["msgbatch_01"]
    assert [request["custom_id"] for request in servidor.posts[0]["requests"]] == ids
    assert servidor.posts[0]["requests"][0]["params"] == cliente.construir_params(peticiones[0])
    assert servidor.state()["credentials"] == ["clave-de-prueba"]

    error = {"type": "error", "error": {"type": "invalid_request_error", "message": "no cabe"}, "request_id": None}
    lines = [
        {"custom_id": ids[3], "result": {"type": "expired"}},
        {"custom_id": ids[1], "result": {"type": "succeeded", "message": message("a medias", "max_tokens")}},
        {"custom_id": ids[2], "result": {"type": "errored", "error": error}},
        {"custom_id": ids[0], "result": {"type": "succeeded", "message": message("uno\u2028dos\x85")}},
    ]
    # CRLF, a blank line and no newline at the end, all seen in the wild.
    servidor.faults(
        results={"body": (b"\r\n\n".join(json.dumps(line, ensure_ascii=False).encode() for line in lines)).decode()}
    )
    assert collect(trabajo, cliente, DistillConfig()) == {"ok": 1, "error": 3, "ya_estaban": 0}
    assert [row["text"] for row in trabajo.leer_resultados()] == ["uno\u2028dos\x85"]
    assert {row["custom_id"]: row["class"] for row in trabajo.leer_errores()} == {
        ids[1]: "max_tokens",
        ids[2]: "invalid_request_error",
        ids[3]: "expired",
    }
    assert "no cabe" in trabajo.errores_path.read_text(encoding="utf-8")
    assert resumen_de_uso(trabajo, DistillConfig())["usd_exacto"] == "0.000055"


def test_estado(cliente: ClienteAnthropic, trabajo: Trabajo) -> None:
    directives = ("", "", "[[errored:api_error]]", "[[expired]]")
    (id,) = submit(trabajo, [Peticion("s", f"{i} {d}") for i, d in enumerate(directives)], cliente, DistillConfig())
    assert cliente.estado(id) == {
        "processing_status": "ended",
        "succeeded": 2,
        "errored": 1,
        "processing": 0,
        "canceled": 0,
        "expired": 1,
        "archivado": False,
    }


@pytest.mark.parametrize("status", [400, 401, 403, 404, 413, 422, 429])
def test_a_refused_submission_may_be_repeated(
    status: int, cliente: ClienteAnthropic, servidor: Servidor, trabajo: Trabajo
) -> None:
    servidor.faults(create={"reply": status})
    with pytest.raises(EnvioRechazado, match=f"{status}.*No se ha pagado nada") as caught:
        submit(trabajo, [Peticion("s", "u")], cliente, DistillConfig())
    assert "clave-de-prueba" not in str(caught.value)
    servidor.faults(create={})
    assert submit(trabajo, [Peticion("s", "u")], cliente, DistillConfig()) == ["msgbatch_01"]
    assert len(servidor.posts) == 2


def test_no_connection_is_no_doubt(
    cliente: ClienteAnthropic, trabajo: Trabajo, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        monkeypatch.setenv("ANTHROPIC_BASE_URL", f"http://127.0.0.1:{free.getsockname()[1]}")
    with pytest.raises(DistillError, match=r"No hay conexión|no contesta.*No se envió nada"):
        submit(trabajo, [Peticion("s", "u")], cliente, DistillConfig())
    assert trabajo.en_duda() == []


def test_a_download_cut_in_half(cliente: ClienteAnthropic, servidor: Servidor, trabajo: Trabajo) -> None:
    peticion = Peticion("s", "u")
    submit(trabajo, [peticion], cliente, DistillConfig())
    line = {"custom_id": peticion.custom_id, "result": {"type": "succeeded", "message": message("entera")}}
    whole = json.dumps(line).encode()
    servidor.faults(results={"body": (whole[:-20]).decode()})
    with pytest.raises(DistillError, match="Repite"):
        collect(trabajo, cliente, DistillConfig())
    servidor.faults(results={"body": (whole).decode()})
    assert collect(trabajo, cliente, DistillConfig())["ok"] == 1


@pytest.mark.parametrize("key", [None, ""])
def test_without_a_credential_it_says_what_to_do(
    key: str | None, cliente: ClienteAnthropic, servidor: Servidor, trabajo: Trabajo, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ANTHROPIC_API_KEY")
    if key is not None:
        monkeypatch.setenv("ANTHROPIC_API_KEY", key)
    with pytest.raises(DistillError, match=r"ANTHROPIC_API_KEY.*\.env"):
        submit(trabajo, [Peticion("s", "u")], cliente, DistillConfig())
    assert trabajo.en_duda() == [] and servidor.posts == []
    with pytest.raises(DistillError, match="ANTHROPIC_API_KEY") as caught:
        cliente.estado("x")
    assert not isinstance(caught.value, EnvioRechazado)  # nothing was being sent


STRANGE = [
    {"type": "errored", "error": None},
    {"type": "errored", "error": {"error": None}},
    {"type": "succeeded", "message": None},
    {"type": "succeeded", "message": message("") | {"content": None}},
    {"type": "succeeded", "message": message("") | {"content": [{"type": "text"}]}},
    {"type": "succeeded", "message": message("") | {"content": [{"type": "text", "text": None}]}},
    {"type": "succeeded", "message": message("") | {"content": ["hola"]}},
    {"type": "succeeded", "message": message("hola") | {"usage": {"input_tokens": "siete"}}},
    {},
    None,
    "succeeded",
]


@pytest.mark.parametrize("result", STRANGE)
def test_a_strange_line_spoils_no_other(
    result: Any, cliente: ClienteAnthropic, servidor: Servidor, trabajo: Trabajo
) -> None:
    odd, fine = peticiones = [Peticion("s", "uno"), Peticion("s", "dos")]
    submit(trabajo, peticiones, cliente, DistillConfig())
    lines: list[Any] = [
        {"custom_id": odd.custom_id, "result": result},
        {"custom_id": [fine.custom_id], "result": {"type": "expired"}},
        [1],
        {"custom_id": fine.custom_id, "result": {"type": "succeeded", "message": message("bien")}},
    ]
    servidor.faults(results={"body": (b"\n".join(json.dumps(line).encode() for line in lines)).decode()})
    assert collect(trabajo, cliente, DistillConfig()) == {"ok": 1, "error": 1, "ya_estaban": 0}
    assert [(row["custom_id"], row["class"]) for row in trabajo.leer_errores()] == [(odd.custom_id, "malformed")]


def test_what_a_strange_answer_cost_counts(cliente: ClienteAnthropic, servidor: Servidor, trabajo: Trabajo) -> None:
    peticion = Peticion("s", "u")
    submit(trabajo, [peticion], cliente, DistillConfig())
    strange = {"type": "succeeded", "message": message("") | {"content": None}}
    servidor.faults(
        results={"body": (json.dumps({"custom_id": peticion.custom_id, "result": strange}).encode()).decode()}
    )
    collect(trabajo, cliente, DistillConfig())
    assert resumen_de_uso(trabajo, DistillConfig())["usd_descartado"] == "0.000055"


def test_the_sdk_never_retries(cliente: ClienteAnthropic, servidor: Servidor) -> None:
    servidor.faults(retrieve={"reply": 500})
    for ask in (cliente.estado, lambda id: list(cliente.resultados(id))):
        before = servidor.state()["calls"].get("retrieve", 0)
        with pytest.raises(anthropic.InternalServerError):
            ask("x")
        assert servidor.state()["calls"]["retrieve"] == before + 1


@pytest.mark.parametrize("status", [401, 403])
def test_a_key_that_is_not_accepted_is_not_waited_for(
    status: int, cliente: ClienteAnthropic, servidor: Servidor
) -> None:
    servidor.faults(retrieve={"reply": status}, results={"reply": status})
    for ask in (cliente.estado, lambda id: list(cliente.resultados(id))):
        with pytest.raises(DistillError, match="clave de Anthropic"):
            ask("x")


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("ANTHROPIC_API_KEY", "clave\n"),
        ("ANTHROPIC_BASE_URL", "ftp://127.0.0.1"),
        ("ANTHROPIC_BASE_URL", "127.0.0.1:80"),
        ("ANTHROPIC_BASE_URL", "http://casa:puerto"),
    ],
)
def test_what_never_left_is_no_doubt(
    variable: str, value: str, cliente: ClienteAnthropic, trabajo: Trabajo, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(DistillError, match=variable):
        submit(trabajo, [Peticion("s", "u")], cliente, DistillConfig())
    assert trabajo.en_duda() == []
    with pytest.raises(DistillError, match=variable):
        cliente.estado("x")


def test_without_the_package_it_says_what_to_do() -> None:
    program = (
        "import sys; sys.modules['anthropic'] = None\n"
        "from enlace.data.distill import ClienteAnthropic\n"
        "ClienteAnthropic().crear([])"
    )
    environment = {"ANTHROPIC_API_KEY": "x", "PATH": ""}
    out = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, env=environment)
    assert "pip install -e '.[distill]'" in out.stderr
