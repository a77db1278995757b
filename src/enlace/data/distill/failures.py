"""The kinds of failure, and what a resend can do about each."""

from __future__ import annotations

from typing import Literal

from enlace.data.distill.records import Record

Group = Literal["transient", "account", "invalid", "truncated", "refusal", "objection", "unusable", "lost", "final"]

_GROUPS: dict[str, Group] = {
    "api_error": "transient",
    "overloaded_error": "transient",
    "timeout_error": "transient",
    "rate_limit_error": "transient",
    "errored": "transient",
    "expired": "transient",
    "canceled": "transient",
    "billing_error": "account",
    "permission_error": "account",
    "authentication_error": "account",
    "invalid_request_error": "invalid",
    "not_found_error": "invalid",
    "request_too_large": "invalid",
    "max_tokens": "truncated",
    "model_context_window_exceeded": "truncated",
    "refusal": "refusal",
    "missing": "lost",
    "results_lost": "lost",
    "sin_pasaje": "final",
    "sin_respuesta": "final",
}

_HINTS: dict[Group, str] = {
    "transient": "retry-failed",
    "account": "arregla la cuenta y luego retry-failed",
    "invalid": "fallaría igual; si aun así quieres: retry-failed --force",
    "truncated": "retry-failed --max-tokens N, con más que antes",
    "refusal": "retry-failed --include-refusals, aunque lo normal es que se niegue igual",
    "objection": "no se reenvía: lee las condiciones del proveedor",
    "unusable": "retry-failed --resample",
    "lost": "collect --refetch; si no vuelve: retry-failed --retry-missing",
    "final": "reenviarla no cambia nada",
}
_COSTS: dict[Group, str] = {
    "truncated": "se paga otra vez",
    "refusal": "se paga otra vez",
    "unusable": "se paga otra vez",
    "lost": "puede pagarse otra vez",
}


def hint(group: Group, *, paid: bool) -> str:
    """What to do about failures of a group; and, of a teacher that is paid, what that costs."""
    return f"{_HINTS[group]} ({_COSTS[group]})" if paid and group in _COSTS else _HINTS[group]


def group_of(row: Record) -> Group:
    """What kind of failure a line of errors.jsonl is: by its class, and by its words where the class misleads."""
    if row["class"] == "refusal" and row.get("category") == "frontier_llm":
        return "objection"
    if "usage" not in row and "credit balance" in str(row.get("reason", "")).lower():
        return "account"  # no credit has come as an invalid request
    known = _GROUPS.get(row["class"])
    if known is not None:
        return known
    # Something new: if it was paid for, an answer that cannot be used; else an error of the server.
    return "unusable" if "usage" in row or row["class"] in ("empty", "schema_invalid", "malformed") else "transient"
