from __future__ import annotations

import pytest

from enlace.agent.search.text import clean, result, shorten
from enlace.agent.search.unwrap import destination

DDG = "//duckduckgo.com/l/?"


@pytest.mark.parametrize(
    ("href", "expected"),
    [
        pytest.param(
            f"{DDG}uddg=https%3A%2F%2Fe.org%2Fa%3Fb%3D1%26c%3D2&rut=x", "https://e.org/a?b=1&c=2", id="wrapped"
        ),
        pytest.param("/l/?kh=-1&uddg=https%3A%2F%2Fe.org%2F", "https://e.org/", id="relative, uddg not first"),
        pytest.param("https://html.duckduckgo.com/l/?uddg=https%3A%2F%2Fe.org", "https://e.org", id="subdomain"),
        pytest.param(
            f"{DDG}uddg=https%3A%2F%2Fweather.com%2Fl%2FSan%2520Francisco",
            "https://weather.com/l/San%20Francisco",
            id="decoded once",
        ),
        pytest.param(f"{DDG}uddg=https%3A%2F%2Fe.org%2Fp%2B1%3Fq%3Da%2Bb", "https://e.org/p+1?q=a+b", id="plus"),
        pytest.param(f"{DDG}uddg=http%3A%2F%2Fe.org%2F", "http://e.org/", id="scheme kept"),
        pytest.param(f"{DDG}uddg=http%3A%2F%2Fe.org%2F%25E1%25F1o", "http://e.org/%E1%F1o", id="latin-1 untouched"),
        pytest.param(
            "https://e.org/?uddg=https%3A%2F%2Fx.org", "https://e.org/?uddg=https%3A%2F%2Fx.org", id="own uddg"
        ),
        pytest.param(
            "https://e.org/l/?uddg=https%3A%2F%2Fx.org", "https://e.org/l/?uddg=https%3A%2F%2Fx.org", id="other host"
        ),
        pytest.param(
            "https://duckduckgo.com.e.org/l/?uddg=https%3A%2F%2Fx.org",
            "https://duckduckgo.com.e.org/l/?uddg=https%3A%2F%2Fx.org",
            id="look-alike host",
        ),
        pytest.param("https://e.org/", "https://e.org/", id="direct"),
        pytest.param("https://code.example.org/jquery.js", "https://code.example.org/jquery.js", id="not y.js"),
        pytest.param(f"{DDG}uddg=https%3A%2F%2Fe.org%2Fa%20b", "https://e.org/a%20b", id="a literal space"),
        pytest.param("https://e.org/año/mañana", "https://e.org/año/mañana", id="an IRI"),
        pytest.param("https://[2001:db8::1]:8080/", "https://[2001:db8::1]:8080/", id="IPv6"),
    ],
)
def test_where_a_link_leads(href: str, expected: str) -> None:
    assert destination(href) == expected


@pytest.mark.parametrize(
    "href",
    [
        f"{DDG}uddg=javascript%3Aalert(1)",
        f"{DDG}uddg=data%3Atext%2Fhtml%2C1",
        f"{DDG}uddg=file%3A%2F%2F%2Fetc%2Fpasswd",
        f"{DDG}uddg=ftp%3A%2F%2Fe.org%2F",
        f"{DDG}rut=x",
        f"{DDG}uddg=",
        f"{DDG}uddg=e.org%2Fx",
        f"{DDG}uddg=%2F%2Fe.org%2Fx",
        f"{DDG}uddg=https%3A%2F%2Fduckduckgo.com%2Fy.js%3Fad_domain%3Dx",
        f"{DDG}uddg=https%3A%2F%2Fduckduckgo.com%2Fl%2F%3Fuddg%3Dhttps%253A%252F%252Fe.org",
        f"{DDG}uddg=http%3A%2F%2Fe.org%2F%E1%F1o",  # not UTF-8: its target cannot be spelt
        "https://duckduckgo.com/y.js?ad_domain=x",
        "https://DuckDuckGo.com./y.js?ad_domain=x",
        "/duckduckgo-help-pages/company/ads/",
        " java\nscript:alert(1)",
        "JAVASCRIPT:alert(1)",
        "https://[::1",
        "https://e.org:puerto/",
        "https://",
        "https:///ruta",
        "",
        "https://banco.example@e.org/",
        "https://e.org\\@banco.example/",
        "https://e.org/\u202egpj.exe",
        "https://e.org/\x00",
    ],
)
def test_what_is_no_result_is_dropped_without_an_exception(href: str) -> None:
    assert destination(href) is None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("uno \n dos\u00a0tres\u2003cuatro", "uno dos tres cuatro"),
        ("cafe\u0301", "café"),
        ("a\u200bb\u202ec\u00add\U000e0041e\x1b[31m", "abcde[31m"),
        ("\ud800", ""),
        ("m²", "m²"),
    ],
)
def test_strangers_text_is_made_plain(text: str, expected: str) -> None:
    assert clean(text) == expected


def test_a_title_is_never_empty() -> None:
    found = result(" \u200b ", "https://www.e.org/x")
    assert found and (found.title, found.host) == ("www.e.org", "e.org")


def test_texts_are_bounded() -> None:
    found = result("a" * 10_000, "https://e.org/", "palabra " * 10_000)
    assert found and len(found.title) == 300 and len(found.snippet) <= 2000 and found.snippet.endswith("palabra…")
    assert result("a", "https://e.org/" + "a" * 10_000) is None


@pytest.mark.parametrize(
    ("text", "chars", "expected"),
    [
        ("una frase corta", 15, "una frase corta"),
        ("una frase corta", 14, "una frase…"),
        ("una frase corta", 10, "una frase…"),
        ("una frase, corta", 11, "una frase…"),
        ("esdrújulamente", 6, "esdrú…"),
    ],
)
def test_texts_are_cut_between_words(text: str, chars: int, expected: str) -> None:
    assert shorten(text, chars) == expected
    assert len(expected) <= chars or text == expected
