"""A request that carries the text to answer from: how it is written, read back, and cut out of a document."""

from __future__ import annotations

import re

SYSTEM = "Responde en español, solo con lo que dice el texto."

_PASSAGE_CHARS = 420
_FORM = re.compile(r"Texto: (?P<passage>.+)\n\nPregunta: (?P<question>[^\n]+)", re.DOTALL)

# Words whose full stop does not end a sentence. A lone letter ("a. C.", "J. R. R.", "EE. UU.") never does.
_ABBREVIATION = re.compile(
    "[^\\W\\d_]|aprox|art|avd?a?|cap|cía|dir|dra?|ee|ej|exc|fig|fr|fray|gral|hnos|ing|lic|máx|mín|mrs?|mt|núm|nro|págs?|pl|"
    "prof|reg|rev|sra?|srta|sta?|sto|tel|teléf|trad|uu|vol|vs",
    re.IGNORECASE,
)
_SENTENCE_END = re.compile(r"[.!?…]+[\"'»”’)\]]*(?=\s|$)")
_SENTENCE_START = re.compile(r"\s*[\"'«“‘(\[¿¡—]*[A-ZÁÉÍÓÚÜÑÀ-ÖØ-Þ0-9]")


def grounded(passage: str, question: str) -> str:
    """The text of a request whose answer is in `passage`."""
    return f"Texto: {passage}\n\nPregunta: {question}"


def parse_grounded(user: str) -> tuple[str, str] | None:
    """Passage and question of a request written by `grounded`; None if it is another kind of request."""
    match = _FORM.fullmatch(user)
    return (match["passage"], match["question"]) if match else None


def sentences(text: str) -> list[str]:
    """The sentences of `text`, each with its final punctuation; a line break ends one too."""
    found = []
    for line in text.splitlines():
        start = 0
        for end in _SENTENCE_END.finditer(line):
            if _ends_here(line, start, end):
                found.append(line[start : end.end()].strip())
                start = end.end()
        found.append(line[start:].strip())
    return [sentence for sentence in found if sentence]


def passage_of(text: str) -> str | None:
    """The first whole sentences of `text`, up to some 420 characters; None if not even one is whole."""
    first_line = text.split("\n", 1)[0]
    end = 0
    for sentence in sentences(first_line):
        after = first_line.index(sentence, end) + len(sentence)
        if after > _PASSAGE_CHARS or not _SENTENCE_END.search(sentence[-3:]):
            break
        end = after
    return first_line[:end].strip() or None


def _ends_here(line: str, start: int, end: re.Match[str]) -> bool:
    if end.end() == len(line):
        return True
    if not _SENTENCE_START.match(line, end.end()):
        return False
    word = re.split(r"[\s(«“\"]", line[start : end.start()])[-1]
    return end.group() != "." or not _ABBREVIATION.fullmatch(word)
