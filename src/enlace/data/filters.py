"""The cleaning rules: what is taken out of a document, and which documents are dropped; all counted, with samples."""

from __future__ import annotations

import re
from bisect import insort
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from enlace.config.schema import CleanConfig
from enlace.data.clean import normalise
from enlace.data.decontaminate import EvalSet
from enlace.data.dedup import folded_digest
from enlace.data.documents import Document
from enlace.data.language import is_spanish
from enlace.data.near import GRAM
from enlace.data.personal import PLACEHOLDERS, without_personal_data
from enlace.data.words import Words, mixed, words_of

SAMPLES = 5  # of each kind, those with the smallest hash: the same ones in whatever order documents come
_SHOWN = 160  # characters of a sample

# Lines that pages add around what somebody wrote; the whole line must be nothing else. What is repeated is never given
# back ("++"), and stays in its line: otherwise thousands of lines of dashes would be read thousands of times.
_BOILERPLATE = re.compile(
    r"^[^\w\n]*(?:"
    r"(?:este sitio|esta web|esta página|nuestra web|usamos|utilizamos)[^\n]{0,80}\bcookies\b[^\n]{0,200}"
    r"|(?:aceptar|rechazar|configurar|política de)(?: todas)?(?: las)? cookies"
    r"|(?:leer|ver|saber|seguir leyendo|cargar) más(?: comentarios| noticias)?"
    r"|(?:comparte|compartir|síguenos)(?: esto)?"
    r"(?: en (?:facebook|twitter|x|whatsapp|instagram|redes sociales|[^\w\n]|y)++)?"
    r"|(?:volver|ir) (?:arriba|al inicio|a la página principal)|página (?:anterior|siguiente)"
    r"|(?:haga|haz) clic aquí[^\n]{0,60}|suscríbete[^\n]{0,80}|iniciar sesión|regístrate|(?:aviso|nota) legal"
    r"|política de privacidad|términos y condiciones|imprimir|enviar por correo(?: electrónico)?"
    r"|\[[^\[\]\n<>]*+[<>][^\[\]\n]*+\]|(?:\[[^\]\n]{1,40}\] ?){2,}"  # links to the pages around
    r"|(?:©|\(c\)|copyright)[^\n]{0,120}"
    r")[^\w\n]*+$",
    re.IGNORECASE | re.MULTILINE,
)
# Apart, since it may begin with anything: beside the others it would be tried at every line.
_RIGHTS = re.compile(r"[^\w\n]*[^\n]{0,60}todos los derechos reservados[^\w\n]*", re.IGNORECASE)
_RIGHTS_NEAR = re.compile(r" (?i:derechos reservados)")
_REPEATS, _REPEATED_WORDS = 3, 4  # a line of four words or more, three times or more in one document
_PLAIN = bytes(code for code in range(256) if chr(code).isalpha() or chr(code).isspace())


@dataclass
class Report:
    """What the rules did: documents dropped, things taken out of all of them, and samples of both by reason."""

    documents: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    removed: Counter[str] = field(default_factory=Counter)
    samples: dict[str, list[tuple[str, str, str]]] = field(default_factory=dict)  # hash, id, text
    eval_items: set[int] = field(default_factory=set)

    def sample(self, reason: str, key: bytes, id: str, text: str) -> None:
        """Keep a sample, if it is among the first by hash."""
        samples = self.samples.setdefault(reason, [])
        if len(samples) == SAMPLES and (key.hex(), id) > samples[-1][:2]:
            return
        shown, _ = without_personal_data(text[: 4 * _SHOWN])  # a line may be taken out before they are
        insort(samples, (key.hex(), id, shown[:_SHOWN].replace("\n", " ⏎ ")))
        del samples[SAMPLES:]

    def add(self, other: Report) -> None:
        """Add another part of the same work."""
        self.documents += other.documents
        self.dropped.update(other.dropped)
        self.removed.update(other.removed)
        self.eval_items |= other.eval_items
        for reason, samples in other.samples.items():
            self.samples[reason] = sorted([*self.samples.get(reason, []), *samples])[:SAMPLES]

    def to_json(self) -> dict[str, Any]:
        """As plain data; `from_json` undoes it."""
        return {
            "documents": self.documents,
            "dropped": dict(sorted(self.dropped.items())),
            "removed": dict(sorted(self.removed.items())),
            "samples": {reason: [list(s) for s in samples] for reason, samples in sorted(self.samples.items())},
            "eval_items": sorted(self.eval_items),
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Report:
        """From plain data."""
        samples = {reason: [(k, i, t) for k, i, t in samples] for reason, samples in data["samples"].items()}
        dropped, removed = Counter(data["dropped"]), Counter(data["removed"])
        return cls(data["documents"], dropped, removed, samples, set(data["eval_items"]))


@dataclass(frozen=True)
class Kept:
    """The documents of a batch that stay: cleaned texts, their words, and two hashes of each (8 bytes).

    `keys` are of the text as it was (`document_hash`), which decide the split; `digests` of the text as it is now.
    """

    texts: list[str]
    words: Words
    keys: list[bytes]
    digests: list[bytes]


def clean_batch(
    documents: Sequence[Document], rules: CleanConfig, min_chars: int, evals: EvalSet, report: Report
) -> Kept:
    """Apply the rules to some documents, telling `report`."""
    report.documents += len(documents)
    keys, digests, texts, ids = [], [], [], []
    for document in documents:
        normal = normalise(document.text)
        key = folded_digest(normal)
        text = normal
        if rules.boilerplate:
            text = _without_boilerplate(text, key, document.id, report)
        if rules.personal_data:
            text = _without_personal_data(text, key, document.id, report)
        if len(text) < min_chars:
            report.dropped["short"] += 1
            if text:
                report.sample("short", key, document.id, text)
            continue
        keys.append(key)
        digests.append(key if text == normal else folded_digest(text))
        texts.append(text)
        ids.append(document.id)
    words = words_of(texts)
    good = np.ones(len(texts), dtype=np.bool_)
    for reason, bad in _verdicts(texts, words, rules, evals, report):
        for i in np.flatnonzero(bad & good):
            report.dropped[reason] += 1
            report.sample(reason, keys[i], ids[i], texts[i])
        good &= ~bad
    chosen = [int(i) for i in np.flatnonzero(good)]
    kept = [texts[i] for i in chosen]
    return Kept(kept, words.of(good), [keys[i] for i in chosen], [digests[i] for i in chosen])


def _verdicts(
    texts: list[str], words: Words, rules: CleanConfig, evals: EvalSet, report: Report
) -> Iterator[tuple[str, npt.NDArray[np.bool_]]]:
    """Which documents each rule would drop."""
    if rules.symbols is not None:
        yield "symbols", np.array([_symbols(text) for text in texts]) > rules.symbols
    if rules.spanish is not None:
        yield "language", ~is_spanish(words, rules.spanish)
    if rules.repetition is not None:
        yield "repetition", _repetition(words) > rules.repetition
    if evals.runs:
        overlapping, items = evals.overlaps(words)
        report.eval_items |= items
        yield "contaminated", overlapping


def _symbols(text: str) -> float:
    """Share of characters that are neither letters of Western Europe (Latin-1) nor white space; digits are not."""
    return len(text.encode("latin-1", "replace").translate(None, _PLAIN)) / max(1, len(text))


def _repetition(words: Words) -> npt.NDArray[np.float64]:
    """Share of the word 5-grams of each text that were in it before."""
    grams, starts = words.grams(GRAM)
    owner = np.repeat(np.arange(len(starts) - 1), np.diff(starts))
    own = mixed(grams + mixed(owner.astype(np.uint64)))  # equal only within one text
    order = np.argsort(own)
    ordered = own[order]
    repeated = np.bincount(owner[order[1:]][ordered[1:] == ordered[:-1]], minlength=len(starts) - 1)
    return repeated / np.maximum(1, np.diff(starts))


def _without_boilerplate(text: str, key: bytes, id: str, report: Report) -> str:
    if "\n" not in text:
        return text
    lines = text.split("\n")
    counts = Counter(lines) if len(set(lines)) < len(lines) else Counter[str]()
    often = {line for line, n in counts.items() if n >= _REPEATS and line.count(" ") >= _REPEATED_WORDS - 1}
    boilerplate = {match[0] for match in _BOILERPLATE.finditer(text)}
    if _RIGHTS_NEAR.search(text):
        boilerplate.update(line for line in lines if _RIGHTS.fullmatch(line))
    if not often and not boilerplate:
        return text
    kept, seen = [], set(boilerplate)
    for line in lines:
        if line in seen:
            report.removed["boilerplate"] += 1
            report.sample("boilerplate", key, id, line)
            continue
        if line in often:
            seen.add(line)
        kept.append(line)
    text = "\n".join(kept).strip("\n")
    while "\n\n\n" in text:
        text = text.replace("\n\n\n", "\n\n")
    return text


def _without_personal_data(text: str, key: bytes, id: str, report: Report) -> str:
    cleaned, found = without_personal_data(text)
    for kind in found:
        at = cleaned.find(PLACEHOLDERS[kind])  # what it was is shown nowhere
        report.sample(kind, key, id, cleaned[max(0, at - 60) : at + 60])
    report.removed.update(found)
    return cleaned
