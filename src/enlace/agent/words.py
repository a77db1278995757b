"""The words of a text as the memory looks for them: accents and case folded, the ñ kept."""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache

_WORD = re.compile(r"[^\W_]+")
_TILDE = "\u0303"
# They are in every sentence, so that finding them says nothing. With their accents: "te" is one of them, "té" is not.
_FUNCTION_WORDS = frozenset(
    """
    a al algo ante aquel aquella aquí así aun aún bien cada como cómo con cual cuál cuáles cuando cuándo cuanto cuánto
    cuánta de del desde donde dónde el él ella ellas ellos en entre era eres es esa ese eso esta está este esto están
    estoy fue ha han has hasta hay he la las le les lo los mas más me mi mí mis muy nada ni no nos o os para pero por
    porque pues que qué quien quién quiénes se sé sea ser si sí sin sobre son soy su sus tal también te tengo ti tiene
    tienes tu tú tus un una unas unos y ya yo
    """.split()  # noqa: SIM905 -- they read better so
)
_MAX_WORDS = 64  # of a query; a page pasted into it has its subject in the first of them


def words(text: str) -> list[str]:
    """The words of `text`, folded: "Médicos" is "medicos", and so is its decomposed spelling; "año" is not "ano"."""
    return _WORD.findall(_folded(text))


def loose(text: str) -> str:
    """What two texts have in common that say the same but for accents, case and punctuation."""
    return " ".join(words(text))


def any_of(query: str) -> str | None:
    """An FTS5 expression for texts that share words with `query`, or their beginnings; None when it has no words.

    Every word is quoted, so that nothing in `query` is syntax. A word also finds others that begin as it does (FTS5
    knows no Spanish inflection): "alérgico" finds "alergia", "hija" finds "hijas".
    """
    found = _WORD.findall(unicodedata.normalize("NFC", query.casefold()))
    telling = [word for word in found if word not in _FUNCTION_WORDS] or found
    wanted = list(dict.fromkeys(words(" ".join(telling))))[:_MAX_WORDS]
    terms = [term for word in wanted for term in (f'"{word}"', *_beginning(word))]
    return " OR ".join(terms) or None


def all_of(query: str) -> str | None:
    """An FTS5 expression for texts that have every word of `query`; None when it has none."""
    return " AND ".join(f'"{word}"' for word in dict.fromkeys(words(query))) or None


def _beginning(word: str) -> list[str]:
    """What the inflections of `word` begin with, as a term; none for short words, which begin many others."""
    length = len(word)
    if length < 4:
        return []
    ending = 2 if length >= 7 else 1 if length >= 5 else 0
    return [f'"{word[: length - ending]}" *']


def _folded(text: str) -> str:
    return "".join(_fold(c) for c in unicodedata.normalize("NFC", text.casefold()))


@lru_cache(maxsize=4096)
def _fold(character: str) -> str:
    """`character` without its accents, but a ñ stays one."""
    bare = "".join(c for c in unicodedata.normalize("NFD", character) if not unicodedata.combining(c))
    return "ñ" if bare == "n" and _TILDE in unicodedata.normalize("NFD", character) else bare
