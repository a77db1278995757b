"""Thousands of different household prompts, crossed out of lists that a person can read and edit (`spec_material`).

The same lists, number and seed give the same requests, in any process; a larger number begins with those of a smaller
one.
"""

from __future__ import annotations

import random
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import product
from typing import TypeVar

from enlace import EnlaceError
from enlace.data.distill.requests import Peticion
from enlace.data.spec_material import KINDS, OPENINGS, REGISTERS, Country, Material, Piece, Topic, render

T = TypeVar("T")

_TRIES = 60


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
        opening = [_maybe(draw, material, share, name, material.openings[name]) for name, share in OPENINGS.items()]
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
