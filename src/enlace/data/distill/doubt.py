"""Find out whether a batch was accepted when nobody heard the answer.

The batch API has neither names for batches nor idempotent submissions, so it is inferred. Before a submission the
newest batch of the account is noted (the fence). Afterwards, a batch that is newer than the fence, of the same size and
known to no job is ours; once it has ended, its answers prove it. Where none appears for a while, it was not accepted.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from enlace.data.distill.batches import Lotes
from enlace.data.distill.client import Cliente, ConLotesRecientes
from enlace.data.distill.errors import DistillError, EnvioEnDuda
from enlace.data.distill.job import Trabajo
from enlace.data.distill.records import Record
from enlace.data.distill.telling import named, tell

if TYPE_CHECKING:
    from enlace.config.schema import DistillConfig

# The API may not show a batch at once; a minute was seen.
_LOOKS = 3
_PAUSE_SECONDS = 60.0


def fence(cliente: Cliente) -> Record | None:
    """The newest batch of the teacher, ``{"id", "creado"}`` (nulls: it has none); None if it cannot tell."""
    if not isinstance(cliente, ConLotesRecientes):
        return None
    try:
        newest: Record = next(iter(cliente.lotes_recientes()), {})
    except DistillError:
        raise
    except Exception as error:
        raise DistillError(f"El profesor no contesta ({named(error)}). No se envió nada: repite más tarde.") from error
    return {"id": newest.get("id"), "creado": newest.get("creado")}


def settle_all(
    trabajo: Trabajo, cliente: Cliente, config: DistillConfig, dormir: Callable[[float], object]
) -> list[str]:
    """Settle what earlier runs left in doubt; returns the batches that turned out to be accepted."""
    found = (settle(trabajo, intento, cliente, config, dormir) for intento in trabajo.en_duda())
    return [id for id in found if id is not None]


def settle(
    trabajo: Trabajo, intento: Record, cliente: Cliente, config: DistillConfig, dormir: Callable[[float], object]
) -> str | None:
    """The id of a batch in doubt, now written down; None if it was not accepted, and its intent is forgotten.

    Raises:
        EnvioEnDuda: it cannot be told, now or at all; nothing was changed.
    """
    numero = intento["numero"]
    if intento["idempotente"]:
        trabajo.lotes.borrar_intento(numero)
        return None
    if not isinstance(cliente, ConLotesRecientes) or intento.get("valla") is None:
        raise in_doubt(trabajo, intento)
    grace = config.doubt_grace_minutes * 60
    tell(
        f"Se perdió la respuesta al envío {numero} ({len(intento['custom_ids'])} peticiones). Miro si el profesor lo "
        f"aceptó (hasta {config.doubt_grace_minutes:g} min)."
    )
    looks, waited = 0, 0.0
    while looks < _LOOKS or waited < grace:
        try:
            if id := _adopted(trabajo, intento, cliente):
                return id
            looks += 1
        except DistillError:
            raise
        except Exception as error:
            if waited >= grace:
                raise in_doubt(trabajo, intento, f"El profesor no contesta ({named(error)}).") from error
        pause = min(_PAUSE_SECONDS, grace / _LOOKS)
        dormir(pause)
        waited += pause or 1.0
    trabajo.anotar("no_aceptado", numero=numero, valla=intento["valla"], miradas=looks, segundos=round(waited))
    trabajo.lotes.borrar_intento(numero)
    tell(f"El profesor no llegó a aceptar el envío {numero}: se puede enviar otra vez.")
    return None


def resolve(trabajo: Trabajo, numero: int, batch_id: str | None) -> None:
    """What a person found out about batch number `numero`: it is `batch_id`, or (None) was not accepted."""
    with trabajo.bloqueo():
        if numero not in {intento["numero"] for intento in trabajo.en_duda()}:
            doubts = ", ".join(str(intento["numero"]) for intento in trabajo.en_duda()) or "ninguno"
            raise DistillError(f"{trabajo.carpeta}: el envío {numero} no está en duda. En duda: {doubts}.")
        if batch_id is not None and batch_id in _known(trabajo):
            raise DistillError(f"{batch_id}: ya está anotado como otro lote. Busca uno que no lo esté.")
        trabajo.anotar("resuelto", numero=numero, id=batch_id)
        if batch_id is None:
            trabajo.lotes.borrar_intento(numero)
        else:
            trabajo.lotes.escribir_recibo(numero, batch_id, provisional=True)


def strays(trabajo: Trabajo, cliente: Cliente) -> list[str]:
    """Batches of the account that no job here knows, newest first: somebody else's, or ours and lost; none if the
    teacher cannot tell."""
    if not isinstance(cliente, ConLotesRecientes):
        return []
    known = _known(trabajo)
    return [batch["id"] for batch in cliente.lotes_recientes() if batch["id"] not in known]


def in_doubt(trabajo: Trabajo, intento: Record, why: str = "") -> EnvioEnDuda:
    """The error that tells a person how to settle it by hand."""
    numero, n = intento["numero"], len(intento["custom_ids"])
    return EnvioEnDuda(
        f"{trabajo.intento_path(numero)}: se perdió la respuesta al envío de un lote de {n} peticiones; puede que el "
        f"profesor lo aceptara (y lo cobre). {why} No se envía nada más hasta saberlo. Mira en la consola del proveedor"
        f" si existe un lote de {n} peticiones que no esté en esta carpeta. Si existe: enlace distill resolve --intent "
        f"{numero} --batch-id <id del lote> (anota su id en {trabajo.recibo_path(numero)}). Si no existe: enlace "
        f"distill resolve --intent {numero} --not-submitted (borra {trabajo.intento_path(numero)}). Después repite."
    )


def _adopted(trabajo: Trabajo, intento: Record, cliente: Any) -> str | None:
    """Look once; the id of the batch if it was found and written down."""
    numero = intento["numero"]
    candidates = _candidates(trabajo, intento, cliente)
    ours = []
    open_ones = []
    for batch in candidates:
        verdict = _holds(cliente, batch, set(intento["custom_ids"]))
        if verdict is None:
            open_ones.append(batch["id"])
        elif verdict:
            ours.append(batch["id"])
        else:
            trabajo.anotar("ajeno", numero=numero, id=batch["id"])
    if not ours and len(open_ones) > 1:
        raise in_doubt(
            trabajo, intento, f"Podría ser cualquiera de {', '.join(open_ones)}: repite cuando acaben, o resuélvelo."
        )
    found = [*ours[::-1], *open_ones][:1]  # the candidates come newest first, and the first one sent is the intended
    if not found:
        return None
    trabajo.anotar("adoptado", numero=numero, id=found[0], comprobado=bool(ours))
    trabajo.lotes.escribir_recibo(numero, found[0], provisional=not ours)
    tell(f"El profesor sí aceptó el envío {numero}: es el lote {found[0]}. No se paga otra vez.")
    for twice in ours[::-1][1:]:
        trabajo.anotar("duplicado", numero=numero, id=twice)
        extra = trabajo.lotes.escribir_intento(intento["custom_ids"], max_tokens=intento.get("max_tokens"))
        trabajo.lotes.escribir_recibo(extra, twice)
        tell(f"aviso: el lote {twice} lleva las mismas peticiones: se pagó dos veces, y así se cuenta.")
    return found[0]


def _candidates(trabajo: Trabajo, intento: Record, cliente: ConLotesRecientes) -> list[Record]:
    """Batches newer than the fence, of the right size, known to no job; newest first."""
    valla, known = intento["valla"], _known(trabajo) | set(intento.get("ajenos", []))
    foreign = {row["id"] for row in trabajo.eventos("ajeno") if row["numero"] == intento["numero"]}
    found = []
    for batch in cliente.lotes_recientes():
        # The fence itself may have been deleted since: then its date stops the search.
        if batch["id"] == valla["id"] or (valla["creado"] and batch["creado"] < valla["creado"]):
            break
        if batch["peticiones"] == len(intento["custom_ids"]) and batch["id"] not in known | foreign:
            found.append(batch)
    return found


def _known(trabajo: Trabajo) -> set[str]:
    """The batches of this job and of the others beside it, which share the account."""
    return set().union(*(Lotes(folder).ids() for folder in Path(trabajo.raiz).glob("*/batches")))


def _holds(cliente: Cliente, batch: Record, custom_ids: set[str]) -> bool | None:
    """Whether the answers of a batch are of these requests; None if it has not ended, or does not say."""
    if not batch["ended"]:
        return None
    answered = {row.get("custom_id") for row in cliente.resultados(batch["id"])}
    return None if not answered else answered <= custom_ids
