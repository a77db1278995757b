"""`enlace remote …`: the server's half of scripts/remote.sh; it works at home too, from another terminal."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from enlace import console
from enlace.commands.config import values_of
from enlace.config.dotenv import load_dotenv
from enlace.config.load import load_config
from enlace.config.paths import project_root, runs_dir
from enlace.usage import App

app = App("El entrenamiento en marcha en esta máquina; lo usa scripts/remote.sh en el servidor.")
NOT_RUNNING = 3  # exit status of `status`, as systemctl's


@app.command("status")
def status() -> None:
    """Dice por dónde va el entrenamiento. Acaba con estado 3 si no hay ninguno en marcha."""
    from enlace.remote import cards, newest_run, saved, trainer_of
    from enlace.train.progress import figures, read_status

    load_dotenv()
    run = newest_run(runs_dir())
    pid = trainer_of(run) if run else None
    now = read_status(run) if run else None
    if run is None:
        console.say("No hay ningún entrenamiento empezado.")
    else:
        where = "aún sin ningún paso" if now is None else f"paso {now.step} de {now.steps}"
        console.say(
            f"Entrenamiento {run.name}, {f'en marcha (proceso {pid})' if pid else 'parado'}: {where}; "
            f"guardado, el {saved(run) or 0}."
        )
    if run and now:
        console.say(figures(now))
        if pid and now.updated < (run / ".lock").stat().st_mtime:  # of the process before
            console.say("Arrancando: todavía no hay datos de este proceso.")
        elif pid and now.seconds_left is not None:
            age = console.duration(max(0.0, time.time() - now.updated))
            console.say(f"Quedan unos {console.duration(now.seconds_left)}. Último dato, hace {age}.")
    for card in cards():
        console.say(
            f"{card.name}: {card.used_gib:.1f} de {card.total_gib:.1f} GiB, {card.celsius} °C, "
            f"ocupada al {card.busy_percent} %."
        )
    if pid is None:
        raise typer.Exit(NOT_RUNNING)


@app.command("stop")
def stop() -> None:
    """Pide al entrenamiento en marcha que guarde y acabe, y espera a que lo haga."""
    from enlace.remote import newest_run, trainer_of
    from enlace.remote import stop as stop_run

    load_dotenv()
    run = newest_run(runs_dir())
    if run is None or trainer_of(run) is None:
        console.say("No hay ningún entrenamiento en marcha.")
        return
    step = stop_run(run)
    if step is None:
        console.say("Parado antes de guardar ningún paso: al repetir, empieza de cero.")
    else:
        console.say(f"Parado y guardado en el paso {step}. Para continuar, repite la orden que lo empezó.")


@app.command("set")
def set_values(
    changes: Annotated[list[str], typer.Argument(metavar="CLAVE=VALOR…", help="Por ejemplo train.lr=1e-3.")],
) -> None:
    """Comprueba otros valores y los pone en params.yaml."""
    from enlace.remote import set_params

    values = values_of(changes)
    load_config(changes=values)
    set_params(project_root() / "params.yaml", values)


@app.command("pack")
def pack(
    out: Annotated[Path, typer.Argument(metavar="CARPETA", help="Donde dejarlo; lo que hubiera se borra.")],
    results: Annotated[bool, typer.Option("--results", help="También el modelo y las medidas.")] = False,
) -> None:
    """Junta lo que hay que llevarse a casa, con sus sumas de control; lo usa scripts/remote.sh."""
    from enlace.remote import pack as pack_run

    load_dotenv()
    console.say(f"{pack_run(project_root(), runs_dir(), out, results=results)} archivos.")
