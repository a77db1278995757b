"""Which raw answers are good: a batch that "succeeded" may hold truncated, refused or empty ones, paid all the same."""

from __future__ import annotations

from typing import Any

from enlace.data.distill.records import Record
from enlace.data.distill.schemas import misfit

TOKENS = ("input_tokens", "output_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")

# An allow-list: the API adds new reasons over time, and an unknown one is no proof of a whole answer.
_GOOD_STOPS = {"end_turn", "stop_sequence"}

_REASONS = {
    "canceled": "el lote se canceló antes de llegar a esta petición",
    "expired": "el lote caducó antes de llegar a esta petición",
    "max_tokens": "respuesta cortada: no cabía en max_tokens",
    "model_context_window_exceeded": "respuesta cortada: no cabía en el contexto del modelo",
    "refusal": "el profesor se negó a responder",
    "empty": "respuesta sin texto",
    "malformed": "respuesta que no se entiende",
    "schema_invalid": "la respuesta no sigue el esquema pedido",
    "missing": "el lote terminó sin traer esta respuesta (para descargarlo otra vez: enlace distill collect --refetch)",
    "results_lost": "el proveedor ya no guarda las respuestas de este lote",
    "sin_pasaje": "la petición no lleva un texto del que sacar la respuesta",
    "sin_respuesta": "la respuesta no está en el texto, o no está clara",
}


def is_good(outcome: Record) -> bool:
    """Whether an outcome is an answer to learn from."""
    return "class" not in outcome


def judge(row: Record, schema: Record | None) -> Record:
    """What a raw answer is worth.

    Args:
        row: as the protocol of `client` gives it.
        schema: what the answer has to follow, if anything.

    Returns:
        ``text``, ``stop_reason`` and ``usage`` of a good answer; or ``class`` and ``reason`` of an error, ``usage`` if
        it was paid for, and ``category`` of a refusal.
    """
    usage = {} if row.get("usage") is None else row["usage"]
    if not _counts(usage):
        return failure("malformed", "usage")
    paid = {"usage": usage} if row.get("type") == "succeeded" or usage else {}
    if row.get("type") != "succeeded":
        request_id = {"request_id": row["request_id"]} if row.get("request_id") else {}
        class_ = str(row.get("error_type") or row.get("type") or "malformed")
        return failure(class_, row.get("error_message")) | request_id | paid
    text, stop_reason = row.get("text"), row.get("stop_reason")
    if not isinstance(stop_reason, str):
        return failure("malformed") | paid
    if stop_reason == "refusal":
        category = _category(row.get("stop_details"))
        return failure("refusal", category) | {"category": category} | paid
    if stop_reason not in _GOOD_STOPS:
        return failure(stop_reason) | paid
    if not isinstance(text, str) or not text.strip():
        return failure("empty") | paid
    if schema is not None and (problem := misfit(text, schema)):
        return failure("schema_invalid", problem) | paid
    return {"text": text, "stop_reason": stop_reason, "usage": usage}


def failure(class_: str, detail: object = None) -> Record:
    """An error of a class, with its reason in words."""
    reason = _REASONS.get(class_, class_)
    return {"class": class_, "reason": f"{reason}: {detail}" if detail else reason}


def _counts(usage: Any) -> bool:
    """Whether the counts of tokens are numbers; the API leaves some null."""
    return isinstance(usage, dict) and all(
        isinstance(usage.get(name) or 0, int) and (usage.get(name) or 0) >= 0 for name in TOKENS
    )


def _category(details: Any) -> Any:
    """What the provider files a refusal under, null if it does not say."""
    return details.get("category") if isinstance(details, dict) else None
