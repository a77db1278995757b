"""`enlace serve`: the page for the family, and OpenAI's protocol for other programs."""

from __future__ import annotations

import contextlib
import os
import socket
from pathlib import Path
from typing import Annotated

import typer

from enlace import EnlaceError, console
from enlace.commands.talk import ModelFolder, Remember, SearchTheWeb
from enlace.config.load import load_config
from enlace.config.paths import project_root
from enlace.durable import reason

Host = Annotated[
    str | None,
    typer.Option(metavar="DIRECCIÓN", help="Dónde escucha; 0.0.0.0 es toda la casa, con SERVE_TOKEN en .env."),
]
Port = Annotated[int | None, typer.Option(min=0, max=65_535, metavar="ENTERO", help="El puerto; 0 elige uno libre.")]


def serve(
    model: ModelFolder = None,
    host: Host = None,
    port: Port = None,
    search: SearchTheWeb = True,
    remember: Remember = True,
) -> None:
    """Abre la página de la casa, y /v1 para otros programas. Ctrl-C termina."""
    from enlace.agent.guard import TOKEN_VARIABLE, check_token
    from enlace.agent.loop import open_chat
    from enlace.config.dotenv import load_dotenv
    from enlace.model.generate import Sampling

    try:
        import uvicorn

        from enlace.agent.server import make_app
    except ModuleNotFoundError as error:
        if error.name not in ("uvicorn", "starlette"):
            raise
        raise EnlaceError("Para servir la página falta instalar su parte: pip install 'enlace[serve]'") from None

    root = project_root()
    load_dotenv()
    agent = load_config(root).agent
    host = host or agent.serve.host
    token = os.environ.get(TOKEN_VARIABLE)
    check_token(host, token)
    if not search:
        agent = agent.model_copy(update={"max_searches": 0})
    folder: Path = model or root / "models" / "enlace"
    sampling = Sampling(
        max_new_tokens=agent.max_new_tokens,
        temperature=agent.temperature,
        top_p=agent.top_p,
        seed=0,
        top_k=agent.top_k,
        min_p=agent.min_p,
        repetition_penalty=agent.repetition_penalty,
    )
    chat = open_chat(agent, folder, sampling, memory=remember)
    with _listen(host, agent.serve.port if port is None else port) as listening:
        name = agent.server.model if agent.answers == "server" else folder.name
        config = uvicorn.Config(
            make_app(chat, name, agent.serve, host, token),
            log_level="error",
            access_log=False,  # what the family asks is nobody's business
            server_header=False,
            limit_concurrency=agent.serve.waiting + 64,
            timeout_graceful_shutdown=3,
        )
        shown = f"[{host}]" if ":" in host else host
        url = f"http://{shown}:{listening.getsockname()[1]}"
        console.say(f"La página está en {url} y el protocolo de OpenAI en {url}/v1. Ctrl-C termina.")
        with contextlib.suppress(KeyboardInterrupt):
            uvicorn.Server(config).run(sockets=[listening])


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=64)
    except OSError as error:
        raise EnlaceError(
            f"No se puede escuchar en {host}, puerto {port} ({reason(error)}). Elige otro con --port."
        ) from None
