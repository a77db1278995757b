"""Which raw answers are good: a batch that "succeeded" may hold truncated, refused or empty ones, paid all the same."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from enlace.data.distill.records import Record
from enlace.data.distill.usage import TOKENS

# An allow-list: the API adds new reasons over time, and an unknown one is no proof of a whole answer.
_GOOD_STOPS = {"end_turn", "stop_sequence"}

_REASONS = {
    "canceled": "el lote se canceló antes de llegar a esta petición",
    "expired": "el lote caducó antes de llegar a esta petición",
    "max_tokens": "respuesta cortada: no cabía en max_tokens",
    "refusal": "el profesor se negó a responder",
    "empty": "respuesta sin texto",
    "malformed": "respuesta que no se entiende",
    "schema_invalid": "la respuesta no sigue el esquema pedido",
    "missing": "el lote terminó sin traer esta respuesta (para descargarlo de nuevo, borra su archivo de raw/)",
    "sin_pasaje": "la petición no lleva un texto del que sacar la respuesta",
    "sin_respuesta": "la respuesta no está en el texto, o no está clara",
}


def judge(
    batch_id: str, custom_ids: list[str], rows: Iterable[Record], schemas: Mapping[str, Record]
) -> tuple[list[Record], list[Record], int]:
    """Sort the raw answers of a batch into results and errors, one outcome per id of `custom_ids`, in their order.

    Answers pair by `custom_id`, whatever their order. Of repeated ones the first good one counts; a request without
    any gets an error of class "missing".

    Args:
        schemas: what the answers of some requests have to follow, by `custom_id`.

    Returns:
        The results, the errors, and how many rows were left out: repeated, or of requests not in `custom_ids`.
    """
    good: dict[str, Record] = {}
    bad: dict[str, Record] = {}
    wanted = set(custom_ids)
    strange = 0
    for row in rows:
        id = row.get("custom_id")
        if isinstance(id, str) and id in wanted and id not in good:
            outcome = {"custom_id": id, "batch_id": batch_id} | _outcome(row, schemas.get(id))
            strange += id in bad
            (bad if "class" in outcome else good).setdefault(id, outcome)
        else:
            strange += 1
    for id in wanted - good.keys() - bad.keys():
        bad[id] = {"custom_id": id, "batch_id": batch_id} | _error("missing")
    return [good[id] for id in custom_ids if id in good], [bad[id] for id in custom_ids if id not in good], strange


def _outcome(row: Record, schema: Record | None) -> Record:
    """The answer, or the error with its class, its reason and what it cost."""
    usage = {} if row.get("usage") is None else row["usage"]
    if not _counts(usage):
        return _error("malformed", "usage")
    paid = {"usage": usage} if row.get("type") == "succeeded" or usage else {}
    if row.get("type") != "succeeded":
        return _error(str(row.get("error_type") or row.get("type") or "malformed"), row.get("error_message")) | paid
    text, stop_reason = row.get("text"), row.get("stop_reason")
    if not isinstance(stop_reason, str):
        return _error("malformed") | paid
    if stop_reason == "refusal":
        category = _category(row.get("stop_details"))
        return _error("refusal", category) | {"category": category} | paid
    if stop_reason not in _GOOD_STOPS:
        return _error(stop_reason) | paid
    if not isinstance(text, str) or not text.strip():
        return _error("empty") | paid
    if schema is not None and (problem := _misfit(text, schema)):
        return _error("schema_invalid", problem) | paid
    return {"text": text, "stop_reason": stop_reason, "usage": usage}


def _error(class_: str, detail: object = None) -> Record:
    reason = _REASONS.get(class_, class_)
    return {"class": class_, "reason": f"{reason}: {detail}" if detail else reason}


def _counts(usage: Any) -> bool:
    """Whether the counts of tokens are numbers; the API leaves some null."""
    return isinstance(usage, dict) and all(isinstance(usage.get(name) or 0, int) for name in TOKENS)


def _category(details: Any) -> Any:
    """What the provider files a refusal under, null if it does not say."""
    return details.get("category") if isinstance(details, dict) else None


def _misfit(text: str, schema: Record) -> str:
    """Why the answer is not of the schema, as far as a look at its outermost level tells; "" if nothing is wrong."""
    try:
        answer = json.loads(text)
    except (ValueError, RecursionError):
        return "no es JSON"
    listed = schema.get("required")
    required = [key for key in listed if isinstance(key, str)] if isinstance(listed, list) else []
    if not isinstance(answer, dict):
        return "no es un objeto" if required or schema.get("type") == "object" else ""
    lacking = [key for key in required if key not in answer]
    return f"falta {', '.join(lacking)}" if lacking else ""
