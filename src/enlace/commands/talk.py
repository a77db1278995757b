"""`enlace chat` and `enlace ask`: talk with the trained model."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from enlace import EnlaceError, console
from enlace.config.load import load_config
from enlace.config.paths import project_root

if TYPE_CHECKING:
    from enlace.agent.loop import Chat

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
