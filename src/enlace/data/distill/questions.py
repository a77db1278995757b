"""Questions about an encyclopedic document whose answers stand in its first sentences."""

from __future__ import annotations

import re
from collections.abc import Iterator
from hashlib import sha256
from itertools import islice
from typing import TYPE_CHECKING

from enlace.data.clean import normalise
from enlace.data.dedup import document_hash
from enlace.data.distill.answers import answer
from enlace.data.distill.lead import Lead, leads
from enlace.data.distill.passages import SYSTEM, grounded, passage_of
from enlace.data.distill.requests import Peticion
from enlace.data.personal import without_personal_data

if TYPE_CHECKING:
    from enlace.data.documents import Document

_ARTICLE = re.compile(r"(?:el|la|los|las|un|una) ", re.IGNORECASE)
_ARTICLE_BEFORE = re.compile(rf"(?<!\w){_ARTICLE.pattern}$", re.IGNORECASE)
_ANOTHER_NAME = re.compile(r"(?:, | [ou] |\(|como |llamad[oa] |seudónimo |simplemente )$")
_MAKER_VERBS = ("escribió", "pintó", "compuso", "dirigió", "creó", "fundó", "diseñó", "inventó", "descubrió")


def questions_from_document(document: Document, count: int) -> list[Peticion]:
    """Up to `count` questions of different kinds about `document`, always the same ones; none if it does not suit.

    Only questions that the passage can answer are asked, so that a paid teacher is not paid for "no lo dice".
    Which of the possible kinds are asked varies from document to document. Personal data become placeholders, as in
    the corpus: a teacher may be far from home.
    """
    passage = passage_of(normalise(document.text))
    if passage is not None:
        passage, _ = without_personal_data(passage)
    lead = next(iter(leads(passage)), None) if passage else None
    if passage is None or lead is None or "[" in lead.subject:
        return []
    hashed = document_hash(document.text)
    candidates = sorted(
        _candidates(lead, document.meta.get("title", ""), document.meta.get("topic", "")),
        key=lambda candidate: sha256((hashed + candidate[1]).encode()).digest(),
    )
    chosen = islice((pair for pair in candidates if answer(passage, pair[1])), count)
    meta = {"document": document.id, "document_hash": hashed, "source": document.source}
    return [Peticion(SYSTEM, grounded(passage, question), meta | {"kind": kind}) for kind, question in chosen]


def _candidates(lead: Lead, title: str, topic: str) -> Iterator[tuple[str, str]]:
    """Every question that makes sense about this subject, answerable or not: (kind, question)."""
    name = _name_in_question(lead, re.sub(r" \(.*\)$", "", title))
    if not name:
        return
    be = lead.verb
    plural = be in ("son", "fueron", "eran")
    past = be not in ("es", "son")
    if topic == "Personas":
        who = "Quiénes" if plural else "Quién"
        yield "definition", f"¿{who} {be} {name}?"
        if not plural:
            yield "trade", f"¿A qué se {'dedicaba' if past else 'dedica'} {name}?"
            yield "nationality", f"¿De qué nacionalidad {be} {name}?"
            gender = "a" if re.match(r"una |la ", lead.predicate) else "o"
            yield "known_for", f"¿Por qué {be} conocid{gender} {name}?"
            for verb in ("nació", "murió"):
                yield "where", f"¿Dónde {verb} {name}?"
                yield "when", f"¿Cuándo {verb} {name}?"
        yield "topic", f"¿De {who.lower()} habla el texto?"
    elif topic:
        yield "definition", f"¿Qué {be} {name}?"
        yield "capital", f"¿Cuál {be} la capital de {name}?".replace(" de el ", " del ")
        if not name.startswith(("un ", "una ")):
            yield "where", f"¿Dónde {'estaba' if past else 'está'}{'n' if plural else ''} {name}?"
        for verb in _MAKER_VERBS:
            yield "maker", f"¿Quién {verb} {name}?"
        yield "topic", "¿De qué habla el texto?"
    if not plural:
        yield "other_name", f"¿Qué otro nombre tiene {name}?"
    yield "when", "¿Qué año menciona el texto?"
    yield "when", "¿Qué siglo menciona el texto?"


def _name_in_question(lead: Lead, title: str) -> str | None:
    """How to call the subject: by its title as the text writes it, with its article; else by its name, if it fits."""
    if not title:
        return None
    start = lead.subject.casefold().find(title.casefold()) if lead.names(title) else -1
    article = _ARTICLE_BEFORE.search(lead.subject, 0, max(start, 0))
    first = article.start() if article else start
    # Further on it must be a name by itself, not the end of "las muertes que abren el período helenístico"; nor of "el
    # macizo etiópico o macizo etíope", which would leave it without an article.
    by_itself = _ANOTHER_NAME.search(lead.subject, 0, max(first, 0)) or len(lead.name.split()) <= len(title.split()) + 3
    if first == 0 or (first > 0 and by_itself and not _ARTICLE.match(lead.name)):
        name = lead.subject[first : start + len(title)]
    elif set(_words(title)) <= set(_words(lead.subject)) and len(lead.name) <= 60:
        name = lead.name
    else:
        return None
    return name[0].lower() + name[1:] if _ARTICLE.match(name) else name


def _words(text: str) -> list[str]:
    return re.findall(r"\w+", text.casefold())
