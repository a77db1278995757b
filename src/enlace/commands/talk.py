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
    from enlace.agent.context import Context
    from enlace.agent.loop import Chat, Event
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
SearchTheWeb = Annotated[
    bool,
    typer.Option(
        "--buscar/--sin-buscar", help="Si el modelo puede buscar en internet [por defecto: sí, salvo en ask]."
    ),
]
Remember = Annotated[
    bool, typer.Option("--recordar/--sin-recordar", help="Si recuerda lo que le cuentas [por defecto: sí en el chat].")
]
ShowContext = Annotated[
    bool, typer.Option("--ver-contexto", help="Enseña lo que lee el modelo antes de responder, y qué no cupo.")
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
    search: SearchTheWeb = True,
    remember: Remember = True,
    show_context: ShowContext = False,
) -> None:
    """Habla con el modelo. /nuevo, /guardar y /cargar llevan las conversaciones; /salir (o Ctrl-D) termina."""
    sampling = _sampling(max_new_tokens, temperature, top_p, top_k, min_p, repetition_penalty, seed)
    conversation = _chat(model, sampling, search, remember)
    console.say(_HELP)
    if conversation.searcher:
        console.say("Si hace falta busca en internet, y verás qué; --sin-buscar lo impide.")
    if conversation.memory:
        console.say(
            "Recuerda en este equipo lo que le cuentas; --sin-recordar lo impide, enlace memory olvidar lo borra."
        )
    while (line := _read_line().strip()) != "/salir":
        try:
            if line.startswith("/"):
                _obey(line, conversation)
            elif line:
                _print_events(conversation.reply(line), show_context)
        except KeyboardInterrupt:
            console.say(" (cortada)")
        except EnlaceError as error:
            console.say(str(error))


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
    search: SearchTheWeb = False,
    remember: Remember = False,
    show_context: ShowContext = False,
) -> None:
    """Hace una pregunta y escribe la respuesta, para guiones. Nada sale de este equipo sin --buscar."""
    try:
        text = sys.stdin.buffer.read().decode() if question == "-" else question
        text.encode()  # bytes of an argument that are not UTF-8 come as lone surrogates
    except UnicodeError:
        raise EnlaceError("La pregunta no está en UTF-8. Conviértela, por ejemplo, con: iconv -f latin1") from None
    if not text.strip():
        raise EnlaceError('La pregunta está vacía. Escríbela entre comillas: enlace ask "¿Qué es el mate?"')
    sampling = _sampling(max_new_tokens, temperature, top_p, top_k, min_p, repetition_penalty, seed)
    _print_events(_chat(model, sampling, search, remember).reply(text), show_context)


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


def _chat(model: Path | None, sampling: Sampling, search: bool, remember: bool) -> Chat:
    """A conversation with who answers, as `configs/agent` says."""
    from enlace.agent.loop import open_chat
    from enlace.config.dotenv import load_dotenv

    root = project_root()
    load_dotenv()
    agent = load_config(root).agent
    if not search:
        agent = agent.model_copy(update={"max_searches": 0})
    return open_chat(agent, model or root / "models" / "enlace", sampling, memory=remember)


def _obey(line: str, conversation: Chat) -> None:
    """Do what a line that begins with / asks for."""
    from enlace.data.chat import Message
    from enlace.data.saved import read_saved, save_conversation
    from enlace.data.tools import parse_call

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
            conversation.turns += [
                turn
                for turn in (saved or [[]])[-1]
                if turn.role == "user" or (turn.role == "assistant" and parse_call(turn.content) is None)
            ]
            console.say(f"Sigue la última conversación de {path}: {len(conversation.turns)} mensajes.")
        case _:
            console.say(f"No hay {command}. {_HELP}")


def _print_events(events: Iterator[Event], show_context: bool) -> None:
    """The answer on the output; what else happens on stderr, so that scripts get the answer alone."""
    from enlace.agent.loop import Read, Remembered, Said, Searched, Searching

    context: Context | None = None
    for event in events:
        match event:
            case Said(text):
                console.console.out(text, end="", highlight=False)
            case Remembered(episodes):
                for episode in episodes:
                    _note(f"(Recuerdo: {episode.text})")
            case Searching(query):
                _note(f"(Busco: {query})")
            case Searched(_, outcome) if outcome.detail:
                _note(f"({outcome.detail})")
            case Read(context):
                if show_context:
                    _print_context(context)
    console.console.out("")
    if context and context.sources:
        for number, source in enumerate(context.sources, start=1):
            _note(f"[{number}] {source.title}: {source.url}")
    if context and context.dropped_turns:
        console.say(f"(No caben los {context.dropped_turns} mensajes más viejos; el modelo ya no los ve.)")


def _print_context(context: Context) -> None:
    """The turns as the model reads them, and a table of what each part takes."""
    from rich.table import Table

    table = Table("parte", "tokens", "su parte", "dentro", "fuera", title=f"Contexto: {context.room} tokens")
    for part in context.parts:
        table.add_row(part.name, *map(str, (part.tokens, part.share, part.kept, part.dropped)))
    for message in context.messages:
        _note(f"{message.role}: {message.content}")
    console.errors.print(table)


def _note(line: str) -> None:
    console.errors.print(line, markup=False, soft_wrap=True)


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
