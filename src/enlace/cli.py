"""The `enlace` command: one module of `commands` per group. They import what a command needs inside it, so that
`--help` and `config` answer at once.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import typer

from enlace import EnlaceError, console
from enlace.commands import (
    config,
    data,
    distill,
    evaluate,
    export,
    memory,
    plan,
    remote,
    runs,
    search,
    serve,
    specs,
    talk,
)
from enlace.config.load import load_config
from enlace.config.paths import project_root
from enlace.usage import App

app = App("ENLACE: un modelo de lenguaje propio, en español, entrenado en casa.")
app.add_typer(config.app, name="config")
app.add_typer(export.app, name="export")
app.add_typer(specs.app, name="specs")
app.add_typer(distill.app, name="distill")
app.add_typer(runs.app, name="runs")
app.command()(runs.watch)
app.add_typer(evaluate.app, name="eval")
app.add_typer(data.app, name="data")
app.command()(talk.chat)
app.command()(talk.ask)
app.command()(serve.serve)
app.command()(search.search)
app.add_typer(memory.app, name="memory")
app.add_typer(remote.app, name="remote")
app.command()(plan.plan)


@app.command()
def corpus() -> None:
    """Dice si los textos propios cambiaron desde que se leyeron, y acaba entonces con estado 1."""
    from enlace.config.schema import FolderSource
    from enlace.data.corpus import listing

    root = project_root()
    noted = root / "data/raw/sources.json"
    if not noted.exists():
        return
    read = {source["name"]: source.get("listing") for source in json.loads(noted.read_bytes())}
    for source in load_config(root).corpus.sources:
        if isinstance(source, FolderSource) and read.get(source.name, "") not in ("", listing(source, root)):
            console.say(f"{source.path} cambió desde que se leyó: se lee otra vez.")
            raise typer.Exit(1)


@app.command()
def summary() -> None:
    """Enseña las medidas y unas muestras del modelo entrenado."""
    reports = project_root() / "reports"
    metrics, samples = (
        _read_report(reports / "metrics.json", "bits_per_byte", "grounded", "pairs"),
        _read_report(reports / "samples.json", "answers", "continuations"),
    )
    console.say("")
    for source, value in metrics["bits_per_byte"].items():
        console.say(f"Bits por byte en texto reservado ({source}): {value:.3f}")
    if grounded := metrics["grounded"]:
        console.say(
            f"Preguntas sobre un texto reservado ({grounded['questions']}): elige la respuesta buena de 4 en el "
            f"{100 * grounded['choice_accuracy']:.0f} % (intervalo {100 * grounded['choice_accuracy_low']:.0f} a "
            f"{100 * grounded['choice_accuracy_high']:.0f}; azar {100 * grounded['choice_chance']:.0f} %)"
            + (f", F1 {grounded['f1']:.2f} (azar {grounded['f1_chance']:.2f})" if "f1" in grounded else "")
        )
    if tools := metrics.get("tools"):
        console.say(
            f"Búsquedas ({tools['questions']} preguntas): busca cuando hace falta el "
            f"{100 * tools['called_when_needed']:.0f} %, con una consulta útil el {100 * tools['usable_query']:.0f} %; "
            f"busca sin que haga falta el {100 * tools['called_needlessly']:.0f} %"
        )
    pairs = metrics["pairs"]
    console.say(f"Gramática: acierta el {100 * pairs['accuracy']:.0f} % de los pares mínimos (azar 50 %)")
    for sample in samples["answers"]:
        console.say(f"\n{sample['question']}\n→ {sample['answer']}")
    for sample in samples["continuations"]:
        console.say(f"\n{sample['prompt']}→{sample['text']}")
    console.say(
        "\nEl informe entero: reports/informe.html. Ficha del modelo: models/MODEL_CARD.md. Habla con él: make chat"
    )


def _read_report(path: Path, *keys: str) -> dict[str, Any]:
    try:
        content = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise EnlaceError(f"{path}: todavía no hay medidas. Entrena y evalúa con: make repro") from None
    except ValueError as error:
        raise EnlaceError(f"{path}: no es JSON válido. Rehazlo con: dvc repro -f -s eval") from error
    if not (isinstance(content, dict) and all(key in content for key in keys)):
        raise EnlaceError(f"{path}: no son las medidas de un modelo. Rehazlas con: dvc repro -f -s eval")
    return dict(content)


def main() -> None:
    """Entry point: errors that a person can act on are messages, not tracebacks."""
    console.run_main(app.run)


if __name__ == "__main__":
    main()
