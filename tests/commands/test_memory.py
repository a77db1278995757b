from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.commands.conftest import Enlace

EPISODES = [
    {"time": "2026-11-01T10:00:00+00:00", "speaker": "user", "text": "Lucía es alérgica a las nueces", "source": "c1"},
    {
        "time": "2026-11-02T10:00:00+00:00",
        "speaker": "web",
        "text": "Las [b]nueces[/b] son frutos secos",
        "source": "https://e.org/ñ",
    },
    {"time": "2026-11-03T10:00:00+00:00", "speaker": "assistant", "text": "El gazpacho lleva tomate", "source": "c2"},
]


@pytest.fixture
def told(enlace: Enlace, project: Path) -> Enlace:
    """The command, over a memory of three episodes."""
    (project / "casa.jsonl").write_text("".join(json.dumps(e) + "\n" for e in EPISODES), encoding="utf-8")
    assert enlace("memory", "importar", "casa.jsonl").stdout == "casa.jsonl: 3 episodios, 3 de ellos nuevos.\n"
    return enlace


def test_what_is_remembered_is_shown_with_its_source(told: Enlace) -> None:
    out = told("memory", "buscar", "¿alergia a la nuez, nueces?").stdout
    assert "Lucía es alérgica a las" in " ".join(out.split()) and "[b]nueces[/b]" in out and "https://e.org/ñ" in out
    assert "gazpacho" not in out
    assert told("memory", "buscar", "submarinos").stdout == "La memoria no sabe nada de eso.\n"
    assert "https" not in told("memory", "buscar", "Lucía nueces", "--limit", "1").stdout


def test_forgetting_shows_asks_and_does_it(told: Enlace, project: Path) -> None:
    for answer in ("n\n", "", "qué\n"):
        refused = told("memory", "olvidar", "lucia nueces", stdin=answer)
        assert refused.returncode == 1 and "¿Olvidar 1 episodio?" in refused.stdout and "alérgica" in refused.stdout
        assert "No se ha olvidado nada" in refused.stderr
    assert told("memory", "olvidar", "lucia nueces", stdin="s\n").stdout.endswith("Olvidado: 1 episodio.\n")
    left = b"".join(path.read_bytes() for path in (project / "data/agent").iterdir())
    assert b"Luc" not in left and b"lucia" not in left and b"gazpacho" in left
    assert "no hay nada que olvidar" in told("memory", "olvidar", "lucia", "--yes").stdout


def test_forgetting_by_number_and_everything(told: Enlace) -> None:
    assert "Olvidado: 2 episodios." in told("memory", "olvidar", "--id", "1", "--id", "3", "--id", "99", "--yes").stdout
    assert "Olvidado: 1 episodio." in told("memory", "olvidar", "--all", "--yes").stdout


@pytest.mark.parametrize("arguments", [(), ("nueces", "--all"), ("--id", "1", "--all"), ("", "--yes")])
def test_what_to_forget_has_to_be_clear(told: Enlace, arguments: tuple[str, ...]) -> None:
    result = told("memory", "olvidar", *arguments)
    assert result.returncode == 1 and "de una manera" in result.stderr
    assert "3 episodios" in told("memory", "exportar", "x.jsonl").stdout


def test_export_gives_what_import_took(told: Enlace, project: Path) -> None:
    assert told("memory", "exportar", "copia.jsonl").stdout == "copia.jsonl: 3 episodios.\n"
    assert [json.loads(line) for line in (project / "copia.jsonl").read_text(encoding="utf-8").splitlines()] == EPISODES
    again = told("memory", "exportar", "copia.jsonl")
    assert again.returncode == 1 and "ya existe" in again.stderr
    assert told("memory", "importar", "copia.jsonl").stdout == "copia.jsonl: 3 episodios, 0 de ellos nuevos.\n"
    missing = told("memory", "importar", "nada.jsonl")
    assert missing.returncode == 1 and "nada.jsonl: no se puede leer (no existe)" in missing.stderr


def test_a_damaged_memory_is_a_message(told: Enlace, project: Path) -> None:
    (project / "data/agent/memory.db").write_bytes(b"otra cosa" * 1000)
    result = told("memory", "buscar", "nueces")
    assert (
        result.returncode == 1 and "no es una memoria de ENLACE" in result.stderr and "Traceback" not in result.stderr
    )
