"""`enlace runs` and `enlace watch`: what is being trained, what was cut, and how it goes."""

from __future__ import annotations

import textwrap
import time
from datetime import datetime
from typing import TYPE_CHECKING, Annotated

import typer

from enlace import EnlaceError, console
from enlace.config.dotenv import load_dotenv
from enlace.config.paths import project_root, runs_dir
from enlace.usage import App

if TYPE_CHECKING:
    from enlace.train.inventory import Run


def list_all() -> None:
    """Lista las ejecuciones: hasta dónde llegó cada una y cómo seguir."""
    from enlace.config.load import load_config
    from enlace.train.family import about
    from enlace.train.inventory import list_runs

    load_dotenv()
    config = load_config(project_root())
    now = about(model=config.model, train=config.train, mixture=config.data.mixture)
    runs = list_runs(runs_dir())
    for run in runs:
        state = "en marcha" if run.running else "terminada" if run.exported else "cortada"
        last = f"{datetime.fromtimestamp(run.touched):%Y-%m-%d %H:%M}"
        console.say(f"{run.folder.name}  {state:<9}  {_how_far(run)}  {last}  {run.bytes / 2**30:.2f} GiB")
        if run.status and run.status.environments > 1:
            console.say(f"    Entrenada en {run.status.environments} entornos: no es exacta bit a bit.")
        if run.steps is None and not run.running:
            console.say(
                f"    Su run.json falta o no se entiende: no se sabe seguir. Bórrala con: "
                f"enlace runs clean {run.folder.name}"
            )
        elif not run.running and not run.exported:
            different = run.differences(now)
            how = f"pon en params.yaml {'; '.join(different)} y repite" if different else "repite"
            console.say(f"    Para seguir, {how}: make train")
    if not runs:
        console.say(f"No hay ninguna en {runs_dir()}. Empieza una con: make train")


app = App("Las ejecuciones guardadas en .runs: hasta dónde llegó cada una y cómo seguir.", default=list_all)


@app.command()
def clean(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="EJECUCIÓN…", help="Las que borrar; sin nombres, las terminadas.")
    ] = None,
) -> None:
    """Borra las ejecuciones terminadas, o las que se nombran aunque no lo estén. El modelo exportado no se toca."""
    from enlace.train.inventory import find, list_runs, remove

    load_dotenv()
    runs = [find(runs_dir(), name) for name in names or []] or [r for r in list_runs(runs_dir()) if r.exported]
    for run in runs:
        remove(run)
        console.say(f"Borrada {run.folder.name} ({_how_far(run)}, {run.bytes / 2**30:.2f} GiB).")
    if not runs:
        console.say("No hay ninguna terminada que borrar.")


def watch(
    name: Annotated[str, typer.Argument(metavar="[EJECUCIÓN]", help="Principio de su nombre; sin él, la última.")] = "",
    every: Annotated[float, typer.Option(min=0.2, metavar="SEGUNDOS", help="Cada cuánto se mira.")] = 2.0,
) -> None:
    """Enseña las curvas de un entrenamiento en marcha, desde otra terminal. Ctrl-C deja de mirar, no de entrenar."""
    from rich.live import Live
    from rich.text import Text

    from enlace.train.inventory import find, list_runs

    load_dotenv()
    runs = list_runs(runs_dir())
    if not runs:
        raise EnlaceError(f"No hay ninguna ejecución en {runs_dir()}. Empieza una con: make train")
    run = find(runs_dir(), name) if name else runs[0]
    if not console.console.is_terminal:
        console.say(Text.from_ansi(_screen(run, 100, 30)).plain)
        return
    with Live(console=console.console, auto_refresh=False, screen=False) as live:
        try:
            while True:
                size = console.console.size
                live.update(Text.from_ansi(_screen(run, size.width, size.height - 1)), refresh=True)
                if not run.running:
                    return
                time.sleep(every)
                run = find(runs_dir(), run.folder.name)
        except KeyboardInterrupt:
            return


def _screen(run: Run, width: int, height: int) -> str:
    from enlace.train.progress import figures
    from enlace.train.terminal_plot import curves

    status = run.status
    head = f"{run.folder.name}  {'en marcha' if run.running else 'parada'}  "
    if status is None:
        return f"{head}todavía sin pasos"
    left = f"quedan {console.duration(status.seconds_left)}" if run.running and status.seconds_left is not None else ""
    lines = [f"{head}paso {status.step} de {status.steps}  {left}", *textwrap.wrap(figures(status), width)]
    return "\n".join([*lines, curves(run.log.records(), width, max(8, height - len(lines)))])


def _how_far(run: Run) -> str:
    return f"paso {run.saved} de {'?' if run.steps is None else run.steps}"
