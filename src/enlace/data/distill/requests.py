"""A request to the teacher: what it says, its identity, and how it lies in a .jsonl file."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from enlace import EnlaceError
from enlace.data.distill.errors import DistillError
from enlace.data.jsonl import json_lines

# Part of every identity. Raise it only if the same request has to be bought again.
_IDENTITY_VERSION = 1
_KEYS = {"system", "user", "meta", "schema"}


@dataclass(frozen=True)
class Peticion:
    """One request: a value, compared by value.

    Attributes:
        system: instructions shared by many requests; may be empty.
        user: what is asked.
        meta: anything the project wants to know about the request later (JSON); it is not sent.
        schema: JSON schema that the answer has to follow, if any.

    Raises:
        DistillError: nothing is asked, or something in it cannot be written as JSON and read back the same.
    """

    system: str
    user: str
    meta: dict[str, Any] = field(default_factory=dict)
    schema: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.system, str) or not isinstance(self.user, str):
            raise DistillError("una petición lleva `system` y `user`, y los dos son textos")
        if not self.user.strip():
            raise DistillError("`user` está vacío: escribe ahí la pregunta")
        if not isinstance(self.meta, dict) or not isinstance(self.schema, dict | None):
            raise DistillError("en una petición `meta` y `schema` son objetos JSON {...} (o no están)")
        for name in ("system", "user", "meta", "schema"):
            _require_json(name, getattr(self, name))

    @property
    def custom_id(self) -> str:
        """Hash of what is sent, not of `meta`: the same in any process, on any machine, for any order of keys."""
        sent = {"v": _IDENTITY_VERSION, "system": self.system, "user": self.user, "schema": self.schema}
        canonical = json.dumps(sent, ensure_ascii=False, sort_keys=True, separators=(",", ":"), allow_nan=False)
        # 64 characters are the limit of the batch API; 48 hexadecimal digits are 192 bits.
        return f"v{_IDENTITY_VERSION}-{hashlib.sha256(canonical.encode()).hexdigest()[:48]}"

    def __hash__(self) -> int:
        return hash((self.system, self.user))  # the fields that can be hashed


def leer_especificaciones(path: Path) -> list[Peticion]:
    """Read the requests of a .jsonl file, one ``{"system", "user", "meta"?, "schema"?}`` a line.

    Blank lines are ignored. Lines end at the byte 0x0A only, so a text may contain U+2028 and its like.

    Raises:
        DistillError: the file is missing or a line is wrong; the message contains ``path:line:``.
    """
    try:
        return [_peticion(record, where) for where, record in json_lines(Path(path))]
    except DistillError:
        raise
    except EnlaceError as error:
        raise DistillError(str(error)) from error


def especificaciones(peticiones: Iterable[Peticion]) -> bytes:
    """The bytes that `leer_especificaciones` reads back as these requests."""
    return b"".join(json.dumps(como_registro(p), ensure_ascii=False).encode() + b"\n" for p in peticiones)


def como_registro(peticion: Peticion) -> dict[str, Any]:
    """One line of a file of requests; `schema` only where there is one."""
    schema = {} if peticion.schema is None else {"schema": peticion.schema}
    return {"system": peticion.system, "user": peticion.user, "meta": peticion.meta} | schema


def sin_repetidas(peticiones: Iterable[Peticion]) -> dict[str, Peticion]:
    """The requests by `custom_id`, the first of each kept, in order."""
    unique: dict[str, Peticion] = {}
    for peticion in peticiones:
        unique.setdefault(peticion.custom_id, peticion)
    return unique


def _peticion(record: dict[str, Any], where: str) -> Peticion:
    if not {"system", "user"} <= record.keys() <= _KEYS:
        raise DistillError(f'{where}: se esperaba {{"system": ..., "user": ..., "meta"?, "schema"?}} y nada más.')
    try:
        return Peticion(record["system"], record["user"], record.get("meta", {}), record.get("schema"))
    except DistillError as error:
        raise DistillError(f"{where}: {error}. Corrige esa línea o quítala.") from error


def _require_json(name: str, value: object) -> None:
    """Found here, one request at a time; found when sending, the whole batch would fail without naming the culprit."""
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False)
        text.encode("utf-8")
    except (TypeError, ValueError, RecursionError) as error:  # UnicodeEncodeError is a ValueError
        raise DistillError(f"`{name}` no se puede enviar como JSON en UTF-8 ({error})") from error
    if not isinstance(value, str) and json.loads(text) != value:
        raise DistillError(f"`{name}` no es JSON: usa listas y claves de texto")
