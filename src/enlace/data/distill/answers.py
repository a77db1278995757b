"""The rules of the embedded teacher: the answer to a question, as it stands in a passage, or none.

No model and no knowledge: each form of question has a pattern that its answer follows in an encyclopedic lead. It
would rather not answer than answer wrong, since a small model learns what it is shown.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from enlace.data.distill.lead import lead_of, leads, phrase
from enlace.data.distill.passages import sentences

_MONTH = "enero|febrero|marzo|abril|mayo|junio|julio|agosto|septiembre|setiembre|octubre|noviembre|diciembre"
_DATE = rf"(?:el )?\d{{1,2}} de (?:{_MONTH}) (?:de|del) \d{{3,4}}|\d{{3,4}}(?: [ad]\. ?C\.)?"
_NUMBER = re.compile(r"\b\d{4}\b")
_YEAR = re.compile(
    r"(?:\b(?:en|de|del|desde|hasta|hacia|tras|para|año|El)|\() (?P<answer>1\d{3}|20[0-2]\d)(?![\d/-]|[,.]\d)"
    r"(?! (?:(?:m|km|cm|kg|ha)(?![a-z])|y \d|metros|kilómetros|habitantes|millones|personas))"
)
_CENTURIES = re.compile(r"\bsiglos?\b")
_CENTURY = re.compile(r"(?P<answer>siglo [IVX]+\b(?: [ad]\. ?C\.)?)(?! (?:y|o|e incluso|al|hasta) (?:el )?[IVX])")
_NAME_WORD = r"(?:[A-ZÁÉÍÓÚÑÀ-ÖØ-Þ](?:\.|[\w'’-]+))"
_NAME = rf"{_NAME_WORD}(?: (?:(?:de la|de los|del|de|y|von|van|da|di|el) )?{_NAME_WORD})*(?: Jr\.)?"

# A nationality, as it follows the trade in "un poeta chino", by its ending: -o/-a, -és/-esa, -án/-ana, either.
_NATIONALITY = re.compile(
    r"\b(?:(?:anglo|austro|franco|germano|greco|hispano|ítalo|judeo|norte|sud)-?)?(?:(?:"
    "afgan|african|american|argelin|argentin|armeni|asiri|australian|austriac|austríac|bizantin|bolivian|bosni|"
    "brasileñ|británic|búlgar|chec|chilen|chin|colombian|corean|cuban|ecuatorian|egipci|escandinav|eslovac|estoni|"
    "etrusc|filipin|florentin|georgian|grieg|guatemaltec|haitian|húngar|indi|indonesi|italian|jamaican|jordan|kenian|"
    "leton|lituan|macedoni|mexican|napolitan|nigerian|norteamerican|norueg|otoman|palestin|panameñ|paraguay|peruan|"
    "polac|prusian|puertorriqueñ|roman|ruman|rus|salvadoreñ|serbi|siri|soviétic|sudafrican|suec|suiz|surcorean|turc|"
    "ucranian|uruguay|venecian|venezolan)[oa]s?"
    "|(?:cordob|dan|escoc|finland|franc|gal|genov|holand|ingl|irland|island|japon|liban|luxemburgu|neerland|neozeland|"
    "portugu|senegal|tailand)(?:és|esa|eses|esas)"
    "|(?:alem|catal)(?:án|ana|anes|anas)|español(?:a|es|as)?"
    "|(?:árabe|ateniense|azteca|belga|canadiense|cartaginense|costarricense|croata|estadounidense|etíope|hindú|inca|iraní|"
    "iraquí|israelí|marroquí|maya|mongol|nicaragüense|paquistaní|persa|vietnamita)(?:e?s)?"
    r")\b"
)
_TRADES = (
    "abogad|activista|actor|actriz|alpinista|antropólog|arqueólog|arquitect|arreglista|artesan|artista|astronauta|"
    "astrónom|astrofísic|atleta|autor|aviador|bailarín|bailarin|baloncestista|banquer|beisbolista|bioquímic|biólog|botánic|"
    "boxeador|cantante|cantautor|cartógraf|ciclista|científic|cineasta|cirujan|clarinetista|comediante|comediógraf|"
    "comerciante|compositor|conquistador|coreógraf|cosmonauta|cosmólog|crític|cuentista|deportista|dibujante|"
    "diplomátic|director|diseñador|dramaturg|economista|editor|educador|emprendedor|empresari|ensayista|entrenador|"
    "escenógraf|escritor|escultor|espía|estadista|etnólog|etólog|exatleta|exciclista|exfutbolista|exgimnasta|exjugador|"
    "exnadador|expatinador|expilot|extenista|explorador|fabulista|farmacéutic|filólog|filósof|físic|fisiólog|fotógraf|"
    "futbolista|general|geógraf|geólog|geómetra|gimnasta|golfista|grabador|guionista|guitarrista|historiador|humanista|"
    "humorista|ilusionista|ilustrador|impresor|industrial|informátic|ingenier|inventor|investigador|jinete|joyer|"
    "jugador|jurista|lexicógraf|librer|lingüista|literat|lógic|maestr|magnate|marin|marinero|matemátic|médic|mercader|"
    "meteorólog|militar|misioner|modelo|monje|músic|nadador|narrador|naturalista|navegante|neurólog|novelista|"
    "óptic|orador|orfebre|organista|patinador|pedagog|periodista|pianista|pilot|pintor|poeta|poetisa|"
    "polític|politólog|predicador|presentador|productor|profesor|programador|psicoanalista|psicólog|psiquiatra|"
    "químic|raper|religios|retratista|sacerdote|saxofonista|sociólog|soldado|soprano|tenista|tenor|teólog|traductor|"
    "trompetista|violinista|violonchelista|virólog|zoólog"
)
_TRADE = re.compile(rf"(?:un|una) ((?:{_TRADES})(?:[oa]|ora|a)?s?)(?!\w)")
# What a trade may go on with: "de cine", "y poeta", ", historiador y novelista".
_MORE_TRADE = re.compile(
    rf"(?: de (?:cine|teatro|ópera|fútbol|baloncesto|béisbol|ballet|televisión|ajedrez|golf|tenis|orquesta|rock|jazz)"
    rf"|,? [ye] (?:(?:{_TRADES})(?:[oa]|ora|a)?s?)(?!\w)|, (?:(?:{_TRADES})(?:[oa]|ora|a)?s?)(?!\w))+"
)
_PLACED = re.compile(r"(?:situad|ubicad|localizad)[oa]s? (?P<answer>(?:en|al|entre|a orillas|junto|frente|cerca) .+)")
_STANDS = re.compile(rf"(?:Está|Se encuentra) {_PLACED.pattern}")
_MAKERS = {
    "escribió": "escrit",
    "pintó": "pintad",
    "compuso": "compuest",
    "dirigió": "dirigid",
    "creó": "cread",
    "fundó": "fundad",
    "diseñó": "diseñad",
    "inventó": "inventad",
    "descubrió": "descubiert",
    "desarrolló": "desarrollad",
    "construyó": "construid",
}
_MADE = {
    verb: re.compile(
        rf"(?:un|una|el|la) [a-záéíóúñ]+(?: [a-záéíóúñ]+){{0,3}},? {participle}[oa]s? "
        rf"(?:en \d{{4}} )?por (?:el |la )?(?:[a-záéíóúñ]+ ){{0,3}}?(?P<answer>(?:los |las )?{_NAME})"
    )
    for verb, participle in _MAKERS.items()
}


def answer(passage: str, question: str) -> str | None:
    """The piece of `passage` that answers `question`; None when no rule is sure."""
    for form, rule in _RULES:
        match = form.fullmatch(question.strip())
        if match:
            return (passage.strip() and rule(passage, match)) or None
    return None


def _what(passage: str, question: re.Match[str]) -> str | None:
    lead = lead_of(passage, question["name"])
    return phrase(lead.predicate) if lead else None


def _about(passage: str, question: re.Match[str]) -> str | None:
    lead = next(iter(leads(passage)), None)
    return (
        lead.name
        if lead and passage.find(lead.name) < 80 and len(lead.name) <= 60 and not re.search(r"\[|^En ", lead.name)
        else None
    )


def _only(loose: re.Pattern[str], strict: re.Pattern[str]) -> Callable[[str, re.Match[str]], str | None]:
    """What matches `strict`, provided that nothing else in the passage even resembles it (`loose`)."""

    def rule(passage: str, question: re.Match[str]) -> str | None:
        match = strict.search(passage)
        return match["answer"] if match and len(loose.findall(passage)) == 1 else None

    return rule


def _capital(passage: str, question: re.Match[str]) -> str | None:
    if not lead_of(passage, question["name"]):
        return None
    match = re.search(
        rf"\b[Ss]u capital(?: y [a-záéíóúñ ]{{4,40}})?(?: es|,) (?:la ciudad de )?(?P<answer>{_NAME})", passage
    )
    return match["answer"] if match else None


def _where(passage: str, question: re.Match[str]) -> str | None:
    lead = lead_of(passage, question["name"])
    if not lead:
        return None
    match = _PLACED.search(lead.predicate)
    for sentence in sentences(passage):
        match = match or _STANDS.match(sentence)
    return phrase(match["answer"]) if match else None


def _nationality(passage: str, question: re.Match[str]) -> str | None:
    lead = lead_of(passage, question["name"])
    described = lead and phrase(lead.predicate)
    if not described or not _TRADE.match(described):
        return None
    found = _NATIONALITY.findall(described)
    return found[0] if len(found) == 1 else None


def _trade(passage: str, question: re.Match[str]) -> str | None:
    lead = lead_of(passage, question["name"])
    trade = lead and _TRADE.match(lead.predicate)
    if not lead or not trade:
        return None
    more = _MORE_TRADE.match(lead.predicate, trade.end())
    end = more.end() if more else trade.end()
    found = lead.predicate[trade.start(1) : end]
    cut = re.match(r" (?:de|del) |, \w+ [yeou] |, [^,]+ [ye] ", lead.predicate[end:])
    return None if cut or ("," in found and not re.search(" [ye] ", found)) else found


def _known_for(passage: str, question: re.Match[str]) -> str | None:
    lead = lead_of(passage, question["name"])
    match = lead and re.match(
        r"(?:(?!cuy|sus? )[^.])*?(?:conocid|famos|célebre|recordad)(?:[oa]s?|s)? (?:\w+mente )?"
        r"(?P<answer>por (?!el nombre|su nombre|los |las )\w.+)",
        lead.predicate,
    )
    found = phrase(match["answer"], limit=100) if match else None
    return None if found and f"{found} (" in passage else found  # a list of works with their years, cut short


def _other_name(passage: str, question: re.Match[str]) -> str | None:
    match = re.search(
        r"(?:(?:también|más|mejor|popularmente|comúnmente) (?:conocid|llamad|denominad)|apodad)[oa]s? "
        rf"(?:simplemente )?(?:como )?(?P<answer>(?:(?:el|la) )?(?:«[^»]+»|{_NAME}))(?=[,;]| o | es | fue )",
        sentences(passage)[0],
    )
    lead = next(iter(leads(passage)), None)
    if not match or not lead or match.end() > passage.index(lead.subject) + len(lead.subject) + 1:
        return None
    name, other = question["name"], match["answer"]
    alike = name.casefold() in other.casefold() or other.casefold() in name.casefold()
    return other if lead.names(name) and not alike else None


def _event(passage: str, question: re.Match[str]) -> str | None:
    """Where or when somebody was born or died."""
    verb = {"nació": "Nació", "murió": "(?:Murió|Falleció)"}[question["verb"]]
    if not lead_of(passage, question["name"]):
        return None
    if question["ask"] == "Dónde":
        match = re.search(rf"[.] {verb} (?P<answer>en {_NAME}(?:, {_NAME})?)(?=[.,; ])", passage)
    else:
        match = re.search(
            rf"[.] {verb} (?:en {_NAME}(?:, {_NAME})?,? )?(?P<answer>(?:en )?(?:{_DATE}))(?=[.,; ])", passage
        )
    return match["answer"] if match else None


def _maker(passage: str, question: re.Match[str]) -> str | None:
    lead = lead_of(passage, question["name"])
    match = lead and _MADE[question["verb"]].match(lead.predicate)
    return match["answer"] if match else None


_BE = "(?:es|fue|era|son|fueron|eran)"
# Question forms, first match first. A name may carry its article.
_RULES: list[tuple[re.Pattern[str], Callable[[str, re.Match[str]], str | None]]] = [
    (re.compile(form), rule)
    for form, rule in (
        (r"¿De (?:qué|quién|quiénes) habla el texto\?", _about),
        (r"¿Qué año menciona el texto\?", _only(_NUMBER, _YEAR)),
        (r"¿Qué siglo menciona el texto\?", _only(_CENTURIES, _CENTURY)),
        (rf"¿Cuál {_BE} la capital de (?P<name>.+)\?", _capital),
        (r"¿Dónde (?:está|están|estaba|estaban) (?P<name>.+)\?", _where),
        (rf"¿De qué nacionalidad {_BE} (?P<name>.+)\?", _nationality),
        (r"¿A qué se (?:dedica|dedicaba) (?P<name>.+)\?", _trade),
        (rf"¿Por qué {_BE} conocid[oa]s? (?P<name>.+)\?", _known_for),
        (r"¿Qué otro nombre tiene (?P<name>.+)\?", _other_name),
        (r"¿(?P<ask>Dónde|Cuándo) (?P<verb>nació|murió) (?P<name>.+)\?", _event),
        (rf"¿Quién (?P<verb>{'|'.join(_MAKERS)}) (?P<name>.+)\?", _maker),
        (rf"¿(?:Qué|Quién|Quiénes) {_BE} (?P<name>.+)\?", _what),
    )
]
