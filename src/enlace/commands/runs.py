"""`enlace runs` and `enlace watch`: what is being trained, what was cut, and how it goes."""

from __future__ import annotations

import json
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
    from enlace.config.schema import Config
    from enlace.data.shards import Shards
    from enlace.train.family import Note
    from enlace.train.inventory import Run


def list_all() -> None:
    """Lista las ejecuciones: hasta dónde llegó cada una y cómo seguir."""
    from enlace.config.load import load_config
    from enlace.train.family import obstacle
    from enlace.train.inventory import list_runs

    load_dotenv()
    config = load_config(project_root())
    shards = _shards()
    runs = list_runs(runs_dir())
    for run in runs:
        state = "en marcha" if run.running else "terminada" if run.exported else "cortada"
        last = f"{datetime.fromtimestamp(run.touched):%Y-%m-%d %H:%M}"
        console.say(f"{run.folder.name}  {state:<9}  {_how_far(run)}  {last}  {run.bytes / 2**30:.2f} GiB")
        if run.status and run.status.environments > 1:
            console.say(f"    Entrenada en {run.status.environments} entornos: no es exacta bit a bit.")
        if run.note is None and not run.running:
            console.say(
                f"    Su run.json falta o no se entiende: no se sabe seguir. Bórrala con: "
                f"enlace runs clean {run.folder.name}"
            )
        elif run.note and not run.running and not run.exported:
            if shards and (what := obstacle(run.note, shards)):
                console.say(
                    f"    No puede seguir con {what}: make train empezaría otra de cero. Vuelve al commit y a los "
                    f"datos con que empezó, o bórrala con: enlace runs clean {run.folder.name}"
                )
            else:
                console.say(f"    Para seguir, {_changes(run.note, config)}repite: make train")
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
    from enlace.train.finished import sweep
    from enlace.train.inventory import find, list_runs, remove

    load_dotenv()
    sweep(runs_dir())
    named = {run.folder: run for run in (find(runs_dir(), name) for name in names or [])}
    runs = list(named.values()) or [run for run in list_runs(runs_dir()) if run.exported]
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


def _shards() -> Shards | None:
    """Those of the project; None where they are yet to be built."""
    from enlace.data.shards import open_shards

    try:
        return open_shards(project_root() / "data" / "shards", verify=False)
    except EnlaceError:
        return None


def _changes(note: Note, config: Config) -> str:
    """What to write, and where, for the project to be that of a run: "pon en params.yaml train.lr=0.02 (ahora…) y "."""
    from enlace.config.load import model_shapes
    from enlace.train.family import about, deciding

    then, now = note.deciding(), deciding(about(model=config.model, train=config.train, mixture=config.data.mixture))
    params, model = "params.yaml", str(config.layers.path("model"))
    told: dict[str, list[str]] = {params: [], model: []}
    for key, value in then.items():
        if value != now.get(key):
            file = model if key.startswith("model.") else params
            shown = key.removeprefix("model.").replace("mixture.", "data.mixture.")
            told[file].append(f"{shown}={_yaml(value)} (ahora {_yaml(now.get(key))})")
    shapes = model_shapes(project_root()).items()
    if told[model] and (names := [name for name, shape in shapes if about(model=shape).items() <= then.items()]):
        told[model] = []
        told[params].insert(0, f"model={names[0]} (ahora {config.layers.model})")
    parts = [f"en {file} {'; '.join(values)}" for file, values in told.items() if values]
    return f"pon {' y '.join(parts)} y " if parts else ""


def _yaml(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _how_far(run: Run) -> str:
    return f"paso {run.saved} de {'?' if run.steps is None else run.steps}"
