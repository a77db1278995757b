"""The page for the family, in a real Chromium without a window, with the real server behind it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.agent.chromium import Page, browsing, find
from tests.agent.house import ANSWER, PAGES, Outside, outside, project, serving

TOKEN = "una-clave-de-24-letras-x"
CHROMIUM = find()
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no hay Chromium: apt install chromium")

IDLE = "!document.querySelector('#send').hidden"


@pytest.fixture(scope="module")
def world() -> Iterator[Outside]:
    with outside() as server:
        yield server


@pytest.fixture(scope="module")
def folder(world: Outside, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return project(tmp_path_factory.mktemp("casa"), world.server_port)


@pytest.fixture(scope="module")
def address(folder: Path) -> Iterator[str]:
    with serving(folder) as address:
        yield address


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    assert CHROMIUM
    with browsing(CHROMIUM, tmp_path_factory.mktemp("chromium")) as page:
        yield page


@pytest.fixture
def page(browser: Page, address: str) -> Iterator[Page]:
    browser.errors.clear()
    browser.size(1000, 800)
    browser.open(address + "/")
    yield browser
    assert browser.errors == []


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    """Where the pictures go: kept for docs/img with PICTURES=docs/img pytest tests/agent/test_page.py."""
    return Path(os.environ.get("PICTURES", tmp_path)).resolve()


def _ask(page: Page, question: str) -> None:
    before = page.evaluate("document.querySelectorAll('.turn.assistant').length")
    page.evaluate("document.querySelector('#question').focus()")
    page.type(question)
    page.enter()
    page.wait(f"document.querySelectorAll('.turn.assistant').length === {before + 1} && {IDLE}")


def test_a_question_is_searched_for_and_answered_with_its_sources(page: Page, pictures: Path) -> None:
    assert page.evaluate("document.activeElement.id") == "question", "one can write at once"
    _ask(page, "La alergia de Marta es a las nueces.")
    page.evaluate("document.querySelector('#new').click()")
    _ask(page, "¿Marta puede tomar mate?")
    text = page.text()
    assert "Busco en internet: «Marta puede tomar mate»" in text and ANSWER in text
    links = page.evaluate("[...document.querySelectorAll('.aside a')].map((a) => [a.textContent, a.href, a.rel])")
    assert links == [[p["title"], p["url"], "noopener noreferrer nofollow"] for p in PAGES]
    assert "Recuerdos usados" in text and "nueces" in text
    page.picture(pictures / "pagina.png")
    page.size(390, 780, mobile=True, dark=True)
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), "nothing is cut off on a phone"
    assert page.evaluate(
        "[...document.querySelectorAll('nav button, #send')].every((b) => b.getBoundingClientRect().height >= 44)"
    ), "fingers hit them"
    page.evaluate("window.scrollTo(0, document.body.scrollHeight)")
    page.picture(pictures / "pagina-movil.png")


def test_one_memory_or_all_can_be_forgotten(page: Page, pictures: Path) -> None:
    _ask(page, "El gato se llama Mus.")
    page.click("#new")
    _ask(page, "¿Cómo se llama el gato?")
    page.click(".memory button")
    page.wait("document.querySelector('#status').textContent === 'Olvidado.'")
    page.click("#new")
    _ask(page, "¿Cómo se llama el gato?")
    assert "Recuerdos usados" not in page.text()
    _ask(page, "El gato se llama Mus.")
    page.click("#forget")
    page.wait("document.querySelector('#confirm').open")
    assert page.evaluate("document.activeElement.value") == "no", "by mistake nothing is forgotten"
    page.picture(pictures / "pagina-olvidar.png")
    page.enter()
    page.wait("!document.querySelector('#confirm').open")
    assert page.evaluate("document.querySelectorAll('.turn').length") > 0
    page.click("#forget")
    page.click("#confirm .danger")
    page.wait("document.querySelector('#status').textContent.includes('He olvidado todo')")
    assert page.evaluate("document.querySelectorAll('.turn').length") == 0
    _ask(page, "¿Cómo se llama el gato?")
    assert "Recuerdos usados" not in page.text()


def test_a_new_conversation_knows_nothing_of_the_last(page: Page, world: Outside) -> None:
    _ask(page, "Hola")
    _ask(page, "Adiós")
    assert [turn["content"] for turn in world.prompts[-1][1:]] == ["Hola", "De acuerdo.", "Adiós"]
    page.click("#new")
    assert page.evaluate("document.querySelectorAll('.turn').length") == 0
    assert page.evaluate("document.activeElement.id") == "question"
    _ask(page, "Hola otra vez")
    assert [turn["content"] for turn in world.prompts[-1][1:]] == ["Hola otra vez"]


def test_an_answer_is_seen_as_it_comes_and_can_be_stopped(page: Page, world: Outside) -> None:
    world.stopped.clear(), world.go_on.clear()
    page.type("Ponte a contar")
    page.enter()
    page.wait("/1 2 3/.test(document.body.innerText)")
    assert not page.evaluate(IDLE)
    page.click("#stop")
    page.wait(IDLE)
    assert world.stopped.wait(30), "the model is told"
    assert "Parado." in page.text()


@pytest.mark.parametrize("how", ["new", "forget"])
def test_what_is_begun_anew_in_the_middle_of_an_answer_knows_nothing_of_it(
    page: Page, world: Outside, how: str
) -> None:
    world.stopped.clear(), world.go_on.clear()
    page.type("Ponte a contar los gatos")
    page.enter()
    page.wait("/1 2 3/.test(document.body.innerText)")
    page.click(f"#{how}")
    if how == "forget":
        page.click("#confirm .danger")
    said = "Conversación nueva." if how == "new" else "He olvidado todo"
    page.wait(f"document.querySelector('#status').textContent.startsWith('{said}') && {IDLE}")
    assert world.stopped.wait(30)
    _ask(page, "¿Y los gatos?")
    assert next(turn["content"] for turn in world.prompts[-1][1:]) == "¿Y los gatos?"
    assert "Recuerdos usados" not in page.text()


def test_markup_in_what_is_said_and_found_stays_text(page: Page) -> None:
    _ask(page, "<img src=x onerror=alert(1)><b>hola</b>")
    assert page.evaluate("document.querySelectorAll('.turn img, .turn b').length") == 0
    assert "<b>hola</b>" in page.text()


def test_everything_has_a_name_and_the_keyboard_reaches_it(page: Page) -> None:
    _ask(page, "¿Qué es el mate?")
    nameless = page.evaluate(
        "[...document.querySelectorAll('button, textarea, input, a')].filter((e) => !(e.textContent.trim() ||"
        " e.getAttribute('aria-label') || e.labels?.length)).map((e) => e.outerHTML)"
    )
    assert nameless == []
    reached = []
    for _ in range(9):  # from the question, once around
        page.press("Tab", 9)
        reached.append(page.evaluate("document.activeElement.id || document.activeElement.textContent.trim()"))
    assert reached[0] == "send"
    start = reached.index("Ir a la pregunta")
    assert reached[start : start + 6] == ["Ir a la pregunta", "new", "forget", *(p["title"] for p in PAGES), "question"]
    assert page.evaluate("document.documentElement.lang") == "es"
    assert page.evaluate("document.querySelector('#status').getAttribute('role')") == "status"


@pytest.mark.parametrize("dark", [False, True])
def test_text_can_be_read_on_its_ground(page: Page, dark: bool) -> None:
    """WCAG AA: a contrast of 4.5 to 1."""
    page.size(1000, 800, dark=dark)
    contrasts = page.evaluate(
        """(() => {
            const style = getComputedStyle(document.documentElement);
            const light = (name) => {
                const hex = style.getPropertyValue(name).trim().slice(1);
                const part = (i) => { const c = parseInt(hex.slice(i, i + 2), 16) / 255;
                    return c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4; };
                return 0.2126 * part(0) + 0.7152 * part(2) + 0.0722 * part(4);
            };
            const pairs = [["--ink", "--paper"], ["--ink", "--card"], ["--ink", "--own"], ["--faint", "--paper"],
                ["--faint", "--card"], ["--faint", "--own"], ["--accent", "--card"], ["--on-accent", "--accent"],
                ["--danger", "--card"]];
            return pairs.map(([a, b]) => { const [x, y] = [light(a), light(b)].sort((m, n) => n - m);
                return [a, b, (x + 0.05) / (y + 0.05)]; });
        })()"""
    )
    assert [pair for pair in contrasts if pair[2] < 4.5] == []


def test_from_another_machine_the_page_asks_for_the_key(browser: Page, folder: Path) -> None:
    with serving(folder, "--host", "0.0.0.0", SERVE_TOKEN=TOKEN) as address:
        browser.open(address.replace("0.0.0.0", "127.0.0.1") + "/")
        browser.type("Hola")
        browser.enter()
        browser.wait("document.querySelector('#key').open")
        browser.type("otra clave")
        browser.enter()
        browser.wait("document.querySelector('#key').open && document.querySelector('#token').value === ''")
        browser.type(TOKEN)
        browser.enter()
        browser.wait("document.body.innerText.includes('De acuerdo.')")
        assert TOKEN not in browser.evaluate("location.href + document.cookie")
