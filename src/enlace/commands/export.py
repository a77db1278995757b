"""`enlace export …`: take the trained model to other programs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from enlace import console
from enlace.config.load import load_config
from enlace.config.paths import project_root
from enlace.usage import App

app = App("Lleva el modelo entrenado a otros programas.")

ModelFolder = Annotated[
    Path | None, typer.Option("--model", metavar="CARPETA", help="Carpeta del modelo [por defecto: models/enlace].")
]
Force = Annotated[bool, typer.Option("--force", help="Reemplaza lo que se exportó ahí antes.")]


@app.command()
def hf(
    target: Annotated[Path, typer.Argument(metavar="CARPETA", help="Carpeta que se crea.")],
    model: ModelFolder = None,
    force: Force = False,
) -> None:
    """Una carpeta para Hugging Face transformers, vLLM y similares, con su ficha."""
    from enlace.export.huggingface import export_huggingface

    source = _source(model)
    export_huggingface(source, source.parent / "MODEL_CARD.md", target, load_config().agent, force=force)
    console.say(f'Escrita {target}. Ábrela con: AutoModelForCausalLM.from_pretrained("{target}")')


@app.command()
def gguf(
    target: Annotated[Path, typer.Argument(metavar="ARCHIVO", help="Archivo .gguf que se crea.")],
    dtype: Annotated[
        Literal["f32", "f16", "q8_0"],
        typer.Option(metavar="TIPO", help="f32 (exacto), f16 (la mitad) o q8_0 (la cuarta parte)."),
    ] = "f16",
    model: ModelFolder = None,
    force: Force = False,
) -> None:
    """Un archivo para llama.cpp, ollama y similares."""
    from enlace.export.gguf import export_gguf

    export_gguf(_source(model), target, dtype, force=force)
    size = target.stat().st_size / 1e6
    console.say(f"Escrito {target} ({size:.1f} MB, {dtype}). Úsalo con: llama-server -m {target}")


def _source(model: Path | None) -> Path:
    return model or project_root() / "models" / "enlace"
