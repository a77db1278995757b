"""Schemas that the batch API takes, found before anything is sent."""

from __future__ import annotations

from typing import Any

import pytest
from maestro import Maestro

from enlace.config.schema import DistillConfig
from enlace.data.distill import ClienteAnthropic, DistillError, Peticion, Trabajo, submit
from enlace.data.distill.schemas import misfit, unsupported


def an_object(**properties: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


TEXT = {"type": "string"}
GOOD = [
    an_object(a=TEXT, b={"type": "array", "items": an_object(c={"type": ["integer", "null"]}), "minItems": 1}),
    an_object(a={"anyOf": [TEXT, {"type": "number"}]}, b={"enum": ["x", "y"]}, c={"const": 3}),
    an_object(a={"$ref": "#/$defs/x"}) | {"$defs": {"x": an_object(d={"type": "string", "format": "date"})}},
    {"type": "array", "items": TEXT},
]
BAD = [
    (an_object(a={"type": "integer", "minimum": 1}), "minimum"),
    (an_object(a={"type": "string", "maxLength": 9}), "maxLength"),
    (an_object(a={"type": "array", "items": TEXT, "maxItems": 3}), "maxItems"),
    (an_object(a={"type": "array", "items": TEXT, "minItems": 2}), "minItems"),
    ({"type": "object", "properties": {}}, "additionalProperties"),
    (an_object(a={"type": "array", "items": {"type": "object", "properties": {}}}), r"\$\.properties\.a\.items"),
    (an_object(a={"type": "string", "format": "colour"}), "colour"),
    (an_object(a={"type": "texto"}), "texto"),
    (an_object(a={"$ref": "https://example.org/x"}), "ref"),
    (an_object(a={"$ref": "#/$defs/x"}) | {"$defs": {"x": an_object(b={"$ref": "#/$defs/x"})}}, "recursión"),
    (an_object(a={"$ref": "#"}), "recursión"),
    (an_object(**{f"p{i}": TEXT for i in range(25)}) | {"required": []}, "25 propiedades opcionales"),
    (an_object(**{f"p{i}": {"type": ["string", "null"]} for i in range(17)}), "17 uniones"),
]


@pytest.mark.parametrize("schema", GOOD)
def test_what_is_taken(schema: dict[str, Any]) -> None:
    assert unsupported(schema) == []


@pytest.mark.parametrize(("schema", "says"), BAD)
def test_what_is_not_taken_is_said_before_anything_is_paid(
    schema: dict[str, Any], says: str, trabajo: Trabajo, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Contado(Maestro):
        construir_params = ClienteAnthropic(DistillConfig()).construir_params

    maestro = Contado()
    with pytest.raises(DistillError, match=f"(?s)esquema no lo admite.*{says}.*No se ha enviado nada"):
        submit(trabajo, [Peticion("", "buena"), Peticion("", "u", schema=schema)], maestro, DistillConfig())
    assert maestro.enviados == []


def test_bounds_that_the_api_cannot_impose_are_checked_on_the_answer() -> None:
    schema = an_object(a={"type": "integer", "minimum": 1, "maximum": 9})
    assert misfit('{"a": 5}', schema) == ""
    assert misfit('{"a": 0}', schema).startswith("$.a: 0 is less than")
    assert misfit('{"a": NaN}', schema) == "no es JSON"
    assert "no se puede comprobar" in misfit("{}", {"$ref": "#/$defs/nada"})
    assert misfit("[" * 100_000, {}) == "no es JSON"
