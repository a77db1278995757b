"""Everyday questions about an everyday text (a recipe, a bill, a note on the fridge): how much, when, where, who.

The question word says what kind of piece to look for; the words it shares with the text say where. The piece nearest
to those words is the answer, provided that no other piece of its kind is as near.
"""

from __future__ import annotations

import re
import unicodedata

from enlace.data.distill.passages import sentences

_NUMBER = (
    r"(?:-?\d+(?:[.,/]\d+)*|medi[oa]|una?|dos|tres|cuatro|cinco|seis|siete|ocho|nueve|diez|once|doce|quince|veinte|"
    r"treinta|cuarenta|cincuenta|sesenta|cien|mil)(?: y (?:medi[oa]|cuarto))?"
)
_RANGE = rf"(?:entre {_NUMBER} y |de {_NUMBER} a |{_NUMBER} (?:a|o|-) )?{_NUMBER}"
_QUANTITY = rf"{_RANGE} (?:%|[^\W\d]+(?: de [^\W\d]+)?)|\d+ ?(?:g|kg|ml|l|cl|kWh|mg)\b"
_TIME_UNIT = r"(?:segundos?|minutos?|horas?|días?|semanas?|mes(?:es)?|años?|min|h)\b"
_DURATION = rf"{_RANGE} {_TIME_UNIT}(?: y (?:media?|{_NUMBER}))?"
_DAY = r"(?:lunes|martes|miércoles|jueves|viernes|sábados?|domingos?)"
_MONTH = "enero|febrero|marzo|abril|mayo|junio|julio|agosto|septiembre|octubre|noviembre|diciembre"
_DATE = rf"\d{{1,2}} de (?:{_MONTH})(?: de \d{{4}})?"
_FREQUENCY = (
    rf"cada (?:{_RANGE} )?(?:{_TIME_UNIT}|{_DAY}|noche|mañana)|todos los días"
    rf"|{_NUMBER} ve(?:z|ces) (?:al|por|a la|cada) (?:{_NUMBER} )?\w+"
)
_TEMPERATURE = rf"{_RANGE} ?(?:°C|ºC|grados)"
_MONEY = r"\d+(?:[.,]\d+)* ?(?:€|euros?|pesos|dólares|soles)|[$€] ?\d+(?:[.,]\d+)*|gratis"
_CLOCK = (
    r"(?:(?:las? )?\d{1,2}[:.]\d{2}(?: ?h)?"
    r"|las? (?:\d{1,2}|una|dos|tres|cuatro|cinco|seis|siete|ocho|nueve|diez|once|doce))"
    r"(?: (?:y (?:media|cuarto)|menos cuarto))?(?: de la (?:mañana|tarde|noche))?"
)
_HOURS = rf"(?:a|de|desde|hasta) {_CLOCK}(?: (?:a|hasta) {_CLOCK})?"
_WHEN = (
    rf"(?:(?:el|los|hasta el|antes del|para el) )?(?:{_DAY}(?:(?: a|,| y) {_DAY})*(?: {_DATE})?|{_DATE})"
    r"(?: por la (?:mañana|tarde|noche))?|en (?:primavera|verano|otoño|invierno)"
    r"|antes de \w+[aei]r(?:se|l[oae]s?)?\b|después de (?:cada |la |el |los )?[^,.;]+"
)
_PLACE = (
    r"(?:en|al|junto|debajo|encima|detrás|dentro|frente|sobre|bajo) (?:a |al |de |del )?(?:el |la |los |las |un |una )?"
    r"\w[^,.;:()]*?(?= (?:y|antes|después|durante|hasta|para|si|cuando|sin|donde) |[,.;:()]|$)"
)
_PERSON = (
    r"(?:(?:el|la|los|las|don|doña|doctor|doctora|señora?|tía|tío|abuela|abuelo|mi) )*(?:Dra?\. |Sra?\. )?"
    r"[A-ZÁÉÍÓÚÑ]\w+(?: (?:de )?[A-ZÁÉÍÓÚÑ]\w+)*"
    r"|(?:el|la|los|las) (?:\w*(?:or|ora|ero|era|ista)|médic[oa]|abuel[oa]|madre|padre|tutora?|vecin[oa]|dueñ[oa])\b"
)
_REASON = r"(?:porque|ya que|para que|para|por) \w[^,.;:]*"

# What each form of question looks for; the first form that fits decides.
_KINDS = [
    (re.compile(form, re.IGNORECASE), re.compile(rf"(?<!\w)(?:{piece})"))
    for form, piece in (
        (r"cada cuánt[oa]", _FREQUENCY),
        (r"cuánto tiempo|cuánto (?:tarda|dura|hay que (?:esperar|hervir|cocer|hornear))", _DURATION),
        (r"a qué temperatura|cuántos grados", _TEMPERATURE),
        (
            r"cuánto (?:cuestan?|valen?|se paga|hay que pagar|pagamos|debo|dinero)|(?:qué|el) (?:precio|importe|total)",
            _MONEY,
        ),
        (r"qué horas?", _HOURS),
        (r"qué días?|cuándo|qué fecha", _WHEN),
        (r"cuánt[oa]s? ", _QUANTITY),
        (r"dónde|en qué (?:sitio|lugar|armario|cajón)", _PLACE),
        (r"quién(?:es)?", _PERSON),
        (r"(?:qué|el|su) (?:teléfono|número)", r"\d{3,}(?:[ -]\d{2,})*"),
        (r"por qué|para qué", _REASON),
    )
]
_CLAUSE_MARKS = (", ", "; ", ": ", " (", ")", " y ")
# Words that do not say where to look, folded.
_EMPTY = re.compile(
    "a|al|algo|ante|antes|aqui|asi|cada|como|con|cual(?:es)?|cuando|cuant[oa]s?|de|debe[ns]?|debo|del|desde|despues|dia|"
    "dias|dice|donde|durante|e|el|ell[oa]s?|en|entre|era|es|es[aeo]s?|esta|estan|este|esto|fecha|fue|grados|ha|hace|"
    "hacer|han|hasta|hay|horas?|la|las|les?|los?|lugar|mas|me|mis?|muy|ni|no|nos|numero|o|para|pero|por|porque|precio|"
    "pueden?|puedo|que|quien|quienes|se|segun|sea|ser|si|sin|sitio|sobre|solo|son|sus?|tambien|te|telefono|temperatura|"
    "tenemos|tener|tengo|texto|tiempo|tienen?|tus?|u|una?|uno|veces|vez|y|ya"
)


def find_span(passage: str, question: str) -> str | None:
    """The piece of `passage` that answers an everyday question; None when it is not clear."""
    asked = _stems(question)
    for form, piece in _KINDS:
        if form.search(question):
            return _nearest(passage, piece, asked, _counted(question))
    return _unique_best([(sentence, (len(asked & _stems(sentence)),)) for sentence in sentences(passage)])


def _nearest(passage: str, piece: re.Pattern[str], asked: set[str], counted: set[str]) -> str | None:
    scored: list[tuple[str, tuple[int, ...]]] = []
    for sentence in sentences(passage):
        # A capital letter alone makes no name: "El", "Las".
        matches = [match for match in piece.finditer(sentence) if not match[0][0].isupper() or _stems(match[0])]
        for match in matches:
            scored.append((match[0].strip(), _score(sentence, match, matches[0].start(), asked)))
    # "¿Cuántos huevos...?": eggs, if any are counted.
    named = max((len(counted & _stems(text)) for text, _ in scored), default=0)
    scored = [(text, score) for text, score in scored if len(counted & _stems(text)) == named]
    return _unique_best(scored)


def _unique_best(scored: list[tuple[str, tuple[int, ...]]]) -> str | None:
    """The piece with the best score, if it shares a word with the question and no other piece ties with it."""
    ranked = sorted(scored, key=lambda pair: pair[1], reverse=True)
    if not ranked or ranked[0][1][0] == 0 or len(ranked[0][0]) > 120:
        return None
    ties = {text for text, score in ranked if score == ranked[0][1]}
    return ranked[0][0] if len(ties) == 1 else None


def _score(sentence: str, match: re.Match[str], first: int, asked: set[str]) -> tuple[int, int, int]:
    """Words that the question shares with the sentence; then with the clause of the piece; then how near they are.

    What stands before the `first` piece of the sentence belongs to all of them: in "riégalo una vez por semana en
    verano y cada 15 días en invierno" only the season tells them apart.
    """
    start = max(sentence.rfind(mark, 0, match.start()) + len(mark) for mark in _CLAUSE_MARKS)
    ends = [end for mark in _CLAUSE_MARKS if (end := sentence.find(mark, match.end())) >= 0]
    clause = sentence[max(start, first) : min(ends, default=len(sentence))]
    distances = [
        min(abs(word.start() - match.end()), abs(match.start() - word.end()))
        for word in re.finditer(r"\w+", sentence)
        if _stems(word[0]) & asked and not match.start() <= word.start() < match.end()
    ]
    return len(asked & _stems(sentence)), len(asked & _stems(clause)), -min(distances, default=1000)


def _counted(question: str) -> set[str]:
    """What a "cuántos" asks about."""
    match = re.search(r"cuánt[oa]s (\w+(?: de \w+)?)", question, re.IGNORECASE)
    return _stems(match[1]) if match else set()


def _stems(text: str) -> set[str]:
    """The words that mean something, without accents and cut to four letters: "fríen" and "fríelos" are "frie"."""
    folded = "".join(c for c in unicodedata.normalize("NFD", text.casefold()) if not unicodedata.combining(c))
    return {word[:4] for word in re.findall(r"\w+", folded) if len(word) > 1 and not _EMPTY.fullmatch(word)}
