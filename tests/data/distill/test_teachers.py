"""Which job in the ledger belongs to whom: what must not be bought again, and what must."""

from __future__ import annotations

from pathlib import Path

import pytest

from enlace.config.schema import DistillConfig
from enlace.data.distill import extractive
from enlace.data.distill.teachers import open_job, who_answers

PAID = DistillConfig(model="modelo-1")
FREE = DistillConfig(teacher="extractive")


def test_the_model_makes_the_job(tmp_path: Path) -> None:
    def name(**changes: object) -> str:
        return open_job(PAID.model_copy(update=changes), tmp_path)[0].nombre

    assert name() == "anthropic-modelo-1"
    assert name(max_tokens=7, poll_interval_seconds=3.0) == name()
    assert name(model="casa/grande") == "anthropic-casa%2Fgrande"  # one folder


def test_rules_have_a_version_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trabajo, _ = open_job(FREE, tmp_path)
    assert trabajo.nombre == f"extractive-{who_answers(FREE)}"
    assert who_answers(FREE) == extractive._version() != PAID.model

    rules = tmp_path / "rules"
    rules.mkdir()
    for name in extractive._RULES:
        (rules / f"{name}.py").write_bytes(Path(extractive.__file__).with_name(f"{name}.py").read_bytes())
    monkeypatch.setattr(extractive, "__file__", str(rules / "extractive.py"))
    assert extractive._version() == who_answers(FREE)
    for name in extractive._RULES:
        before = extractive._version()
        with (rules / f"{name}.py").open("a") as file:
            file.write("# better\n")
        assert extractive._version() != before
