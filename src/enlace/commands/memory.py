"""`enlace memory …`: look into the agent's memory, make it forget, take it elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from enlace import EnlaceError, console
from enlace.config.dotenv import load_dotenv
from enlace.config.load import load_config
from enlace.usage import App

if TYPE_CHECKING:
    from enlace.agent.memory import Episode, Memory

app = App("La memoria del asistente: lo que se dijo y lo que se encontró.")


@app.command("buscar")
def buscar(
    query: Annotated[str, typer.Argument(metavar="TEXTO", help="Palabras de lo que se busca.")],
    limit: Annotated[int, typer.Option(min=1, max=1000, metavar="ENTERO", help="Cuántos episodios, como mucho.")] = 10,
) -> None:
    """Enseña lo que la memoria recuerda de algo, lo más cercano primero."""
    episodes = _memory().recall(query, limit)
    _show(episodes)
    if not episodes:
        console.say("La memoria no sabe nada de eso.")


@app.command("olvidar")
def olvidar(
    query: Annotated[
        str, typer.Argument(metavar="TEXTO", help="Se olvidan los episodios que llevan todas estas palabras.")
    ] = "",
    id: Annotated[
        list[int] | None, typer.Option("--id", metavar="ENTERO", help="Este episodio; se puede repetir.")
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="Todos los episodios.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Sin preguntar.")] = False,
) -> None:
    """Borra episodios de verdad: tampoco quedan sus bytes en el archivo. Enseña antes cuáles, y pregunta."""
    if bool(query) + bool(id) + everything != 1:
        raise EnlaceError("Di qué se olvida, de una manera: palabras, --id o --all. Por ejemplo: olvidar Lucía")
    memory = _memory()
    if query:
        episodes = memory.find(query)
    else:
        episodes = [episode for episode in memory.episodes() if everything or episode.id in (id or [])]
    if not episodes:
        memory.forget([])  # the order may be a repetition, because somebody was in the way of the first
        console.say("La memoria no tiene eso: no hay nada que olvidar.")
        return
    _show(episodes)
    if not (yes or _agreed(f"¿Olvidar {_counted(len(episodes))}? No se puede deshacer. [s/N] ")):
        raise EnlaceError("No se ha olvidado nada.")
    console.say(f"Olvidado: {_counted(memory.forget([e.id for e in episodes if e.id is not None]))}.")


@app.command("exportar")
def exportar(
    path: Annotated[Path, typer.Argument(metavar="ARCHIVO", help="Archivo .jsonl que se crea.")],
) -> None:
    """Escribe toda la memoria en un archivo JSONL, un episodio por línea."""
    console.say(f"{path}: {_counted(_memory().export(path))}.")


@app.command("importar")
def importar(
    path: Annotated[Path, typer.Argument(metavar="ARCHIVO", help="Archivo .jsonl de enlace memory exportar.")],
) -> None:
    """Añade a la memoria los episodios de un archivo JSONL; los que ya están no se repiten."""
    read, new = _memory().import_(path)
    console.say(f"{path}: {_counted(read)}, {new} de ellos nuevos.")


def _memory() -> Memory:
    from enlace.agent.memory import Memory

    load_dotenv()
    return Memory.from_config(load_config().agent.memory)


def _show(episodes: Sequence[Episode]) -> None:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    if not episodes:
        return
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("id", justify="right")
    table.add_column("Cuándo")
    table.add_column("Quién")
    table.add_column("Qué", ratio=1)
    table.add_column("De dónde", overflow="fold", max_width=30)
    for e in episodes:
        when = datetime.fromtimestamp(e.time).strftime("%Y-%m-%d %H:%M")
        table.add_row(str(e.id), when, Text(e.speaker), Text(e.text), Text(e.source))
    console.console.print(table)


def _agreed(question: str) -> bool:
    try:
        return input(question).strip().lower() in ("s", "sí", "si")
    except (EOFError, UnicodeError):
        console.say("")
        return False


def _counted(number: int) -> str:
    return f"{number} episodio{'' if number == 1 else 's'}"
