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
    from enlace.model.generate import Sampling

_HELP = (
    "Escribe y pulsa Intro; Ctrl-C corta la respuesta. /nuevo empieza otra conversación, /guardar [ARCHIVO] la guarda, "
    "/cargar [ARCHIVO] sigue una guardada, /salir termina."
)

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
TopK = Annotated[
    int | None,
    typer.Option(min=0, max=2**31, metavar="ENTERO", help="Cuántas palabras candidatas hay; 0 para todas."),
]
MinP = Annotated[
    float | None,
    typer.Option(
        min=0, max=1, metavar="NÚMERO", help="Descarta lo menos probable que esta parte de lo más probable, hasta 1."
    ),
]
RepetitionPenalty = Annotated[
    float | None,
    typer.Option(min=0.01, max=100, metavar="NÚMERO", help="Por encima de 1, evita repetir lo ya dicho."),
]
Seed = Annotated[
    int, typer.Option(min=0, max=2**63 - 1, metavar="ENTERO", help="La misma semilla da la misma respuesta.")
]


def chat(
    model: ModelFolder = None,
    max_new_tokens: MaxNewTokens = None,
    temperature: Temperature = None,
    top_p: TopP = None,
    top_k: TopK = None,
    min_p: MinP = None,
    repetition_penalty: RepetitionPenalty = None,
    seed: Seed = 0,
) -> None:
    """Habla con el modelo. /nuevo, /guardar y /cargar llevan las conversaciones; /salir (o Ctrl-D) termina."""
    sampling = _sampling(max_new_tokens, temperature, top_p, top_k, min_p, repetition_penalty, seed)
    conversation = _chat(model, sampling)
    console.say(_HELP)
    while (line := _read_line().strip()) != "/salir":
        try:
            if line.startswith("/"):
                _obey(line, conversation)
            elif line:
                _print_pieces(conversation.reply(line))
        except KeyboardInterrupt:
            console.say(" (cortada)")
        except EnlaceError as error:
            console.say(str(error))
        if line and conversation.dropped and not line.startswith("/"):
            console.say(f"(No caben los {conversation.dropped} mensajes más viejos; el modelo ya no los ve.)")


def ask(
    question: Annotated[
        str, typer.Argument(metavar="PREGUNTA", help="La pregunta; con - se lee de la entrada estándar.")
    ],
    model: ModelFolder = None,
    max_new_tokens: MaxNewTokens = None,
    temperature: Temperature = 0.0,
    top_p: TopP = None,
    top_k: TopK = None,
    min_p: MinP = None,
    repetition_penalty: RepetitionPenalty = None,
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
    sampling = _sampling(max_new_tokens, temperature, top_p, top_k, min_p, repetition_penalty, seed)
    _print_pieces(_chat(model, sampling).reply(text))


def _sampling(
    max_new_tokens: int | None,
    temperature: float | None,
    top_p: float | None,
    top_k: int | None,
    min_p: float | None,
    repetition_penalty: float | None,
    seed: int,
) -> Sampling:
    """What was not said on the command line is as `configs/agent` says."""
    from enlace.model.generate import Sampling

    agent = load_config().agent
    return Sampling(
        max_new_tokens=agent.max_new_tokens if max_new_tokens is None else max_new_tokens,
        temperature=agent.temperature if temperature is None else temperature,
        top_p=agent.top_p if top_p is None else top_p,
        top_k=agent.top_k if top_k is None else top_k,
        min_p=agent.min_p if min_p is None else min_p,
        repetition_penalty=agent.repetition_penalty if repetition_penalty is None else repetition_penalty,
        seed=seed,
    )


def _chat(model: Path | None, sampling: Sampling) -> Chat:
    """A conversation with the model."""
    from enlace.agent.loop import Chat
    from enlace.export.trained import load_trained

    return Chat(load_trained(model or project_root() / "models" / "enlace"), sampling, load_config().agent.system)


def _obey(line: str, conversation: Chat) -> None:
    """Do what a line that begins with / asks for."""
    from enlace.data.chat import Message
    from enlace.data.saved import read_saved, save_conversation

    command, _, rest = line.partition(" ")
    path = Path(rest.strip()).expanduser() if rest.strip() else project_root() / "conversaciones.jsonl"
    system = load_config().agent.system
    match command:
        case "/nuevo":
            conversation.restart()
            console.say("Conversación nueva.")
        case "/guardar" if conversation.turns:
            save_conversation(path, [*([Message("system", system)] if system else []), *conversation.turns])
            console.say(f"Guardada en {path}.")
        case "/guardar":
            console.say("Todavía no hay nada que guardar.")
        case "/cargar":
            saved = read_saved(path)
            conversation.restart()
            conversation.turns += [turn for turn in (saved or [[]])[-1] if turn.role != "system"]
            console.say(f"Sigue la última conversación de {path}: {len(conversation.turns)} mensajes.")
        case _:
            console.say(f"No hay {command}. {_HELP}")


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
