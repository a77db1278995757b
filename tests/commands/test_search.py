from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.agent.search.conftest import PAGES, service
from tests.agent.search.service import JSON, Reply, Service
from tests.commands.conftest import Enlace

__all__ = ["service"]  # the fixture

LITE = Reply((PAGES / "lite.html").read_bytes())
CHALLENGE = Reply((PAGES / "challenge.html").read_bytes(), 202)


@pytest.fixture(autouse=True)
def here(project: Path, service: Service) -> Path:
    """Both services on this machine; returns the file that says so."""
    layer = project / "configs/agent/basico.yaml"
    layer.write_text(
        re.sub(r"base_url: \S+", f"base_url: {service.url}", layer.read_text()).replace(
            "gap_seconds: 2", "gap_seconds: 0"
        )
    )
    return layer


def test_a_table_for_people_and_the_cache_the_second_time(enlace: Enlace, service: Service, project: Path) -> None:
    service.says(LITE)
    first = enlace("search", "receta de gazpacho")
    assert first.returncode == 0, first.stderr
    for text in ("Gazpacho andaluz & salmorejo", "cocina.example.org", "2026-05-03", "se sirve muy", "<div>"):
        assert text in first.stdout
    assert "oferta" not in first.stdout and "caché" not in first.stdout
    again = enlace("search", "Receta  de GAZPACHO")
    assert "De la caché: se preguntó hace" in again.stdout and "cocina.example.org" in again.stdout
    assert len(service.asked) == 1
    assert (project / "data/agent/search.db").exists()


def test_json_for_scripts(enlace: Enlace, service: Service) -> None:
    service.says(LITE)
    record = json.loads(enlace("search", "gazpacho", "--json").stdout)
    assert (record["query"], record["backend"], record["kind"], record["age_seconds"]) == (
        "gazpacho",
        "duckduckgo",
        "results",
        None,
    )
    assert record["results"][1] == {
        "title": "Sopas frías de la abuela",
        "url": "http://abuela.example.net/sopas",
        "host": "abuela.example.net",
        "snippet": "",
        "date": "",
    }
    assert json.loads(enlace("search", "gazpacho", "--json").stdout)["age_seconds"] >= 0


def test_a_block_is_told_on_stderr_and_is_not_sin_resultados(enlace: Enlace, service: Service) -> None:
    service.says(CHALLENGE)
    for _ in range(2):
        blocked = enlace("search", "gazpacho")
        assert (blocked.returncode, blocked.stdout) == (1, "")
        assert blocked.stderr.startswith("error: DuckDuckGo no ") and "Traceback" not in blocked.stderr
    assert len(service.asked) == 1, "the second process remembers the first one's block"
    as_json = enlace("search", "gazpacho", "--json")
    assert as_json.returncode == 1 and json.loads(as_json.stdout)["kind"] == "blocked"


def test_nothing_found_is_said_and_is_no_failure(enlace: Enlace, service: Service) -> None:
    service.says(Reply((PAGES / "lite_empty.html").read_bytes()))
    nothing = enlace("search", "xqzvw")
    assert (nothing.returncode, nothing.stdout) == (0, "Sin resultados.\n")
    assert enlace("search", "xqzvw").stdout.startswith("Sin resultados. (De la caché")


def test_one_line_switches_to_searxng(enlace: Enlace, service: Service, here: Path) -> None:
    here.write_text(here.read_text().replace("backend: duckduckgo", "backend: searxng"))
    service.says(Reply((PAGES / "searxng.json").read_bytes(), content_type=JSON))
    assert "tiempo.example.org" in enlace("search", "tiempo").stdout
    assert service.asked[0].path == "/search"


def test_what_a_page_says_is_neither_markup_nor_an_order_for_the_terminal(enlace: Enlace, service: Service) -> None:
    evil = LITE.body.replace(b"Sopas fr", b"[red]Sopas[/red] &#27;]0;x&#7; :heart: [link=file:///etc/passwd] fr")
    service.says(Reply(evil))
    out = enlace("search", "gazpacho").stdout
    assert "[red]Sopas[/red]" in out and ":heart:" in out and "\x1b" not in out and "\x07" not in out


@pytest.mark.parametrize("query", ["", " ", "!!"])
def test_an_empty_search_says_how(enlace: Enlace, service: Service, query: str) -> None:
    result = enlace("search", query)
    assert result.returncode == 1 and "No hay nada que buscar" in result.stderr and not service.asked


def test_the_state_moves_by_environment_and_by_dotenv(enlace: Enlace, service: Service, project: Path) -> None:
    service.says(LITE)
    enlace("search", "gazpacho", AGENT_DIR="otra")
    assert (project / "otra/search.db").exists() and not (project / "data").exists()
    (project / ".env").write_text("AGENT_DIR=tercera\n")
    enlace("search", "gazpacho")
    assert (project / "tercera/search.db").exists() and not (project / "data").exists()
