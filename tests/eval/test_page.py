"""The page, as a browser takes it: its structure always, its looks where there is one."""

from __future__ import annotations

import html.parser
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from enlace.eval.minimal_pairs import FILE, load_phenomena
from enlace.eval.page import Report, page
from enlace.eval.plots import pairs_picture, read_log, training_pictures
from enlace.eval.report import Measured
from tests.conftest import ROOT
from tests.eval.conftest import SETTINGS
from tests.eval.test_plots import LOG

VOID = {"meta", "img", "br"}
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


@pytest.fixture
def report(measured: Measured, tmp_path: Path) -> Report:
    pytest.importorskip("matplotlib")
    log = tmp_path / "train.csv"
    log.write_text(LOG, encoding="utf-8")
    run = {
        "model": "mini",
        "hardware": "cpu",
        "precision": "float32",
        "train": {"steps": 10, "batch_tokens": 100, "lr": 0.01},
        "mixture": {"stable": {"corpus": 1.0}},
    }
    source = {"name": "cuentos", "documents": 3, "license": "CC BY-SA 4.0", "attribution": "De <todos> & nadie."}
    metrics = {group: {k: round(v, 4) for k, v in of.items()} for group, of in measured.metrics.items()}
    tools = {
        "questions": 5,
        "called_when_needed": 1.0,
        "called_needlessly": 0.2,
        "usable_query": 0.4,
        "answer_from_result_f1": 0.25,
    }
    return Report(
        {**metrics, "tools": tools},
        load_phenomena(ROOT / FILE),
        measured,
        training_pictures(read_log(log), []),
        pairs_picture(measured.shares),
        run,
        SETTINGS.model_dump(),
        {"procesador o tarjeta": "una de prueba"},
        [source],
    )


class _Outline(html.parser.HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag, f"</{tag}> closes nothing"

    def handle_data(self, data: str) -> None:
        self.text += data


def test_well_formed_accessible_and_by_itself(report: Report) -> None:
    text = page(report)
    outline = _Outline(text)
    assert outline.open == [] and text.startswith("<!DOCTYPE html>")
    tags = outline.tags
    assert ("html", {"lang": "es"}) in tags and any("viewport" in str(a) for tag, a in tags if tag == "meta")
    assert not re.search(r"<script|<link|@import|url\(", text), "nothing runs and nothing is fetched"
    for tag, attributes in tags:
        for name in ("src", "href"):
            assert tag != "img" or (attributes["src"] or "").startswith("data:image/svg+xml;base64,")
            assert not (attributes.get(name) or "").startswith(("http", "//"))
    images = [attributes for tag, attributes in tags if tag == "img"]
    assert len(images) >= 4 and all(len(image["alt"] or "") > 20 for image in images)
    assert sum(tag == "h1" for tag, _ in tags) == 1
    ids = [attributes["id"] for _, attributes in tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    labelled = {attributes["aria-labelledby"] for _, attributes in tags if "aria-labelledby" in attributes}
    assert labelled <= set(ids)
    assert all("scope" in attributes for tag, attributes in tags if tag == "th")


def test_it_says_what_was_measured_and_nothing_of_it_is_markup(report: Report) -> None:
    sample = {"question": "Texto: <script>alert(1)</script>\n\nPregunta: ¿Y?", "answer": "<b>&", "right": "x"}
    samples = {**report.measured.samples, "answers": [sample]}
    text = page(replace(report, measured=replace(report.measured, samples=samples)))
    shown = _Outline(text).text
    for expected in (
        "<script>alert(1)</script>",
        "De <todos> & nadie.",
        "CC BY-SA 4.0",
        "una de prueba",
        "batch_tokens",
        "mixture.stable.corpus",
        "El perro come",
        "haber impersonal",
        "no hay ninguna que lo enseñe",
        "sin el texto, busca",
    ):
        assert expected in shown, expected
    bpb = f"{report.metrics['bits_per_byte']['cuentos']:.3f}".replace(".", ",")
    assert bpb in shown
    assert page(report) == page(report)


def test_without_questions_or_titles_the_page_stands(report: Report) -> None:
    metrics = {**report.metrics, "choices": {}, "grounded": {}, "refusal": {}, "tools": {}}
    text = page(replace(report, metrics=metrics))
    assert _Outline(text).open == []
    assert "No hay bastantes preguntas" in text and "No hay preguntas reservadas que buscar" in text


@pytest.mark.skipif(CHROMIUM is None, reason="no browser: apt-get install chromium")
def test_a_browser_renders_it_without_scrolling_sideways(report: Report, tmp_path: Path) -> None:
    probe = (
        "<script>addEventListener('load', () => { const images = [...document.images]; document.title = ["
        "document.documentElement.scrollWidth <= innerWidth, images.every(i => i.naturalWidth > 0), "
        "getComputedStyle(document.body).maxWidth !== 'none', innerWidth].join(' '); });</script>"
    )
    path = tmp_path / "informe.html"
    path.write_text(page(report).replace("</body>", probe + "</body>"), encoding="utf-8")
    command = [str(CHROMIUM), "--headless", "--no-sandbox", "--disable-gpu", "--window-size=500,900", "--dump-dom"]
    profile = f"--user-data-dir={tmp_path / 'profile'}"
    found = subprocess.run([*command, profile, path.as_uri()], capture_output=True, text=True, timeout=120, check=True)
    title = re.search("<title>(.*?)</title>", found.stdout)
    assert title and title[1].startswith("true true true"), title
