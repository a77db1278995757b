"""JSON schemas: what an answer has to follow, and what the batch API can make a teacher follow.

The API takes part of JSON Schema. A request with more is refused by the server only when its whole batch has ended, so
it is looked for here, before sending; the bounds that the API cannot impose are checked on the answer.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, NoReturn

Schema = dict[str, Any]

_TYPES = {"object", "array", "string", "integer", "number", "boolean", "null"}
_KEYWORDS = {
    "$defs", "$ref", "additionalProperties", "allOf", "anyOf", "const", "default", "definitions", "description", "enum",
    "format", "items", "minItems", "properties", "required", "title", "type",
}  # fmt: skip
_FORMATS = {"date-time", "date", "time", "duration", "email", "hostname", "uri", "ipv4", "ipv6", "uuid"}
_MAX_OPTIONAL, _MAX_UNIONS = 24, 16


def misfit(text: str, schema: Schema) -> str:
    """Why an answer does not follow its schema, with the path to the fault; "" if it does."""
    from jsonschema import Draft202012Validator  # a tenth of a second, and few requests have a schema
    from jsonschema.exceptions import best_match

    try:
        answer = json.loads(text, parse_constant=_not_json)
    except (ValueError, RecursionError):
        return "no es JSON"
    try:
        error = best_match(Draft202012Validator(schema).iter_errors(answer))
    except Exception as broken:  # a schema that is none: the library raises many kinds
        return f"el esquema no se puede comprobar ({type(broken).__name__})"
    return f"{error.json_path}: {error.message}"[:300] if error else ""


def unsupported(schema: Schema) -> list[str]:
    """What in a schema the batch API would refuse, in Spanish; none if nothing."""
    found: list[str] = []
    optional = unions = 0
    for path, node in _nodes(schema, "$"):
        found += [f"{path}: «{key}» no se admite" for key in node if key not in _KEYWORDS]
        types = node.get("type", [])
        types = types if isinstance(types, list) else [types]
        found += [f"{path}: tipo desconocido «{name}»" for name in types if name not in _TYPES]
        if "object" in types or "properties" in node:
            if node.get("additionalProperties") is not False:
                found.append(f'{path}: falta "additionalProperties": false')
            optional += len(set(node.get("properties", {})) - set(node.get("required", [])))
        if node.get("minItems", 0) not in (0, 1):
            found.append(f"{path}: minItems solo puede ser 0 o 1")
        if "format" in node and node["format"] not in _FORMATS:
            found.append(f"{path}: formato desconocido «{node['format']}»")
        if "$ref" in node and not str(node["$ref"]).startswith("#/"):
            found.append(f"{path}: $ref solo puede apuntar dentro del propio esquema (#/$defs/...)")
        unions += len(types) > 1 or "anyOf" in node
    if optional > _MAX_OPTIONAL:
        found.append(f"hay {optional} propiedades opcionales y caben {_MAX_OPTIONAL}: ponlas en «required»")
    if unions > _MAX_UNIONS:
        found.append(f"hay {unions} uniones de tipos y caben {_MAX_UNIONS}")
    return found + ([_RECURSIVE] if _recursive(schema) else [])


_RECURSIVE = "el esquema se refiere a sí mismo (recursión), y no se admite"


def _nodes(node: Any, path: str) -> Iterator[tuple[str, Schema]]:
    """A schema and those inside it, with their paths."""
    if not isinstance(node, dict):
        return
    yield path, node
    for key in ("properties", "$defs", "definitions"):
        inner = node.get(key)
        for name, child in (inner if isinstance(inner, dict) else {}).items():
            yield from _nodes(child, f"{path}.{key}.{name}")
    for key in ("anyOf", "allOf"):
        inner = node.get(key)
        for i, child in enumerate(inner if isinstance(inner, list) else []):
            yield from _nodes(child, f"{path}.{key}[{i}]")
    yield from _nodes(node.get("items"), f"{path}.items")


def _recursive(schema: Schema) -> bool:
    """Whether some definition leads back to itself, or to the whole."""
    edges: dict[str, set[str]] = {"#": _refs({k: v for k, v in schema.items() if k not in ("$defs", "definitions")})}
    for key in ("$defs", "definitions"):
        inner = schema.get(key)
        for name, child in (inner if isinstance(inner, dict) else {}).items():
            edges[f"#/{key}/{name}"] = _refs(child)
    for start in edges:
        seen: set[str] = set()
        waiting = set(edges[start])
        while waiting:
            at = waiting.pop()
            if at == start:
                return True
            waiting |= edges.get(at, set()) - seen
            seen.add(at)
    return False


def _refs(node: Any) -> set[str]:
    if isinstance(node, list):
        return set().union(*map(_refs, node)) if node else set()
    if not isinstance(node, dict):
        return set()
    own = {str(node["$ref"])} if "$ref" in node else set()
    return own.union(*(_refs(child) for child in node.values()))


def _not_json(constant: str) -> NoReturn:
    raise ValueError(constant)
