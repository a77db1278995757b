"""The `enlace` command. Imports what a command needs inside it, so that `--help` and `config` answer at once."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from enlace import EnlaceError, console
from enlace.config.load import choose_hardware, choose_preset, flatten, hardware_profiles, load_config, preset_path
from enlace.config.paths import project_root
from enlace.usage import App

if TYPE_CHECKING:
    from enlace.agent.loop import Chat

app = App("ENLACE: un modelo de lenguaje propio, en español, entrenado en casa.")
config_app = App("La configuración: params.yaml y configs/.")
app.add_typer(config_app, name="config")

ModelFolder = Annotated[
    Path | None, typer.Option("--model", metavar="CARPETA", help="Carpeta del modelo [por defecto: models/enlace].")
]
MaxNewTokens = Annotated[
    int | None, typer.Option(min=1, max=2**31, metavar="ENTERO", help="Longitud máxima de la respuesta, en tokens.")
]
Temperature = Annotated[
    float | None, typer.Option(min=0, metavar="NÚMERO", help="0 da siempre la palabra más probable.")
]
TopP = Annotated[
    float | None,
    typer.Option(
        min=0.01, max=1, metavar="NÚMERO", help="Probabilidad que se reparten las palabras candidatas, hasta 1."
    ),
]
Seed = Annotated[
    int, typer.Option(min=0, max=2**63 - 1, metavar="ENTERO", help="La misma semilla da la misma respuesta.")
]


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


@config_app.command("check")
def config_check(
    changes: Annotated[
        list[str] | None, typer.Argument(metavar="CLAVE=VALOR…", help="Otros valores, por ejemplo train.lr=1e-3.")
    ] = None,
) -> None:
    """Comprueba la configuración y dice qué se entrenaría."""
    from enlace.config import yaml12
    from enlace.config.rules import GIB, estimate_memory

    given = [change.partition("=") for change in changes or []]
    if wrong := [key for key, sign, _ in given if not sign]:
        raise EnlaceError(f"«{wrong[0]}» no es CLAVE=VALOR. Por ejemplo: train.lr=1e-3")
    config = load_config(changes={key: yaml12.loads(value, key) for key, _, value in given})
    vocab_size, train = config.data.shards.vocab_size, config.train
    console.say(
        f"Bien: modelo {config.layers.model} ({config.model.n_parameters(vocab_size) / 1e6:.1f} M de parámetros), "
        f"{train.steps} pasos de {train.batch_tokens} tokens ({train.steps * train.batch_tokens / 1e6:.1f} M), "
        f"perfil {config.layers.hardware}, unos {estimate_memory(config) / GIB:.1f} GiB."
    )


@config_app.command("show")
def config_show() -> None:
    """Enseña la configuración entera, con todas las capas resueltas."""
    for key, value in flatten(load_config()).items():
        console.say(f"{key} = {_shown(value)}")


@config_app.command("diff")
def config_diff(
    preset: Annotated[str, typer.Argument(metavar="PRESET", help="Preset con el que comparar.")] = "demo",
) -> None:
    """Compara la configuración entera con la de un preset, clave por clave."""
    root = project_root()
    theirs = flatten(load_config(root, params=preset_path(root, preset)))
    ours = flatten(load_config(root))
    different = [key for key in {**theirs, **ours} if ours.get(key) != theirs.get(key)]
    for key in different:
        console.say(f"{key}: {_shown(theirs.get(key))} -> {_shown(ours.get(key))}")
    if not different:
        console.say(f"Igual que el preset «{preset}».")


@config_app.command("preset")
def config_preset(
    name: Annotated[str, typer.Argument(metavar="PRESET", help="Nombre, por ejemplo hogar-100m.")] = "",
) -> None:
    """Pone un preset en params.yaml; lo que había queda en params.anterior.yaml."""
    root = project_root()
    choose_preset(root, name)
    console.say(f"params.yaml es ahora el preset «{name}»; el anterior está en params.anterior.yaml. Míralo: git diff")


@config_app.command("hardware")
def config_hardware(
    name: Annotated[str, typer.Argument(metavar="PERFIL", help="Nombre del perfil, por ejemplo rtx2060.")],
) -> None:
    """Comprueba que un perfil existe y sirve en esta máquina, y lo pone en params.yaml."""
    from enlace.train.backends import check, this_machine

    root = project_root()
    config = load_config(root, hardware=name)
    check(name, config.hardware, hardware_profiles(root), this_machine())
    choose_hardware(root, name)
    console.say(f"params.yaml: hardware: {name}")


@app.command()
def summary() -> None:
    """Enseña las medidas y unas muestras del modelo entrenado."""
    reports = project_root() / "reports"
    metrics, samples = (
        _read_report(reports / "metrics.json", "bits_per_byte", "grounded"),
        _read_report(reports / "samples.json", "answers", "continuations"),
    )
    console.say("")
    for source, value in metrics["bits_per_byte"].items():
        console.say(f"Bits por byte en texto reservado ({source}): {value:.3f}")
    if grounded := metrics["grounded"]:
        console.say(
            f"Preguntas sobre un texto reservado ({grounded['questions']}): elige la respuesta buena de 4 en el "
            f"{100 * grounded['choice_accuracy']:.0f} % ± {100 * grounded['choice_interval']:.0f} "
            f"(azar {100 * grounded['choice_chance']:.0f} %), F1 {grounded['f1']:.2f} "
            f"(azar {grounded['f1_chance']:.2f})"
        )
    for sample in samples["answers"]:
        console.say(f"\n{sample['question']}\n→ {sample['answer']}")
    for sample in samples["continuations"]:
        console.say(f"\n{sample['prompt']}→{sample['text']}")
    console.say("\nCurvas: reports/training.png. Ficha del modelo: models/MODEL_CARD.md. Habla con él: make chat")


@app.command()
def chat(
    model: ModelFolder = None,
    max_new_tokens: MaxNewTokens = None,
    temperature: Temperature = None,
    top_p: TopP = None,
    seed: Seed = 0,
) -> None:
    """Habla con el modelo. /nuevo empieza otra conversación, /salir (o Ctrl-D) termina."""
    conversation = _chat(model, max_new_tokens, temperature, top_p, seed)
    console.say("Escribe y pulsa Intro. /nuevo empieza otra conversación, /salir termina, Ctrl-C corta la respuesta.")
    while (line := _read_line()) != "/salir":
        if line == "/nuevo":
            conversation.restart()
            console.say("Conversación nueva.")
        elif line.strip():
            try:
                _print_pieces(conversation.reply(line))
            except KeyboardInterrupt:
                console.say(" (cortada)")
            except EnlaceError as error:
                console.say(str(error))
            if conversation.dropped:
                console.say(f"(No caben los {conversation.dropped} mensajes más viejos; el modelo ya no los ve.)")


@app.command()
def ask(
    question: Annotated[
        str, typer.Argument(metavar="PREGUNTA", help="La pregunta; con - se lee de la entrada estándar.")
    ],
    model: ModelFolder = None,
    max_new_tokens: MaxNewTokens = None,
    temperature: Temperature = 0.0,
    top_p: TopP = None,
    seed: Seed = 0,
) -> None:
    """Hace una pregunta y escribe la respuesta, para guiones."""
    try:
        text = sys.stdin.buffer.read().decode() if question == "-" else question
        text.encode()  # bytes of an argument that are not UTF-8 come as lone surrogates
    except UnicodeError:
        raise EnlaceError("La pregunta no está en UTF-8. Conviértela, por ejemplo, con: iconv -f latin1") from None
    if not text.strip():
        raise EnlaceError('La pregunta está vacía. Escríbela entre comillas: enlace ask "¿Qué es el mate?"')
    _print_pieces(_chat(model, max_new_tokens, temperature, top_p, seed).reply(text))


def _chat(
    model: Path | None, max_new_tokens: int | None, temperature: float | None, top_p: float | None, seed: int
) -> Chat:
    """A conversation with the model; what was not said on the command line is as `configs/agent` says."""
    from enlace.agent.loop import Chat
    from enlace.export.trained import load_trained
    from enlace.model.generate import Sampling

    agent = load_config().agent
    sampling = Sampling(
        max_new_tokens=agent.max_new_tokens if max_new_tokens is None else max_new_tokens,
        temperature=agent.temperature if temperature is None else temperature,
        top_p=agent.top_p if top_p is None else top_p,
        seed=seed,
    )
    return Chat(load_trained(model or project_root() / "models" / "enlace"), sampling, agent.system)


def _print_pieces(pieces: Iterator[str]) -> None:
    for piece in pieces:
        console.console.out(piece, end="", highlight=False)
    console.console.out("")


def _read_line() -> str:
    """One line from the person; the end of the input counts as /salir, Ctrl-C and what is not text as an empty line."""
    try:
        line = input("\n> ")
        line.encode()  # in the C locale, bytes that are not UTF-8 come as lone surrogates
        return line
    except EOFError:
        return "/salir"
    except KeyboardInterrupt:
        return ""
    except UnicodeError:
        console.say("Lo escrito no está en UTF-8; no se puede leer.")
        return ""


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


def _shown(value: object) -> str:
    return "(nada)" if value is None else ", ".join(map(str, value)) if isinstance(value, tuple) else str(value)


def main() -> None:
    """Entry point: errors that a person can act on are messages, not tracebacks."""
    console.run_main(app.run)


if __name__ == "__main__":
    main()
