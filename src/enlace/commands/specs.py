"""`enlace specs …`: make request specifications for a teacher out of the lists of data/specs/hogar."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from enlace import console
from enlace.config.paths import project_root
from enlace.usage import App

app = App(
    "Peticiones para el profesor: miles de preguntas de casa, distintas, hechas con las listas de data/specs/hogar."
)

Folder = Annotated[
    Path | None, typer.Option("--folder", metavar="CARPETA", help="Las listas; por defecto, data/specs/hogar.")
]
Seed = Annotated[int, typer.Option(metavar="ENTERO", help="La misma semilla hace las mismas peticiones.")]


@app.command("generate")
def generate(
    n: Annotated[int, typer.Option("--n", min=1, metavar="ENTERO", help="Cuántas peticiones.")] = 5000,
    out: Annotated[
        Path | None,
        typer.Option(metavar="ARCHIVO", help="Archivo .jsonl que se escribe; nada: data/specs/hogar.generado.jsonl."),
    ] = None,
    seed: Seed = 0,
    folder: Folder = None,
) -> None:
    """Escribe peticiones en un archivo .jsonl; los de data/specs se envían al profesor en distill-submit."""
    from enlace.data.distill.requests import especificaciones
    from enlace.data.spec_material import read_material
    from enlace.data.specs import generate
    from enlace.durable import write_atomic

    out = out or project_root() / "data" / "specs" / "hogar.generado.jsonl"
    requests = generate(read_material(_folder(folder)), n, seed)
    with console.progress() as bar:
        made = list(bar.track(requests, total=n, description="peticiones"))
    write_atomic(out, especificaciones(made))
    console.say(f"{out}: {n} peticiones distintas.")


@app.command("count")
def count(folder: Folder = None) -> None:
    """Dice cuántas peticiones distintas caben en las listas."""
    from enlace.data.spec_material import read_material
    from enlace.data.specs import count

    material = read_material(_folder(folder))
    wishes = [wish for topic in material.topics for _, wish in topic.wishes]
    console.say(
        f"{len(material.topics)} temas, {len(wishes)} cosas que pedir ({sum(len(w.variants) for w in wishes)} con sus "
        f"variantes) y {len(material.countries)} países: {count(material)} peticiones distintas."
    )


@app.command("sample")
def sample(
    n: Annotated[int, typer.Option("--n", min=1, metavar="ENTERO", help="Cuántas peticiones.")] = 10,
    seed: Seed = 0,
    folder: Folder = None,
) -> None:
    """Enseña unas peticiones, para leerlas antes de gastar nada."""
    from enlace.data.spec_material import read_material
    from enlace.data.specs import generate

    for peticion in generate(read_material(_folder(folder)), n, seed):
        where = f"{peticion.meta['topic']}, {peticion.meta['country']}, {peticion.meta['register']}"
        console.say(f"[{where}] {peticion.user}")


def _folder(folder: Path | None) -> Path:
    return folder if folder is not None else project_root() / "data" / "specs" / "hogar"
