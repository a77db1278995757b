"""Which raw answers are good: a batch that "succeeded" may hold truncated, refused or empty ones, paid all the same."""

from __future__ import annotations

from collections.abc import Iterable

from enlace.data.distill.job import Record

# An allow-list: the API adds new reasons over time, and an unknown one is no proof of a whole answer.
_GOOD_STOPS = {"end_turn", "stop_sequence"}

_REASONS = {
    "canceled": "el lote se canceló antes de llegar a esta petición",
    "expired": "el lote caducó antes de llegar a esta petición",
    "max_tokens": "respuesta cortada: no cabía en max_tokens",
    "refusal": "el profesor se negó a responder",
    "empty": "respuesta sin texto",
    "malformed": "respuesta que no se entiende",
    "missing": "el lote terminó sin traer esta respuesta (para descargarlo de nuevo, borra su archivo de raw/)",
    "sin_pasaje": "la petición no lleva un texto del que sacar la respuesta",
    "sin_respuesta": "la respuesta no está en el texto, o no está clara",
}


def judge(batch_id: str, custom_ids: list[str], rows: Iterable[Record]) -> tuple[list[Record], list[Record], int]:
    """Sort the raw answers of a batch into results and errors, one outcome per id of `custom_ids`, in their order.

    Answers pair by `custom_id`, whatever their order. Of repeated ones the first good one counts; a request without
    any gets an error of class "missing".

    Returns:
        The results, the errors, and how many rows were left out: repeated, or of requests not in `custom_ids`.
    """
    good: dict[str, Record] = {}
    bad: dict[str, Record] = {}
    wanted = set(custom_ids)
    strange = 0
    for row in rows:
        id = row.get("custom_id")
        if id in wanted and id not in good:
            outcome = {"custom_id": id, "batch_id": batch_id} | _outcome(row)
            strange += id in bad
            (bad if "class" in outcome else good).setdefault(id, outcome)
        else:
            strange += 1
    for id in wanted - good.keys() - bad.keys():
        bad[id] = {"custom_id": id, "batch_id": batch_id} | _error("missing")
    return [good[id] for id in custom_ids if id in good], [bad[id] for id in custom_ids if id not in good], strange


def _outcome(row: Record) -> Record:
    """The answer, or the error with its class, its reason and what it cost."""
    if row.get("type") != "succeeded":
        return _error(str(row.get("error_type") or row.get("type") or "malformed"), row.get("error_message"))
    text, stop_reason = row.get("text"), row.get("stop_reason")
    usage = row.get("usage") if isinstance(row.get("usage"), dict) else {}
    if stop_reason not in _GOOD_STOPS:
        return _error(str(stop_reason or "malformed"), row.get("stop_details")) | {"usage": usage}
    if not isinstance(text, str) or not text.strip():
        return _error("empty") | {"usage": usage}
    return {"text": text, "stop_reason": stop_reason, "usage": usage}


def _error(class_: str, detail: object = None) -> Record:
    reason = _REASONS.get(class_, class_)
    return {"class": class_, "reason": f"{reason}: {detail}" if detail else reason}
