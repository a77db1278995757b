"""The lead of an encyclopedic text: "X (...), also called Y, is a Z" taken apart, in Spanish.

Everything here returns pieces of the text as they stand in it. Preferring no answer to a doubtful one is the rule.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

from enlace.data.distill.passages import sentences

_COPULA = re.compile(r"\s(es|fue|era|son|fueron|eran)\s")
_SETTING = re.compile(r"(?:En|Según|Dentro de|Para) [^,]{2,60}, |En la mitología \w+ ")
_PARENTHESIS = re.compile(r"\([^()]*\)")
_OTHER_NAMES = re.compile(r",| ?\(| o | u | [—–-]| (?:también |más )?(?:conocid|llamad|denominad)[oa]s? ")
# A verb before the copula means that the copula is not the main verb of the subject.
_BREAK = re.compile(r"\b(?:que|cuy[oa]s?|donde|quien(?:es)?|cuando|como resultado|se|nació)\b|;|: ")
_DETERMINER = re.compile(
    r"(?:un|una|unos|unas|uno|el|la|los|las|cada|cualquier|cualquiera|todo|toda|"
    r"aquel|aquella|rey|reina|emperador|emperatriz|papa|presidente|hij[oa]|duque|duquesa|príncipe|princesa|zar|sultán|"
    r"califa|faraón)\b"
)
_END_WORD = re.compile(
    "a|al|ante|bajo|cada|con|contra|cual|cuy[oa]|de|del|desde|durante|e|el|en|entre|era|es|fue|hacia|hasta|las?|los?|más|"
    "mediante|menos|ni|no|o|para|pero|por|que|se|según|ser|sin?|sobre|sus?|tan|tanto|tod[oa]|tras|u|una?s?|unos?|y",
    re.IGNORECASE,
)
# Where a long phrase may be left: before a relative clause or a participle, else before a complement.
_RELATIVE = re.compile(
    r" (?:(?:a|con|de|desde|durante|en|hacia|para|por|según|sobre) )?(?:(?:el|la|los|las) )?"
    r"(?:que|cual(?:es)?|quien(?:es)?|cuy[oa]s?|donde|cuando) "
    r"| (?:conocid|considerad|situad|ubicad|localizad|formad|basad|cread|nacid|compuest|desarrollad|llamad|"
    r"caracterizad|utilizad|usad|fundad|publicad|escrit|dirigid|perteneciente|destinad|dedicad|realizad|constituid|"
    r"especializad|famos|célebre)(?:[oa]s?|s)? "
)
_COMPLEMENT = re.compile(r" (?:durante|desde|entre|mediante|para|por|con|en|a partir de|hasta|cerca de|junto) ")
_HARD_END = re.compile(
    r" y (?:es|fue|era|son|fueron|eran|que|se|está|tiene|forma|constituye|limita|ocupa|cuenta|posee|consta|su|sus) "
    r"|[.;:] | \(| [—–]| -(?=\w)|[.!?…]+[»”\"')]*$"
)
# "Una rama de la filosofía" can do without what follows; "la rama de la filosofía que..." cannot.
_INDEFINITE = re.compile(r"(?:un|una|uno|unos|unas|en|al|entre|por)\b")
# "entre" asks for two; "cuyo propósito" for a verb.
_ALONE = re.compile(r"\bcuy[oa]s? \S+$|\bentre (?!.* [ye] |dos |tres |ambos |ambas |varios |varias |otr[oa]s |sus )")
# A cut here leaves something open: "una tribu vinculada", "un evento generalmente", "música de Verdi y libreto".
_DANGLING = re.compile(r"(?:\w+[ai]d[oa]s?|\w+mente| [yeou] \S+| \w+(?:ar|er|ir))$")
_NOT_AN_ITEM = re.compile(
    r"(?:a|al|así|aunque|como|con|cuy[oa]s?|de|del|desde|donde|durante|el|en|entre|hasta|junto|la|las|los|más|para|pero|"
    r"por|que|quien|según|si|siendo|sobre|su|sus|tras|un|una|uno|y|e|o|tanto|también|principalmente|además|"
    r"célebre|famos[oa]|fue|es|era|\w+ndo|\w+mente|"
    r"(?!abogad|soldad|llegad|entrad|salid|vid|comid|bebid|medid|estad)\w+(?:ad|id)[oa]s?)\b|[A-ZÁÉÍÓÚÑ]"
)


@dataclass(frozen=True)
class Lead:
    """A sentence of the form "subject, apposition, is predicate".

    Attributes:
        subject: all that stands before the verb, without a setting such as "En geometría,".
        verb: es, fue, era, son, fueron or eran.
        predicate: what follows, up to the end of the sentence.
    """

    subject: str
    verb: str
    predicate: str

    @property
    def name(self) -> str:
        """The subject without appositions, parentheses and other names."""
        return _OTHER_NAMES.split(self.subject)[0].strip(" «»“”\"'")

    def names(self, name: str) -> bool:
        """Whether `name` is the subject or one of its other names."""
        return _contains(self.subject.casefold(), name.casefold())


def read_lead(sentence: str) -> Lead | None:
    """Take the sentence apart; None if it has not that form."""
    setting = _SETTING.match(sentence)
    start = setting.end() if setting else 0
    # Parentheses are blanked, not removed: positions stay those of the sentence.
    open_text = _PARENTHESIS.sub(lambda match: "(" + "_" * (len(match[0]) - 2) + ")", sentence)
    copula = _COPULA.search(open_text, start)
    if copula is None or _BREAK.search(open_text, start, copula.start()):
        return None
    subject, predicate = sentence[start : copula.start()].rstrip(" ,"), sentence[copula.end() :]
    plural = copula[1] in ("son", "eran", "fueron") and re.match(r"(?!\w+[ai]d[oa]s\b)[a-záéíóúñ]+s\b", predicate)
    if not subject or ("(" in subject and ")" not in subject) or not (plural or _DETERMINER.match(predicate)):
        return None
    return Lead(subject, copula[1], predicate)


@lru_cache(maxsize=16)  # the same passage is read once per question
def leads(passage: str) -> tuple[Lead, ...]:
    """All the sentences of the passage that have that form, in order."""
    return tuple(lead for lead in map(read_lead, sentences(passage)) if lead)


def lead_of(passage: str, name: str) -> Lead | None:
    """The lead about `name`: the first sentence of the passage that says what it is."""
    return next((lead for lead in leads(passage) if lead.names(name)), None)


def phrase(text: str, limit: int = 90) -> str | None:
    """The phrase that `text` begins with, whole and at most `limit` characters long; None when there is none."""
    hard = _HARD_END.search(text)
    whole = text[: hard.start()] if hard else text
    whole = whole[: _list_end(whole)]
    if len(whole) <= limit and _is_whole(whole):
        return whole.rstrip()
    if not _INDEFINITE.match(whole):
        return None
    relative = _RELATIVE.search(whole)
    # A complement inside a relative clause is no place to stop: "el sistema que nace" is half a thought.
    head = whole[: relative.start()] if relative else whole
    for end in (*_soft_ends(_RELATIVE, whole), *_soft_ends(re.compile("$"), head), *_soft_ends(_COMPLEMENT, head)):
        if end <= limit and _is_whole(whole[:end]) and not _DANGLING.search(whole[:end]):
            return whole[:end].rstrip()
    return None


def _contains(text: str, name: str) -> bool:
    """Whether `name` stands in `text` as whole words."""
    start = text.find(name)
    while start >= 0:
        around = text[max(0, start - 1) : start] + text[start + len(name) : start + len(name) + 1]
        if not any(character.isalnum() for character in around):
            return True
        start = text.find(name, start + 1)
    return False


def _soft_ends(pattern: re.Pattern[str], text: str) -> list[int]:
    """Last first: the more of the phrase, the better. At least three words stay."""
    return [match.start() for match in pattern.finditer(text) if len(text[: match.start()].split()) >= 3][::-1]


def _is_whole(text: str) -> bool:
    words = text.split()
    balanced = text.count("«") == text.count("»") and text.count("“") == text.count("”") and text.count('"') % 2 == 0
    return (
        bool(words) and not _END_WORD.fullmatch(words[-1]) and balanced and "(" not in text and not _ALONE.search(text)
    )


def _list_end(text: str) -> int:
    """Position of the first comma that does not belong to a list such as "poeta, historiador y novelista"."""
    position = 0
    while (comma := text.find(", ", position)) >= 0:
        if not _is_list(text[comma + 2 :]):
            return comma
        position = comma + 2
    return len(text)


def _is_list(rest: str) -> bool:
    """Whether what follows a comma goes on as a list: short items, the last one after "y"."""
    for item in rest.split(", ")[:6]:
        if _NOT_AN_ITEM.match(item):
            return False
        before_and = re.split(r" [yeou] ", item, maxsplit=1)
        if len(before_and[0].split()) > 3:
            return False
        if len(before_and) == 2:
            return True
    return False
