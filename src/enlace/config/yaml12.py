"""YAML read as YAML 1.2, the way DVC reads it.

PyYAML implements YAML 1.1, where ``1e-3`` is a string, ``on`` is true, ``010`` is eight and ``1:30`` is ninety.
A learning rate that silently becomes a string (or means one thing to DVC and another to the trainer) costs days,
so the implicit types are replaced by the core schema of YAML 1.2 (https://yaml.org/spec/1.2.2/#103-core-schema).
Duplicate keys, which PyYAML accepts in silence, are errors; so are keys that are not text, and whole numbers that do
not fit 64 bits.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

from enlace import EnlaceError


class _Loader(yaml.SafeLoader):
    """SafeLoader with the implicit types of the YAML 1.2 core schema."""

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        """What `node` stands for; a value that its type cannot hold (``!!bool quizá``) is an error with its line."""
        try:
            return super().construct_object(node, deep)
        except (ValueError, KeyError, AttributeError) as error:
            raise _error("valor imposible", node) from error


class _Problem(yaml.constructor.ConstructorError):
    """What is wrong, said here and so in Spanish; what PyYAML says by itself is English."""


def _error(problem: str, node: yaml.Node) -> _Problem:
    return _Problem(None, None, problem, node.start_mark)


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
    # Python refuses to read thousands of digits.
    value = int(text, {"0o": 8, "0x": 16}.get(text[:2], 10)) if len(text) < 100 else 2**63
    if not -(2**63) <= value < 2**63:
        raise _error("número demasiado grande", node)
    return value


def _construct_float(loader: _Loader, node: yaml.ScalarNode) -> float:
    text = str(loader.construct_scalar(node)).lower()
    return float(text.replace(".inf", "inf").replace(".nan", "nan"))


def _construct_mapping(loader: _Loader, node: yaml.MappingNode) -> dict[Any, Any]:
    seen: set[str] = set()
    for key_node, _ in node.value:
        if key_node.tag != "tag:yaml.org,2002:str":
            raise _error("una clave tiene que ser un texto; si lo es, ponla entre comillas", key_node)
        if key_node.value in seen:
            raise _error(f"clave repetida: {key_node.value}", key_node)
        seen.add(key_node.value)
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
        EnlaceError: the text is not YAML, or has a key twice, a key that is not text or a number too large; the
            message names ``name`` and the line.
    """
    try:
        return yaml.load(text, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        problem = error.problem if isinstance(error, _Problem) else "sangría, comillas, comas o dos puntos"
        raise EnlaceError(f"{name}:{line}: no es YAML válido ({problem}). Corrige esa línea.") from error
    except yaml.YAMLError as error:
        raise EnlaceError(f"{name}: no es YAML válido (tiene caracteres de control).") from error
    except RecursionError:
        raise EnlaceError(f"{name}: no es YAML válido (demasiados niveles, unos dentro de otros).") from None


def load(path: Path) -> Any:
    """Parse the YAML 1.2 file at ``path``; raises `EnlaceError` when it is missing, not UTF-8 or not YAML."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise EnlaceError(f"{path}: no existe ese archivo.") from None
    except OSError as error:
        raise EnlaceError(f"{path}: no se puede leer: mira que sea un archivo y que tengas permiso.") from error
    except UnicodeDecodeError as error:
        raise EnlaceError(f"{path}: no es UTF-8; guarda el archivo en UTF-8.") from error
    return loads(text, str(path))
