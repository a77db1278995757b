"""The lists that household prompts are made of: a folder of YAML, read and checked, and what its texts say.

A folder (`data/specs/hogar`) says what people ask about, how they ask, and how each country calls things:

    paises.yaml      countries, their cities, and whether they say tú, vos or usted
    palabras.yaml    what changes its name from one country to another, "la heladera", "el refrigerador"
    formas.yaml      how a question is put, how the answer is wanted, and what the teacher is told beforehand
    temas/*.yaml     topics: the situations that people are in and what they want, by the form of the question

Texts carry three marks. ``[uno|otro]`` is a choice. ``<di|diga|decí>`` follows the register (tú, usted, vos).
``{el:nevera}`` is a word of the country with its article (``un:`` the other article, ``o:`` the ending of an adjective,
``{nevera}`` the bare word).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

from enlace import EnlaceError
from enlace.config import yaml12

REGISTERS = ("tú", "usted", "vos")
KINDS = ("hacer", "saber", "escribir", "planear")
OPENINGS = {"saludos": "saludo", "lugares": "lugar"}  # and how the share of each is called
_SHARES = (*OPENINGS.values(), "situacion", "formato")
_CHOICE = re.compile(r"\[([^\[\]]*)\]")
_REGISTER = re.compile(r"<([^<>]*)>")
_BLANKS = ("ask", "Ask", "ciudad", "pais")  # filled otherwise
_SLOT = re.compile(r"\{([^{}]*)\}")
_ARTICLES = ("el", "la", "los", "las")
# What agrees with the gender and number of a noun.
_FORMS = {"el": _ARTICLES, "un": ("un", "una", "unos", "unas"), "o": ("o", "a", "os", "as")}
_CONTRACTIONS = re.compile(r"\b(de|a) el\b")


@dataclass(frozen=True)
class Country:
    """Where somebody asks from."""

    name: str
    cities: tuple[str, ...]
    registers: tuple[str, ...]
    words: dict[str, str] = field(hash=False)


@dataclass(frozen=True)
class Piece:
    """A text as it was written, and every choice that it offers."""

    source: str
    variants: tuple[str, ...]
    schema: dict[str, Any] | None = field(default=None, hash=False)


@dataclass(frozen=True)
class Topic:
    """What people ask about: `wishes` are pairs of a kind and what is wanted."""

    name: str
    group: str
    situations: tuple[Piece, ...]
    wishes: tuple[tuple[str, Piece], ...]


@dataclass(frozen=True)
class Material:
    """A whole folder, read and checked."""

    topics: tuple[Topic, ...]
    countries: tuple[Country, ...]
    templates: dict[str, tuple[Piece, ...]]
    formats: dict[str, tuple[Piece, ...]]
    openings: dict[str, tuple[Piece, ...]]
    system: str
    shares: dict[str, float]


def read_material(folder: Path) -> Material:
    """The material of a folder.

    Raises:
        EnlaceError: a file is missing, is no YAML, lacks a key, or holds a text with a mark that means nothing; the
            message names the file and the text.
    """
    countries = _countries(folder)
    path = folder / "formas.yaml"
    forms = _table(path)
    if missing := {"sistema", "frecuencia", *OPENINGS, "peticiones", "formatos"} - forms.keys():
        raise EnlaceError(f"{path}: falta {', '.join(sorted(missing))}.")
    topics = [topic for file in sorted((folder / "temas").glob("*.yaml")) for topic in _topics(file)]
    material = Material(
        topics=tuple(topics),
        countries=countries,
        templates={kind: _pieces(path, forms["peticiones"].get(kind)) for kind in KINDS},
        formats={kind: _pieces(path, forms["formatos"].get(kind)) for kind in KINDS},
        openings={name: _pieces(path, forms[name]) for name in OPENINGS},
        system=forms["sistema"],
        shares=_shares(path, forms["frecuencia"]),
    )
    _check(material, folder)
    return material


def render(text: str, register: str, country: Country) -> str:
    """The text in a register, with the words of a country."""
    text = _REGISTER.sub(lambda match: match[1].split("|")[REGISTERS.index(register)], text)
    text = _SLOT.sub(lambda match: _word(match[1], country), text)
    return _CONTRACTIONS.sub(lambda match: "del" if match[1] == "de" else "al", text)


def _word(slot: str, country: Country) -> str:
    if slot in _BLANKS:
        return f"{{{slot}}}"
    form, _, name = slot.rpartition(":")
    article, noun = _split(country.words[name])
    if not form:
        return noun
    agreed = _FORMS[form][_ARTICLES.index(article)]
    return agreed if form == "o" else f"{agreed} {noun}"


def _split(word: str) -> tuple[str, str]:
    article, _, noun = word.partition(" ")
    return (article, noun) if article in _ARTICLES and noun else ("el", word)


def _expand(text: str) -> tuple[str, ...]:
    """Every way through the choices of a text."""
    parts = [part.split("|") if i % 2 else [part] for i, part in enumerate(_CHOICE.split(text))]
    return tuple("".join(way) for way in product(*parts))


def _table(path: Path) -> dict[str, Any]:
    content = yaml12.load(path)
    if not isinstance(content, dict):
        raise EnlaceError(f"{path}: tiene que ser una lista de claves y valores (clave: valor).")
    return content


def _countries(folder: Path) -> tuple[Country, ...]:
    """The countries, each with its own words."""
    path, words_path = folder / "paises.yaml", folder / "palabras.yaml"
    countries: dict[str, tuple[str, tuple[str, ...], tuple[str, ...]]] = {}
    for name, value in _table(path).items():
        try:
            countries[value["codigo"]] = (name, tuple(value["ciudades"]), tuple(value["registros"]))
        except (KeyError, TypeError) as error:
            raise EnlaceError(f"{path}: {name}: lleva codigo, registros y ciudades.") from error
        if wrong := [register for register in value["registros"] if register not in REGISTERS]:
            raise EnlaceError(f"{path}: {name}: {wrong[0]} no es un registro; son {', '.join(REGISTERS)}.")
    words: dict[str, dict[str, str]] = {code: {} for code in countries}
    for word, by_country in _table(words_path).items():
        if not isinstance(by_country, dict) or "todos" not in by_country:
            raise EnlaceError(f"{words_path}: {word}: falta «todos», la palabra de los demás países.")
        said = {code: text for codes, text in by_country.items() if codes != "todos" for code in codes.split()}
        if strange := said.keys() - countries.keys():
            raise EnlaceError(f"{words_path}: {word}: {min(strange)} no es el código de ningún país de paises.yaml.")
        for code in countries:
            words[code][word] = str(said.get(code, by_country["todos"]))
    return tuple(Country(*country, words[code]) for code, country in countries.items())


def _shares(path: Path, shares: Any) -> dict[str, float]:
    for name in _SHARES:
        share = shares.get(name) if isinstance(shares, dict) else None
        if not isinstance(share, int | float) or not 0 <= share <= 1:
            raise EnlaceError(f"{path}: frecuencia.{name}={share}: tiene que ser un número de 0 a 1.")
    return dict(shares)


def _pieces(path: Path, texts: Any) -> tuple[Piece, ...]:
    if not isinstance(texts, list) or not texts:
        raise EnlaceError(f"{path}: se esperaba una lista de textos y hay: {str(texts)[:80]}")
    pieces = []
    for text in texts:
        schema = None
        if isinstance(text, dict) and text.keys() == {"texto", "esquema"}:
            text, schema = text["texto"], text["esquema"]
        if not isinstance(text, str):
            raise EnlaceError(f"{path}: esto no es un texto (¿faltan comillas?): {text}")
        pieces.append(Piece(text, _expand(text), schema))
    return tuple(pieces)


def _topics(path: Path) -> Iterator[Topic]:
    content = _table(path)
    shared = _pieces(path, content["situaciones"]) if content.get("situaciones") else ()
    for name, topic in content.get("temas", {}).items():
        unknown = topic.keys() - {*KINDS, "situaciones"} if isinstance(topic, dict) else {str(topic)}
        if unknown:
            raise EnlaceError(f"{path}: {name}: solo lleva {', '.join(KINDS)} y situaciones; sobra {min(unknown)}.")
        own = _pieces(path, topic["situaciones"]) if "situaciones" in topic else ()
        wishes = [(kind, piece) for kind in KINDS if kind in topic for piece in _pieces(path, topic[kind])]
        if not wishes:
            raise EnlaceError(f"{path}: {name}: no pide nada; lleva {', '.join(KINDS)}.")
        yield Topic(name, path.stem, (*own, *shared), tuple(wishes))


def _check(material: Material, folder: Path) -> None:
    """Every mark of every text means something."""
    if not material.topics or not material.countries:
        raise EnlaceError(f"{folder}: hacen falta países en paises.yaml y temas en temas/*.yaml.")
    if lacking := [r for r in REGISTERS if not any(r in country.registers for country in material.countries)]:
        raise EnlaceError(f"{folder / 'paises.yaml'}: ningún país usa {lacking[0]}.")
    known = set(material.countries[0].words)
    groups = [
        (folder / "formas.yaml", [p for pieces in material.templates.values() for p in pieces], {"ask", "Ask"}),
        (folder / "formas.yaml", [p for pieces in material.formats.values() for p in pieces], set()),
        (folder / "formas.yaml", [p for pieces in material.openings.values() for p in pieces], {"ciudad", "pais"}),
        (folder / "formas.yaml", [Piece(material.system, (material.system,))], {"ciudad", "pais"}),
    ]
    for topic in material.topics:
        where = folder / "temas" / f"{topic.group}.yaml"
        groups.append((where, [*topic.situations, *(wish for _, wish in topic.wishes)], set()))
    for path, pieces, extra in groups:
        for piece in pieces:
            for text in piece.variants:
                if problem := _problem(text, known, extra):
                    raise EnlaceError(f"{path}: {problem}, en: {piece.source}")


def _problem(text: str, known: set[str], extra: set[str]) -> str:
    for match in _REGISTER.finditer(text):
        if match[1].count("|") != len(REGISTERS) - 1:
            return f"<{match[1]}> no lleva las tres formas <tú|usted|vos>"
    for match in _SLOT.finditer(text):
        form, _, name = match[1].rpartition(":")
        if match[1] not in extra and (name not in known or (form and form not in _FORMS)):
            return f"{{{match[1]}}} no está en palabras.yaml, o su forma no es una de {', '.join(_FORMS)}"
    if stray := re.search(r"[\[\]<>{}|]", _SLOT.sub("", _REGISTER.sub("", text))):
        return f"sobra o falta un signo ({stray[0]})"
    return "hay espacios de más" if text != " ".join(text.split()) else ""
