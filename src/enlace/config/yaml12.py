"""YAML read as YAML 1.2, the way DVC reads it.

PyYAML implements YAML 1.1, where ``1e-3`` is a string, ``on`` is true, ``010`` is eight and ``1:30`` is ninety.
A learning rate that silently becomes a string (or means one thing to DVC and another to the trainer) costs days,
so the implicit types are replaced by the core schema of YAML 1.2 (https://yaml.org/spec/1.2.2/#103-core-schema).
Duplicate keys, which PyYAML accepts in silence, are errors.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

from enlace import EnlaceError


class _Loader(yaml.SafeLoader):
    """SafeLoader with the implicit types of the YAML 1.2 core schema."""


_Loader.yaml_implicit_resolvers = {}
for _tag, _pattern, _first in (
    ("null", r"^(?:~|null|Null|NULL|)$", ["~", "n", "N", ""]),
    ("bool", r"^(?:true|True|TRUE|false|False|FALSE)$", list("tTfF")),
    ("int", r"^(?:[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+)$", list("-+0123456789")),
    (
        "float",
        r"^(?:[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))$",
        list("-+.0123456789"),
    ),
):
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(_pattern), _first)


def _construct_int(loader: _Loader, node: yaml.ScalarNode) -> int:
    text = str(loader.construct_scalar(node))
    return int(text, {"0o": 8, "0x": 16}.get(text[:2], 10))


def _construct_float(loader: _Loader, node: yaml.ScalarNode) -> float:
    text = str(loader.construct_scalar(node)).lower()
    return float(text.replace(".inf", "inf").replace(".nan", "nan"))


def _construct_mapping(loader: _Loader, node: yaml.MappingNode) -> dict[Any, Any]:
    seen: set[Any] = set()
    for key_node, _ in node.value:
        key = key_node.value
        if key in seen:
            raise yaml.constructor.ConstructorError(None, None, f"clave repetida: {key}", key_node.start_mark)
        seen.add(key)
    return loader.construct_mapping(node, deep=True)


_Loader.add_constructor("tag:yaml.org,2002:int", _construct_int)
_Loader.add_constructor("tag:yaml.org,2002:float", _construct_float)
_Loader.add_constructor("tag:yaml.org,2002:map", _construct_mapping)


def loads(text: str, name: str = "<texto>") -> Any:
    """Parse one YAML 1.2 document.

    Args:
        text: the document.
        name: what to call it in an error message.

    Raises:
        EnlaceError: the text is not YAML, or repeats a key; the message names ``name`` and the line.
    """
    try:
        return yaml.load(text, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise EnlaceError(f"{name}:{line}: no es YAML válido ({error.problem}). Corrige esa línea.") from error
    except yaml.YAMLError as error:
        raise EnlaceError(f"{name}: no es YAML válido ({error}).") from error


def load(path: Path) -> Any:
    """Parse the YAML 1.2 file at ``path``; raises `EnlaceError` when it is missing, not UTF-8 or not YAML."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise EnlaceError(f"{path}: no existe ese archivo.") from None
    except (OSError, UnicodeDecodeError) as error:
        raise EnlaceError(f"{path}: no se puede leer ({error}).") from error
    return loads(text, str(path))
