"""Thousands of different household prompts, crossed out of lists that a person can read and edit.

A folder of YAML (`data/specs/hogar`) says what people ask about, how they ask, and how each country calls things:

    paises.yaml      countries, their cities, and whether they say tú, vos or usted
    palabras.yaml    what changes its name from one country to another, "la heladera", "el refrigerador"
    formas.yaml      how a question is put, how the answer is wanted, and what the teacher is told beforehand
    temas/*.yaml     topics: the situations that people are in and what they want, by the form of the question

Texts carry three marks. ``[uno|otro]`` is a choice. ``<di|diga|decí>`` follows the register (tú, usted, vos).
``{el:nevera}`` is a word of the country with its article (``un:`` the other article, ``o:`` the ending of an adjective,
``{nevera}`` the bare word). The same folder, number and seed give the same requests, in any process; a larger number
begins with those of a smaller one.
"""

from __future__ import annotations

import random
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any, TypeVar

from enlace import EnlaceError
from enlace.config import yaml12
from enlace.data.distill.requests import Peticion

T = TypeVar("T")

REGISTERS = ("tú", "usted", "vos")
KINDS = ("hacer", "saber", "escribir", "planear")
_OPENINGS = {"saludos": "saludo", "lugares": "lugar"}  # and how the share of each is called
_SHARES = (*_OPENINGS.values(), "situacion", "formato")
_TRIES = 60
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
    if missing := {"sistema", "frecuencia", *_OPENINGS, "peticiones", "formatos"} - forms.keys():
        raise EnlaceError(f"{path}: falta {', '.join(sorted(missing))}.")
    topics = [topic for file in sorted((folder / "temas").glob("*.yaml")) for topic in _topics(file)]
    material = Material(
        topics=tuple(topics),
        countries=countries,
        templates={kind: _pieces(path, forms["peticiones"].get(kind)) for kind in KINDS},
        formats={kind: _pieces(path, forms["formatos"].get(kind)) for kind in KINDS},
        openings={name: _pieces(path, forms[name]) for name in _OPENINGS},
        system=forms["sistema"],
        shares=_shares(path, forms["frecuencia"]),
    )
    _check(material, folder)
    return material


def generate(material: Material, n: int, seed: int) -> Iterator[Peticion]:
    """`n` requests, no two of which ask the same even without greeting and place, balanced over topics, registers and
    countries.

    Raises:
        EnlaceError: the material does not give so many.
    """
    draw = _Draw(seed)
    seen: set[str] = set()
    alive = list(material.topics)
    for made in range(n):
        while alive:
            topic = draw.turn("topic", alive)
            request = _fresh(material, topic, draw, seen)
            if request is not None:
                yield request
                break
            alive.remove(topic)
        else:
            raise EnlaceError(
                f"Con este material no salen {n} peticiones distintas; con {made} ya se repite. Pide menos."
            )


def count(material: Material) -> int:
    """How many requests, different without greeting and place, the material holds.

    A request is a situation or none, a wish in a template, and a format or none. What several countries and registers
    word alike is counted once.
    """
    speakers = [(r, country) for r in REGISTERS for country in material.countries if r in country.registers]
    nothing = Counter({(1 << len(speakers)) - 1: 1})
    total = 0
    for kind in KINDS:
        formats = _wordings(material.formats[kind], speakers) + nothing
        around = _combined(_wordings(material.templates[kind], speakers), formats)
        for topic in material.topics:
            wishes = _wordings((wish for k, wish in topic.wishes if k == kind), speakers)
            situations = _wordings(topic.situations, speakers) + nothing
            total += sum(_combined(_combined(wishes, situations), around).values())
    return total


def render(text: str, register: str, country: Country) -> str:
    """The text in a register, with the words of a country."""
    text = _REGISTER.sub(lambda match: match[1].split("|")[REGISTERS.index(register)], text)
    text = _SLOT.sub(lambda match: _word(match[1], country), text)
    return _CONTRACTIONS.sub(lambda match: "del" if match[1] == "de" else "al", text)


def fold(text: str) -> str:
    """What two texts share that differ only in case, accents, marks or spaces."""
    plain = unicodedata.normalize("NFKD", text.casefold())
    return " ".join("".join(c if c.isalnum() else " " for c in plain if not unicodedata.combining(c)).split())


class _Draw:
    """Choices at random in which everything gets its turn: the one taken least often so far, a tie by lot."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._taken: dict[str, Counter[str]] = {}

    def turn(self, pool: str, options: Sequence[T]) -> T:
        """One of `options`, which `pool` remembers."""
        taken = self._taken.setdefault(pool, Counter())
        least = min(taken[_key(option)] for option in options)
        chosen = self.lot([option for option in options if taken[_key(option)] == least])
        taken[_key(chosen)] += 1
        return chosen

    def lot(self, options: Sequence[T]) -> T:
        """Only `random()` is promised to be the same in every version of Python."""
        return options[int(self._random.random() * len(options))]

    def happens(self, share: float) -> bool:
        return self._random.random() < share


def _key(option: object) -> str:
    match option:
        case Piece():
            return option.source
        case Topic() | Country():
            return option.name
        case (kind, Piece() as wish):
            return f"{kind} {wish.source}"
    return str(option)


def _fresh(material: Material, topic: Topic, draw: _Draw, seen: set[str]) -> Peticion | None:
    """A request of the topic that was not made before; None when it seems to have no more."""
    register = draw.turn("register", REGISTERS)
    country = draw.turn("country", [c for c in material.countries if register in c.registers])
    for attempt in range(_TRIES):
        if attempt > _TRIES // 2:  # nearly everything was said this way: balance gives in
            country = draw.lot(material.countries)
            register = draw.lot(country.registers)
        kind, wish = draw.turn(f"wish {topic.name}", topic.wishes)
        template = draw.turn(f"template {kind}", material.templates[kind])
        situation = _maybe(draw, material, "situacion", f"situation {topic.name}", topic.situations)
        format_ = _maybe(draw, material, "formato", f"format {kind}", material.formats[kind])
        wanted = draw.turn(f"variant {wish.source}", wish.variants)
        asked = _ask(draw.lot(template.variants), wanted)
        before, after = ([draw.lot(piece.variants)] if piece else [] for piece in (situation, format_))
        core = [render(text, register, country) for text in (*before, asked, *after)]
        if (key := fold(" ".join(core))) in seen:
            continue
        seen.add(key)
        opening = [_maybe(draw, material, share, name, material.openings[name]) for name, share in _OPENINGS.items()]
        first = [render(_city(draw, draw.lot(p.variants), country), register, country) for p in opening if p]
        meta = {
            "kind": "hogar",
            "group": topic.group,
            "topic": topic.name,
            "form": kind,
            "wish": wish.source,
            "situation": situation.source if situation else None,
            "template": template.source,
            "format": format_.source if format_ else None,
            "register": register,
            "country": country.name,
        }
        system = render(_city(draw, material.system, country), register, country)
        return Peticion(system, " ".join([*first, *core]), meta, format_.schema if format_ else None)
    return None


def _maybe(draw: _Draw, material: Material, share: str, pool: str, pieces: Sequence[Piece]) -> Piece | None:
    return draw.turn(pool, pieces) if pieces and draw.happens(material.shares[share]) else None


def _ask(template: str, wish: str) -> str:
    return template.replace("{ask}", wish).replace("{Ask}", wish[:1].upper() + wish[1:])


def _city(draw: _Draw, text: str, country: Country) -> str:
    if "{ciudad}" in text:
        text = text.replace("{ciudad}", draw.turn(f"city {country.name}", country.cities))
    return text.replace("{pais}", country.name)


def _wordings(pieces: Iterable[Piece], speakers: Sequence[tuple[str, Country]]) -> Counter[int]:
    """How many wordings are said by just these speakers (a bit each), for each set of speakers."""
    said: dict[str, int] = {}
    for piece in pieces:
        for variant in piece.variants:
            for i, (register, country) in enumerate(speakers):
                text = render(variant, register, country)
                said[text] = said.get(text, 0) | 1 << i
    return Counter(said.values())


def _combined(some: Counter[int], others: Counter[int]) -> Counter[int]:
    """Pairs of wordings, by the speakers who say both."""
    pairs: Counter[int] = Counter()
    for (i, a), (j, b) in product(some.items(), others.items()):
        if i & j:
            pairs[i & j] += a * b
    return pairs


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
