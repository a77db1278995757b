"""Send again what failed and a resend can mend, by class of failure; what costs again has to be asked for."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING

from enlace.data.distill.client import Cliente
from enlace.data.distill.errors import DistillError
from enlace.data.distill.failures import Group, group_of
from enlace.data.distill.job import Trabajo
from enlace.data.distill.records import Record
from enlace.data.distill.requests import Peticion
from enlace.data.distill.sending import resume, send

if TYPE_CHECKING:
    from enlace.config.schema import DistillConfig


@dataclass(frozen=True)
class Retry:
    """Which failures to send again, besides those that cost nothing and may pass by themselves."""

    force: bool = False
    max_tokens: int | None = None
    include_refusals: bool = False
    resample: bool = False
    retry_missing: bool = False

    def takes(self, group: Group) -> bool:
        """Whether failures of a group are sent."""
        return {
            "transient": True,
            "account": True,
            "invalid": self.force,
            "truncated": self.max_tokens is not None,
            "refusal": self.include_refusals,
            "objection": False,
            "unusable": self.resample,
            "lost": self.retry_missing,
            "final": False,
        }[group]


def classes(trabajo: Trabajo) -> dict[str, tuple[Group, int]]:
    """The classes of the failures of a job, with their group and how many there are, the most frequent first."""
    counts: Counter[tuple[str, Group]] = Counter((row["class"], group_of(row)) for row in trabajo.leer_errores())
    return {class_: (group, n) for (class_, group), n in counts.most_common()}


def retry_failed(
    trabajo: Trabajo,
    cliente: Cliente,
    config: DistillConfig,
    retry: Retry = Retry(),  # frozen
    *,
    max_usd: Decimal | None = None,
    rebind: bool = False,
    dormir: Callable[[float], object] = time.sleep,
) -> list[str]:
    """Send again the failures that `retry` takes and that were sent fewer than `config.max_attempts` times.

    An answer that comes later clears the error; what the failed attempts cost stays counted. Returns and raises as
    `submit`.
    """
    with trabajo.bloqueo():
        found = resume(trabajo, cliente, config, rebind=rebind, dormir=dormir)
        rows = list(candidates(trabajo, config, retry))
        chosen = {row["custom_id"] for row in rows}
        if not chosen:
            return found
        peticiones: list[Peticion] = [p for p in trabajo.recorrer_peticiones() if p.custom_id in chosen]
        cambios: Record = {} if retry.max_tokens is None else {"max_tokens": retry.max_tokens}
        trabajo.anotar("reenvio", clases=Counter(row["class"] for row in rows))
        return found + send(trabajo, peticiones, cliente, config, cambios=cambios, max_usd=max_usd, dormir=dormir)


def candidates(trabajo: Trabajo, config: DistillConfig, retry: Retry) -> Iterator[Record]:
    """The errors that would be sent again; raises DistillError if `retry.max_tokens` is too small to mend any."""
    if retry.max_tokens is not None and retry.max_tokens < config.max_tokens:
        raise _too_small(retry.max_tokens, config.max_tokens)
    attempts: Counter[str] = Counter()
    open_: set[str] = set()
    limits: dict[str, int] = {}
    for lote in trabajo.leer_lotes():
        limits[lote["id"]] = lote["max_tokens"] or config.max_tokens
        attempts.update(lote["custom_ids"])
        if not lote["recogido"]:
            open_.update(lote["custom_ids"])
    cut: list[int] = []
    mended = 0
    for row in trabajo.leer_errores():
        id = row["custom_id"]
        group = group_of(row)
        # What the account stopped was not tried: it has no limit, or mending the account would not help.
        left = group == "account" or attempts[id] < config.max_attempts
        if id not in open_ and left and retry.takes(group):
            if group == "truncated" and retry.max_tokens is not None:
                before = limits.get(row["batch_id"], config.max_tokens)
                if retry.max_tokens <= before:  # it would be cut again, and paid for
                    cut.append(before)
                    continue
                mended += 1
            yield row
    if cut and not mended and retry.max_tokens is not None:
        raise _too_small(retry.max_tokens, min(cut))


def _too_small(max_tokens: int, before: int) -> DistillError:
    return DistillError(f"--max-tokens {max_tokens}: tiene que ser más que {before}, lo de antes.")
