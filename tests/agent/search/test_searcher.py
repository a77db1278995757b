from __future__ import annotations

import fcntl
import gzip
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest

from enlace import EnlaceError
from enlace.agent.search import Outcome, Searcher, fetch
from enlace.config.schema import SearchConfig
from tests.agent.search.conftest import PAGES, Clock
from tests.agent.search.service import HTML, JSON, Reply, Service
from tests.conftest import ROOT

Make = Callable[..., Searcher]


def page(name: str, status: int = 200) -> Reply:
    return Reply((PAGES / f"{name}.html").read_bytes(), status)


LITE, EMPTY, CHALLENGE = page("lite"), page("lite_empty"), page("challenge", 202)
SEARXNG = Reply((PAGES / "searxng.json").read_bytes(), content_type=JSON)
SILENT = Reply(b'{"results": [], "unresponsive_engines": [["uno", "CAPTCHA"]]}', content_type=JSON)
COOLDOWN = 1800


# What is sent.


def test_the_form_is_posted_as_its_own_page_would(searcher: Make, service: Service, shipped: SearchConfig) -> None:
    service.says(LITE)
    assert searcher().search("ñandú & té #1 = 100%").kind == "results"
    (asked,) = service.asked
    assert asked.form == {"q": "ñandú & té #1 = 100%", "b": "", "kl": "es-es", "kp": "-1"}
    assert asked.headers["content-type"] == "application/x-www-form-urlencoded"
    assert asked.headers["user-agent"] == shipped.user_agent and "ENLACE" in shipped.user_agent
    assert asked.headers["accept-language"] == "es" and asked.headers["referer"] == f"{service.url}/"
    assert "gzip" in asked.headers["accept-encoding"] and "br" not in asked.headers["accept-encoding"]
    assert not {"cookie", "authorization"} & set(asked.headers)


def test_one_line_of_configuration_switches_the_service(searcher: Make, service: Service) -> None:
    service.says(SEARXNG)
    outcome = searcher(backend="searxng").search("tiempo en cádiz")
    (asked,) = service.asked
    assert asked.path == "/search" and asked.form["format"] == "json" and asked.form["q"] == "tiempo en cádiz"
    # What SearxNG's limiter demands of everybody.
    assert "text/html" in asked.headers["accept"] and asked.headers["accept-language"]
    assert {"gzip", "deflate"} <= set(asked.headers["accept-encoding"].replace(",", " ").split())
    assert not asked.headers["user-agent"].lower().startswith(("python", "curl", "wget", "go-http", "java"))
    assert len(outcome.results) == 2


def test_bangs_do_not_reach_the_service(searcher: Make, service: Service) -> None:
    service.says(LITE)
    searcher().search("!g \\gazpacho")
    assert service.asked[0].form["q"] == "g gazpacho"


def test_the_environment_s_proxies_are_not_used(
    searcher: Make, service: Service, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    service.says(LITE)
    for name in ("HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://proxy.invalid:3128")
    monkeypatch.setenv("NO_PROXY", "")
    (tmp_path / "netrc").write_text("default login yo password secreto\n")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    assert searcher().search("gazpacho").kind == "results"
    assert "authorization" not in service.asked[0].headers


def test_no_cookie_ties_two_questions_together(searcher: Make, service: Service) -> None:
    service.says(Reply(LITE.body, headers={"Set-Cookie": "quien=yo"}))
    asking = searcher()
    asking.search("uno")
    asking.search("dos")
    assert all("cookie" not in asked.headers for asked in service.asked) and len(service.asked) == 2


def test_the_guard_of_these_tests_guards(shipped: SearchConfig, tmp_path: Path, clock: Clock) -> None:
    with pytest.raises(AssertionError, match="leaves the machine"):
        Searcher(shipped, tmp_path, clock, clock.sleep).search("hola")
    with socket.socket() as other, pytest.raises(AssertionError, match="leaves the machine"):
        other.connect(("192.0.2.1", 80))


# The outcomes, end to end.


def test_at_most_the_configured_number_of_results(searcher: Make, service: Service) -> None:
    service.says(LITE)
    outcome = searcher(results=2).search("gazpacho")
    assert [result.host for result in outcome.results] == ["cocina.example.org", "abuela.example.net"], "and no ads"
    assert len(searcher(results=5).search("gazpacho").results) == 3, "the whole page is in the cache"


def test_a_block_is_asked_once_and_left_alone_until_it_is_over(searcher: Make, service: Service, clock: Clock) -> None:
    service.says(CHALLENGE, LITE)
    asking = searcher()
    assert asking.search("gazpacho").kind == "blocked" and len(service.asked) == 1
    clock.now += COOLDOWN - 90
    for restarted in (asking, searcher()):
        outcome = restarted.search("otra cosa")
        assert outcome.kind == "blocked" and "2 min" in outcome.detail and outcome.age_seconds is None
    assert len(service.asked) == 1, "nothing was asked meanwhile, not even after a restart"
    clock.now += 90
    assert searcher().search("gazpacho").kind == "results", "the block itself was not kept"
    assert len(service.asked) == 2


def test_what_was_found_before_a_block_is_still_served(searcher: Make, service: Service) -> None:
    service.says(LITE, CHALLENGE)
    asking = searcher()
    asking.search("gazpacho")
    assert asking.search("otra cosa").kind == "blocked"
    assert asking.search("Gazpacho").kind == "results"


def test_a_block_of_one_service_does_not_silence_the_other(searcher: Make, service: Service) -> None:
    service.says(CHALLENGE, SEARXNG)
    assert searcher().search("gazpacho").kind == "blocked"
    assert searcher(backend="searxng").search("gazpacho").kind == "results"


@pytest.mark.parametrize(
    "refusal",
    [
        SILENT,
        Reply(b"Too Many Requests", 429),
        Reply(b"", 302, headers={"Location": "/"}),
        Reply(b"<html>SearXNG</html>", 200, HTML),
    ],
)
def test_a_searxng_that_refuses_is_asked_once(refusal: Reply, searcher: Make, service: Service, clock: Clock) -> None:
    service.says(refusal, SEARXNG)
    asking = searcher(backend="searxng")
    assert asking.search("tiempo").kind == asking.search("tiempo").kind == "blocked"
    assert len(service.asked) == 1
    clock.now += 60
    assert asking.search("tiempo").kind == "results"


def test_redirects_are_not_followed(searcher: Make, service: Service) -> None:
    service.says(Reply(b"", 303, headers={"Location": f"{service.url}/otra"}))
    assert searcher().search("gazpacho").kind == "unreadable"
    assert [asked.path for asked in service.asked] == ["/"]


@pytest.mark.parametrize(
    "failure", [Reply(b"falla", 500), Reply(b"<p>algo nuevo</p>"), Reply(b"%PDF-1.7", content_type="application/pdf")]
)
def test_a_failure_is_not_kept(failure: Reply, searcher: Make, service: Service) -> None:
    service.says(failure, LITE)
    asking = searcher()
    assert asking.search("gazpacho").kind in ("unreachable", "unreadable")
    assert asking.search("gazpacho").kind == "results"


def test_no_results_is_said_again_only_for_a_while(searcher: Make, service: Service, clock: Clock) -> None:
    service.says(EMPTY, LITE)
    asking = searcher()
    assert asking.search("xqzvw").kind == "no_results"
    clock.now += 600
    again = asking.search("xqzvw")
    assert (again.kind, again.age_seconds) == ("no_results", 600)
    clock.now += 300
    assert asking.search("xqzvw").kind == "results"


# Faults on the way.


def drip(handler: BaseHTTPRequestHandler) -> None:
    handler.send_response(200)
    handler.end_headers()
    try:
        while True:
            handler.wfile.write(b"<p>")
            threading.Event().wait(0.02)
    except OSError:
        pass


def cut(handler: BaseHTTPRequestHandler) -> None:
    handler.send_response(200)
    handler.send_header("Content-Type", HTML)
    handler.send_header("Content-Length", str(len(LITE.body)))
    handler.end_headers()
    handler.wfile.write(LITE.body[:-500])


def without_length(handler: BaseHTTPRequestHandler) -> None:
    handler.send_response(200)
    handler.send_header("Connection", "close")
    handler.end_headers()
    handler.wfile.write(LITE.body)


def rubbish(handler: BaseHTTPRequestHandler) -> None:
    handler.wfile.write(b"no es HTTP\r\n\r\n")


def silence(handler: BaseHTTPRequestHandler) -> None:
    pass


@pytest.mark.parametrize(
    ("reply", "says"),
    [
        pytest.param(Reply(act=drip), "no acabó de contestar en 0.3 s", id="drip"),
        pytest.param(Reply(act=cut), "cortada", id="cut"),
        pytest.param(Reply(act=rubbish), "cortada", id="no HTTP"),
        pytest.param(Reply(act=silence), "cortada", id="hangs up"),
        pytest.param(Reply(b"<p>" * 2**20), "pasa de 2 MB", id="huge"),
        pytest.param(Reply(gzip.compress(bytes(2**25)), headers={"Content-Encoding": "gzip"}), "2 MB", id="bomb"),
        pytest.param(Reply(b"no es gzip", headers={"Content-Encoding": "gzip"}), "dañada", id="no gzip"),
    ],
)
def test_an_answer_that_does_not_arrive_whole_is_none_and_is_not_kept(
    reply: Reply, says: str, searcher: Make, service: Service
) -> None:
    service.says(reply, LITE)
    asking = searcher(timeout=0.3 if reply.act is drip else 20)
    outcome = asking.search("gazpacho")
    assert outcome.kind == "unreachable" and says in outcome.detail and "127.0.0.1" in outcome.detail
    assert len(service.asked) == 1, "it was not tried again"
    assert searcher().search("gazpacho").kind == "results"


def test_a_service_that_says_nothing_is_given_up(searcher: Make, service: Service) -> None:
    asked_and_gone = threading.Event()
    service.before_reply = asked_and_gone.wait
    outcome = searcher(timeout=0.2).search("gazpacho")
    asked_and_gone.set()
    assert outcome.kind == "unreachable" and "no contestó en 0.2 s" in outcome.detail


def test_nobody_there_is_unreachable(searcher: Make, service: Service, configured: Callable[..., SearchConfig]) -> None:
    asking = searcher()
    service.http.socket.close()
    outcome = asking.search("gazpacho")
    assert outcome.kind == "unreachable" and "no hay conexión" in outcome.detail


def test_a_page_that_may_have_been_cut_is_read_but_not_kept(searcher: Make, service: Service) -> None:
    service.says(Reply(act=without_length))
    asking = searcher()
    assert asking.search("gazpacho").kind == asking.search("gazpacho").kind == "results"
    assert len(service.asked) == 2


def test_compressed_and_latin_1_pages_are_read(searcher: Make, service: Service) -> None:
    packed = Reply(gzip.compress(LITE.body), headers={"Content-Encoding": "gzip"})
    latin = Reply(LITE.body.decode().encode("latin-1"), content_type="text/html; charset=ISO-8859-1")
    unknown = Reply(LITE.body, content_type="text/html; charset=nada")
    service.says(packed, latin, unknown)
    asking = searcher()
    assert asking.search("1").results == asking.search("2").results == asking.search("3").results != ()


def test_a_page_is_not_in_the_representation_of_an_answer() -> None:
    assert "secreto" not in repr(fetch.Answer(200, "text/html", "secreto"))


# The cache and the queue.


def test_a_repeated_question_is_not_asked_again_even_after_a_restart(
    searcher: Make, service: Service, clock: Clock
) -> None:
    service.says(LITE)
    first = searcher().search("tiempo madrid")
    clock.now += 3600
    again = searcher().search("  Tiempo   MADRID ")
    assert (again.results, first.age_seconds, again.age_seconds) == (first.results, None, 3600)
    assert len(service.asked) == 1
    searcher().search("ano")
    searcher().search("año")
    assert len(service.asked) == 3
    clock.now += 24 * 3600
    searcher().search("tiempo madrid")
    assert len(service.asked) == 4


def test_there_is_a_gap_between_two_requests_and_none_before_the_cache(
    searcher: Make, service: Service, clock: Clock
) -> None:
    service.says(LITE)
    searcher().search("uno")
    clock.now += 0.5
    searcher().search("dos")
    searcher().search("uno")
    clock.now += 5
    searcher().search("tres")
    assert clock.slept == [1.5]


def test_different_questions_go_one_at_a_time(searcher: Make, service: Service) -> None:
    service.says(LITE)
    both = [searcher(), searcher()]  # two searchers, as two processes have
    with ThreadPoolExecutor(8) as threads:
        outcomes = list(threads.map(lambda i: both[i % 2].search(f"pregunta {i}"), range(8)))
    assert all(outcome.kind == "results" for outcome in outcomes)
    assert (len(service.asked), service.most_inside) == (8, 1)


@pytest.mark.parametrize("reply", [LITE, Reply(b"falla", 500)])
def test_the_same_question_at_once_makes_one_request(reply: Reply, searcher: Make, service: Service) -> None:
    asking = searcher(ttl_hours=0)
    everybody = threading.Semaphore(0)

    class Counting(dict[str, "Future[Outcome]"]):
        def get(self, *of: object) -> Future[Outcome] | None:  # type: ignore[override]
            everybody.release()
            return super().get(*of)  # type: ignore[call-overload]

    asking._asking = Counting()
    service.says(reply)
    service.before_reply = lambda: [everybody.acquire(timeout=10) for _ in range(6)]
    with ThreadPoolExecutor(6) as threads:
        outcomes = list(threads.map(asking.search, ["gazpacho", "Gazpacho"] * 3))
    assert len(set(outcomes)) == 1 and len(service.asked) == 1


def test_three_processes_ask_the_same_once(
    configured: Callable[..., SearchConfig], service: Service, tmp_path: Path
) -> None:
    service.says(LITE)
    ready = threading.Event()
    service.before_reply = ready.wait
    command = [
        sys.executable,
        "-m",
        "tests.agent.search.child",
        configured().model_dump_json(),
        str(tmp_path),
        "gazpacho",
    ]
    children = [subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    assert all(child.stdout and child.stdout.readline() == "ready\n" for child in children)
    ready.set()
    assert [child.communicate(timeout=60)[0] for child in children] == ["results 3\n"] * 3
    assert len(service.asked) == 1


def test_a_stopped_process_does_not_hold_everybody_for_ever(
    searcher: Make, service: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("enlace.agent.search.manners._PATIENCE_SECONDS", 0.1)
    asking = searcher()
    (tmp_path / "agent").mkdir()
    with (tmp_path / "agent/duckduckgo.json").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        outcome = asking.search("gazpacho")
    assert outcome.kind == "unreachable" and "Otra búsqueda" in outcome.detail and not service.asked


@pytest.mark.parametrize("content", ["", "{", "[]", '{"asked": "ayer"}', '{"asked": 1e999, "blocked_until": 1e999}'])
def test_a_damaged_note_of_the_manners_is_none(content: str, searcher: Make, service: Service, tmp_path: Path) -> None:
    service.says(LITE)
    (tmp_path / "agent").mkdir()
    (tmp_path / "agent/duckduckgo.json").write_text(content)
    assert searcher().search("gazpacho").kind == "results"


def test_a_clock_set_back_does_not_silence_for_ever(searcher: Make, service: Service, clock: Clock) -> None:
    service.says(CHALLENGE, LITE)
    searcher().search("gazpacho")
    clock.now -= 10_000_000
    assert searcher().search("gazpacho").kind == "results" and clock.slept == []


def test_a_folder_that_cannot_be_written_is_told(searcher: Make, tmp_path: Path) -> None:
    (tmp_path / "agent").write_text("un archivo")
    with pytest.raises(EnlaceError, match="agent"):
        searcher().search("gazpacho")


def test_the_tool_does_not_need_torch() -> None:
    code = "import sys, enlace.agent.search; sys.exit('torch' in sys.modules or 'numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0
