"""`enlace distill …`: ask the teacher by hand, step by step, paying for each answer once.

Exit status, for scripts: 0 done, 1 an error, 2 a command line that makes no sense, 3 another process is in the job, 4
still running when the wait ended, 5 a submission in doubt, 6 done but some requests failed (those that no resend can
change, as the embedded teacher's, do not count), 7 over the budget.
"""

from __future__ import annotations

import os
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from enlace import EnlaceError, console
from enlace.config.dotenv import load_dotenv
from enlace.config.load import load_distill_config
from enlace.config.paths import ledger_dir, project_root
from enlace.usage import App

if TYPE_CHECKING:
    from enlace.config.schema import DistillConfig
    from enlace.data.distill import Peticion, Trabajo
    from enlace.data.distill.client import Cliente

FAILURES = 6
_WARN_DAYS = 7

app = App(
    "Pregunta al profesor por lotes y recoge sus respuestas: cada una se paga una sola vez. Estado de salida: 0 hecho, "
    "1 error, 2 orden mal escrita, 3 otro proceso está en el trabajo, 4 sigue en marcha, 5 hay un envío en duda, "
    "6 hecho con peticiones fallidas (sin contar las que reenviar no cambia), 7 el presupuesto no alcanza."
)

Teacher = Annotated[str, typer.Option(metavar="PROFESOR", help="Fichero de configs/distill; nada: el de params.yaml.")]
Specs = Annotated[
    list[Path] | None,
    typer.Option(metavar="FICHERO", help="Peticiones en .jsonl (se puede repetir); nada: las del proyecto."),
]
MaxUsd = Annotated[
    str, typer.Option(metavar="USD", help="Límite de todo el trabajo, lo gastado incluido; nada: DISTILL_BUDGET_USD.")
]


@app.command("plan")
def plan(specs: Specs = None, teacher: Teacher = "") -> None:
    """Dice cuánto se enviaría y cuánto costaría. No hace falta clave, y no envía nada."""
    from enlace.data.distill.planning import plan as make_plan

    config, trabajo, cliente = _open(teacher)
    made = make_plan(trabajo, _requests(specs, config), cliente, config)
    measured = "medido en este trabajo" if made.measured else "supuesto: la mitad de max_tokens"
    console.say(
        f"Por enviar: {made.requests} peticiones en {made.batches} lotes ({made.bytes / 1e6:.1f} MB); otras "
        f"{made.repeated} ya se enviaron o están repetidas."
    )
    console.say(f"Respuesta media: {made.output_tokens:.0f} tokens ({measured}).")
    _tell_doubts(trabajo)
    if config.teacher != "anthropic":
        console.say("No cobra.")
        return
    console.say(f"Coste esperado, sin contar la caché: {_usd(made.expected)}; como mucho: {_usd(made.most)}.")
    if config.prices is None:
        console.say(f"El precio de {config.model} es desconocido: añádelo en configs/distill/prices/.")
    elif config.prices.taken:
        console.say(f"Precios de {config.model} del {config.prices.taken}, con el descuento por lotes.")


@app.command("submit")
def submit(
    specs: Specs = None,
    teacher: Teacher = "",
    max_usd: MaxUsd = "",
    rebind: Annotated[
        bool, typer.Option("--rebind", help="Seguir el trabajo con otro modelo, otros parámetros u otra cuenta.")
    ] = False,
) -> None:
    """Envía las peticiones que nunca se enviaron."""
    from enlace.data.distill import submit as send

    config, trabajo, cliente = _open(teacher)
    peticiones = trabajo.guardar_peticiones(_requests(specs, config))
    limit = _limit(max_usd, trabajo, trabajo.sin_enviar(peticiones), config)
    sent = send(trabajo, peticiones, cliente, config, max_usd=limit, rebind=rebind)
    console.say(f"{len(sent)} lotes enviados. Para recoger las respuestas: {_order('collect', teacher)}")


@app.command("collect")
def collect(
    teacher: Teacher = "",
    max_wait_hours: Annotated[
        float | None, typer.Option(min=0, metavar="HORAS", help="Cuánto esperar; nada: lo de configs/distill.")
    ] = None,
    refetch: Annotated[
        bool, typer.Option("--refetch", help="Descargar otra vez los lotes a los que les faltan respuestas.")
    ] = False,
) -> None:
    """Espera a los lotes y guarda las respuestas. Se puede interrumpir y repetir."""
    from enlace.data.distill import collect as gather

    config, trabajo, cliente = _open(teacher)
    if max_wait_hours is not None:
        config = config.model_copy(update={"max_wait_hours": max_wait_hours})
    counts = gather(trabajo, cliente, config, refetch=refetch)
    console.say(f"{counts['ok']} respuestas y {counts['error']} errores nuevos; {counts['ya_estaban']} ya estaban.")
    _tell_doubts(trabajo)
    if _tell_failures(trabajo, config):
        raise typer.Exit(FAILURES)


@app.command("status")
def status(
    teacher: Teacher = "",
    offline: Annotated[bool, typer.Option("--offline", help="Solo lo que hay en el disco: sin clave ni red.")] = False,
) -> None:
    """Dice cómo va cada lote."""
    from enlace.data.distill import status as ask

    config, trabajo, cliente = _open(teacher)
    lotes = trabajo.leer_lotes() if offline else ask(trabajo, cliente)
    for lote in lotes:
        here = "recogido" if lote["recogido"] else "por recoger"
        n = len(lote["custom_ids"]) if offline else lote["peticiones"]
        state = "" if offline else f", {lote['processing_status']}"
        days = None if offline or lote["recogido"] else lote["dias"]
        left = "" if days is None else f", quedan {days} días para recogerlo"
        console.say(f"{lote['id']}: {n} peticiones{state}, {here}{left}")
        if days is not None and days < _WARN_DAYS:
            console.say("  aviso: recógelo pronto; después el proveedor borra las respuestas, y están pagadas.")
        if not offline and "error" in lote:
            console.say(f"  {lote['error']}")
    if not lotes:
        console.say(f"{trabajo.carpeta}: no hay lotes.")
    if lotes and not offline and (unknown := _strays(trabajo, cliente)):
        shown = ", ".join(unknown[:5])
        console.say(
            f"aviso: la cuenta tiene {len(unknown)} lotes que no son de ningún trabajo de aquí ({shown}). Si nadie más "
            "la usa, son envíos que se dieron por no aceptados: míralos en la consola del proveedor."
        )
    _tell_doubts(trabajo)
    _tell_failures(trabajo, config)


@app.command("retry-failed")
def retry_failed(
    teacher: Teacher = "",
    max_usd: MaxUsd = "",
    force: Annotated[bool, typer.Option("--force", help="También las que el profesor dio por mal formadas.")] = False,
    max_tokens: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="También las cortadas, con este límite, mayor que el de antes."),
    ] = None,
    include_refusals: Annotated[
        bool, typer.Option("--include-refusals", help="También las que se negó a responder (no frontier_llm).")
    ] = False,
    resample: Annotated[
        bool, typer.Option("--resample", help="También las vacías o que no siguen su esquema: se pagan otra vez.")
    ] = False,
    retry_missing: Annotated[
        bool, typer.Option("--retry-missing", help="También las que no llegaron: puede que se paguen otra vez.")
    ] = False,
    rebind: Annotated[
        bool, typer.Option("--rebind", help="Seguir el trabajo con otro modelo, otros parámetros u otra cuenta.")
    ] = False,
) -> None:
    """Reenvía los fallos que un reenvío puede arreglar; los que cuestan otra vez, solo si se piden."""
    from enlace.data.distill import Retry
    from enlace.data.distill import retry_failed as send
    from enlace.data.distill.retry import candidates

    config, trabajo, cliente = _open(teacher)
    retry = Retry(force, max_tokens, include_refusals, resample, retry_missing)
    chosen = {row["custom_id"] for row in candidates(trabajo, config, retry)}
    again = [peticion for peticion in trabajo.recorrer_peticiones() if peticion.custom_id in chosen] if chosen else []
    longest = config if max_tokens is None else config.model_copy(update={"max_tokens": max_tokens})
    limit = _limit(max_usd, trabajo, again, longest)
    sent = send(trabajo, cliente, config, retry, max_usd=limit, rebind=rebind)
    console.say(f"{len(chosen)} peticiones reenviadas en {len(sent)} lotes.")
    if not chosen:
        _tell_failures(trabajo, config)


@app.command("cancel")
def cancel(
    ids: Annotated[
        list[str] | None, typer.Argument(metavar="LOTE…", help="Nada: todos los que no están recogidos.")
    ] = None,
    teacher: Teacher = "",
) -> None:
    """Pide parar lotes. Lo que ya corrió se paga y se recoge con collect."""
    _, trabajo, cliente = _open(teacher)
    with trabajo.bloqueo():
        open_ = [lote["id"] for lote in trabajo.leer_lotes() if not lote["recogido"]]
        if unknown := set(ids or []) - set(open_):
            raise EnlaceError(
                f"{', '.join(sorted(unknown))}: no es un lote por recoger. Míralos: enlace distill status"
            )
        for id in ids or open_:
            cliente.cancelar(id)
            trabajo.anotar("cancelado", id=id)
            console.say(f"{id}: se pidió pararlo")
    if not (ids or open_):
        console.say("No hay lotes por recoger.")
        return
    console.say(f"Recoge lo que ya estaba hecho: {_order('collect', teacher)}")


@app.command("resolve")
def resolve(
    teacher: Teacher = "",
    intent: Annotated[int | None, typer.Option(min=1, metavar="N", help="Número del envío en duda.")] = None,
    batch_id: Annotated[str, typer.Option("--batch-id", metavar="LOTE", help="Es este lote.")] = "",
    not_submitted: Annotated[bool, typer.Option("--not-submitted", help="No se llegó a enviar.")] = False,
    objection: Annotated[
        bool, typer.Option("--objection", help="El proveedor permite entrenar con sus respuestas: lo has comprobado.")
    ] = False,
) -> None:
    """Dice lo que solo tú puedes saber: qué fue de un envío en duda, o que tienes permiso para seguir."""
    from enlace.data.distill import resolve as settle
    from enlace.data.distill.sending import allow_objected

    _, trabajo, _ = _open(teacher)
    if objection:
        console.say(
            f"{allow_objected(trabajo)} negativas (frontier_llm) dadas por resueltas: se puede seguir enviando."
        )
        return
    if intent is None or bool(batch_id) == not_submitted:
        raise EnlaceError("Di cuál y qué fue de él: --intent N y --batch-id LOTE, o --intent N y --not-submitted.")
    settle(trabajo, intent, batch_id or None)
    after = f"Recógelo: {_order('collect', teacher)}" if batch_id else "Ya se puede enviar otra vez."
    console.say(f"Anotado. {after}")


@app.command("usage")
def usage(teacher: Teacher = "") -> None:
    """Dice lo gastado: tokens, dólares, y lo que la caché ahorró o costó."""
    from enlace.data.distill import resumen_de_uso

    config, trabajo, _ = _open(teacher)
    uso = resumen_de_uso(trabajo, config)
    console.say(f"{uso['resultados']} respuestas buenas: {_text_usd(uso['usd_exacto'])}")
    console.say(f"{uso['descartadas']} pagadas que no sirven: {_text_usd(uso['usd_descartado'])}")
    prices = f"precios de {config.model}: {uso['precios']}" if config.teacher == "anthropic" else "no cobra"
    console.say(f"En total: {_text_usd(uso['usd_total'])} ({prices})")
    console.say(
        f"Tokens de las buenas: {uso['input_tokens']} de entrada, {uso['output_tokens']} de salida, "
        f"{uso['cache_read_input_tokens']} leídos de la caché, {uso['cache_creation_input_tokens']} escritos en ella"
    )
    if uso["cache_aciertos"] is not None:
        saved = uso["usd_ahorrado_por_cache"]
        console.say(f"Caché: {100 * uso['cache_aciertos']:.0f} % de aciertos; ahorró {_text_usd(saved)}")
        if saved.startswith("-"):
            console.say("aviso: la caché costó más de lo que ahorró. Prueba cache_ttl: 5m, o none, en configs/distill.")
    if uso["sin_descuento"]:
        console.say(f"aviso: {uso['sin_descuento']} respuestas no se cobraron como lote, y van sin descuento.")


@app.command("export")
def export(
    out: Annotated[Path, typer.Option(metavar="FICHERO", help="Dónde dejar las conversaciones (.jsonl).")],
    specs: Specs = None,
    teacher: Teacher = "",
) -> None:
    """Rehace el conjunto de datos desde las respuestas guardadas, en el orden de las peticiones. No cuesta nada."""
    from enlace.data.distill import leer_especificaciones
    from enlace.data.distill.collecting import rebuild
    from enlace.data.distill.exporting import export as write

    _, trabajo, cliente = _open(teacher)
    rebuild(trabajo, cliente)
    chosen = (p for path in specs for p in leer_especificaciones(path)) if specs else trabajo.recorrer_peticiones()
    made = write(trabajo, chosen, out, None)
    console.say(f"{out}: {made.answered} conversaciones; {made.failed} fallidas y {made.pending} por contestar, fuera.")


@app.command("verify")
def verify(teacher: Teacher = "") -> None:
    """Repasa el trabajo entero, byte a byte, y rehace lo que se deriva de las respuestas."""
    from enlace.data.distill.verifying import verify as check

    _, trabajo, cliente = _open(teacher)
    problems = list(check(trabajo, cliente))
    for problem in problems:
        console.say(problem)
    if problems:
        raise typer.Exit(1)
    console.say(f"{trabajo.carpeta}: todo en orden.")


def _open(teacher: str) -> tuple[DistillConfig, Trabajo, Cliente]:
    from enlace.data.distill.teachers import open_job

    load_dotenv()
    config = load_distill_config(teacher=teacher or None)
    return (config, *open_job(config, ledger_dir()))


def _requests(specs: list[Path] | None, config: DistillConfig) -> list[Peticion]:
    from enlace.data.distill import leer_especificaciones
    from enlace.data.distill.sources import project_requests

    if specs:
        return [peticion for path in specs for peticion in leer_especificaciones(path)]
    return list(project_requests(config.questions_per_document, project_root()))


def _limit(max_usd: str, trabajo: Trabajo, new: list[Peticion], config: DistillConfig) -> Decimal | None:
    """What may be spent on the job in all; None without limit, where nothing costs anything.

    Raises PresupuestoAgotado: no limit was given, and that of the environment does not suffice for all of it.
    """
    from enlace.data.distill.usage import require_budget, usd_of

    if config.teacher != "anthropic":
        return None
    if max_usd:
        return usd_of(max_usd, "--max-usd")
    allowed = os.environ.get("DISTILL_BUDGET_USD", "0")
    require_budget(trabajo, new, config, allowed)
    return usd_of(allowed, "DISTILL_BUDGET_USD")


def _strays(trabajo: Trabajo, cliente: Cliente) -> list[str]:
    from enlace.data.distill.doubt import strays

    try:
        return strays(trabajo, cliente)
    except Exception:  # a teacher that does not answer has been told of already
        return []


def _tell_doubts(trabajo: Trabajo) -> None:
    for intento in trabajo.en_duda():
        console.say(f"Envío {intento['numero']} en duda ({len(intento['custom_ids'])} peticiones): repite submit.")


def _tell_failures(trabajo: Trabajo, config: DistillConfig) -> bool:
    """The failures by class, and what to do about each; whether there are any that a resend may mend."""
    from enlace.data.distill.failures import hint
    from enlace.data.distill.retry import classes

    found = classes(trabajo)
    if found:
        console.say(f"Sin respuesta buena (motivos en {trabajo.errores_path}):")
    for class_, (group, n) in found.items():
        console.say(f"  {n} {class_}: {hint(group, paid=config.teacher == 'anthropic')}")
    return any(group != "final" for group, _ in found.values())


def _order(name: str, teacher: str) -> str:
    """A command to give next, for the same teacher."""
    return f"enlace distill {name}" + (f" --teacher {teacher}" if teacher else "")


def _usd(amount: Decimal | None) -> str:
    return "desconocido" if amount is None else f"{amount:.2f} USD"


def _text_usd(exact: str) -> str:
    return exact if exact == "desconocido" else f"{exact} USD"
