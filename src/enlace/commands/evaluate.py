"""`enlace eval …`: compare models on the same questions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from enlace import console
from enlace.config.paths import project_root
from enlace.usage import App

app = App("La evaluación: comparar modelos con las mismas preguntas.")


@app.command("lm")
def lm(
    models: Annotated[
        list[Path], typer.Argument(metavar="CARPETA", help="Modelos en el formato de Hugging Face, el tuyo u otros.")
    ],
    tasks: Annotated[
        str, typer.Option(metavar="TAREAS", help="Otras tareas de lm-evaluation-harness, separadas por comas; con red.")
    ] = "",
    limit: Annotated[
        int | None, typer.Option(min=1, metavar="ENTERO", help="Solo los primeros ejemplos de cada tarea.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", metavar="FICHERO", help="Guarda también las medidas como JSON.")
    ] = None,
) -> None:
    """Mide modelos con lm-evaluation-harness en los mismos textos, pares y preguntas, sin red."""
    from rich.table import Table

    from enlace.durable import write_atomic
    from enlace.eval.harness import LIKELIHOOD, WRITTEN, check_model, run_harness

    names = [name.strip() for name in tasks.split(",") if name.strip()] or [*LIKELIHOOD, *WRITTEN]
    for model in models:
        check_model(model)
    results = {str(model): run_harness(project_root(), model.resolve(), names, limit) for model in models}
    table = Table("tarea", "medida", *results)
    rows = dict.fromkeys((task, metric) for found in results.values() for task in found for metric in found[task])
    for task, metric in rows:
        values = [found.get(task, {}).get(metric) for found in results.values()]
        table.add_row(task, metric, *("" if value is None else f"{value:.4f}" for value in values))
    console.console.print(table)
    if output:
        write_atomic(output, (json.dumps(results, ensure_ascii=False, indent=2) + "\n").encode())
