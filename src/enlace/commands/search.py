"""`enlace search`: the agent's web search, for people."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer

from enlace import EnlaceError, console
from enlace.config.dotenv import load_dotenv
from enlace.config.load import load_config

if TYPE_CHECKING:
    from rich.table import Table

    from enlace.agent.search import Outcome


class NotSearched(EnlaceError):
    """The search gave nothing to look at, and that does not mean that there is nothing."""


def search(
    query: Annotated[str, typer.Argument(metavar="BÚSQUEDA", help="Lo que se busca, entre comillas.")],
    as_json: Annotated[bool, typer.Option("--json", help="Escribe JSON, para guiones.")] = False,
) -> None:
    """Busca en la web, como lo hace el modelo, y guarda lo encontrado para no preguntar dos veces."""
    from enlace.agent.search import Searcher

    load_dotenv()
    config = load_config().agent.search
    with console.console.status("Buscando…"):  # shown on a terminal only
        outcome = Searcher.from_config(config).search(query)
    if as_json:
        console.console.out(_json(query, config.backend, outcome), highlight=False)
    elif outcome.kind == "results":
        console.console.print(_table(outcome))
    elif outcome.kind == "no_results":
        console.say(f"Sin resultados.{_age(outcome)}")
    if outcome.detail:
        raise NotSearched(outcome.detail)


def _table(outcome: Outcome) -> Table:
    """One row for each result. Titles open their page where the terminal knows links."""
    from rich import box
    from rich.style import Style
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, caption=_age(outcome).strip() or None, caption_justify="left", pad_edge=False)
    table.add_column("", justify="right")
    table.add_column("Resultado", ratio=1)
    table.add_column("Sitio", overflow="fold", max_width=30)
    for number, result in enumerate(outcome.results, start=1):
        found = Text(result.title, Style(bold=True, link=result.url))
        if result.snippet:
            found.append(f"\n{result.snippet}", Style(bold=False, link=""))
        table.add_row(str(number), found, Text("\n".join(filter(None, (result.host, result.date)))))
    return table


def _json(query: str, backend: str, outcome: Outcome) -> str:
    record = {
        "query": query,
        "backend": backend,
        "kind": outcome.kind,
        "detail": outcome.detail,
        "age_seconds": outcome.age_seconds,
        "results": [
            {"title": r.title, "url": r.url, "host": r.host, "snippet": r.snippet, "date": r.date}
            for r in outcome.results
        ],
    }
    return json.dumps(record, ensure_ascii=False, indent=2)


def _age(outcome: Outcome) -> str:
    """Since when it is known, after a space, where it was not asked now."""
    if (age := outcome.age_seconds) is None:
        return ""
    told = f"{age:.0f} s" if age < 60 else f"{age / 60:.0f} min" if age < 3600 else f"{age / 3600:.0f} h"
    return f" (De la caché: se preguntó hace {told}.)"
