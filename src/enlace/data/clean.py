"""One normalisation of text, shared by the shards, the chat and the evaluation.

The tokenizer has no normaliser of its own (other runtimes would not apply it), so whatever reaches it passes through
here first: the same words must give the same ids wherever they are typed.
"""

from __future__ import annotations

import re
import unicodedata

# A line break in every spelling that Unicode has: CRLF, CR, NEL, vertical tab, form feed, U+2028, U+2029.
_LINE_BREAK = re.compile("\r\n|[\r\v\f\x85\u2028\u2029]")
# Controls, lone surrogates, soft hyphens, zero-width and direction marks. The zero-width joiner stays only where it
# builds one emoji out of several (👩‍🚀); anywhere else it is invisible dirt.
_INVISIBLE = re.compile(
    "[\0-\x08\x0e-\x1f\x7f-\x9f\ud800-\udfff\u00ad\u061c\u180e\u200b\u200c\u200e\u200f\u202a-\u202e\u2060-\u206f\ufeff]"
    "|(?<![\u2600-\u27bf\ufe0f\U0001f000-\U0001faff])\u200d"
)
_OTHER_SPACE = re.compile("[\u00a0\u1680\u2000-\u200a\u202f\u205f\u3000]")
_SPACES = re.compile(" {2,}")
# What UTF-8 looks like when it was read as Latin-1 or Windows-1252: "Ã±" for "ñ", "â€œ" for "“". Lower-case a with
# circumflex is Romanian and French, upper-case A with tilde Portuguese: neither comes before these signs.
# Except a capital tilde that ends a word in capitals before a closing quote («IRMÃ»).
_MOJIBAKE = re.compile("(?:(?<![A-ZÀ-Þ])[ÃÂ]|[ÃÂ](?![»”’›]))[-¿Œ-ƒˆ˜–-›€™]|â€|ðŸ")
_SIGNS = "ÂÃâð"  # looked for first, which takes no time
# Anything that the three patterns above might change is in here, and little else.
_UNUSUAL = re.compile("[^\t\n -~\u00a1-\u00ac\u00ae-\u0603\u2010-\u2027\u2030-\u205e\u2070-\u2fff\u3001-\ud7ff]")
# White space is matched from the start of its run and never given back, here and below: a run is read once, whatever
# follows it, where a plain "[ \t]+" would read the rest of it again from each of its characters.
_LINE_END = re.compile(r"(?<![ \t])[ \t]++\n")
_BLANK_LINES = re.compile(r"\n{3,}")
# Empty cells by the thousand; over some hundred thousand blanks in a run, the tokenizer's regular expression breaks.
_LONG_GAP = re.compile(r"([ \t]{64})[ \t]++")

# What a summary keeps of the article it was cut from: note marks "[3]" and the parentheses that held a pronunciation,
# with the spaces around them. "f()" is code, not a leftover: the parenthesis must follow a space.
_BEFORE_SIGN = r"(?:[ \t]++(?=[.,;:]))?"
_NOTE = re.compile(r"(?<![ \t])[ \t]*+\[\d{1,3}\]" + _BEFORE_SIGN)
_EMPTY = re.compile(r"(?:^|(?<![ \t])[ \t]++)\([\s,;]*+\)" + _BEFORE_SIGN, re.MULTILINE)


def normalise(text: str) -> str:
    """The canonical spelling of `text`: NFC, LF line breaks, no invisible characters, no superfluous white space.

    Tabs stay, up to 64 in a run; runs of spaces become one, and more than one blank line becomes one. Text that was
    decoded with the wrong table ("canciÃ³n") is repaired, by ftfy. Idempotent.
    """
    text = _normalised(_repaired(text))
    while _is_mojibake(text):  # rare: signs that had something invisible between them
        again = _normalised(_repaired(text))
        if again == text:
            break
        text = again
    return text


def _repaired(text: str) -> str:
    if not _is_mojibake(text):
        return text
    import ftfy

    return ftfy.fix_encoding(text)


def _is_mojibake(text: str) -> bool:
    return any(sign in text for sign in _SIGNS) and _MOJIBAKE.search(text) is not None


def _normalised(text: str) -> str:
    # Most texts need none of this: looking whether they do first is five times faster than doing it all.
    if _UNUSUAL.search(text):
        text = _LINE_BREAK.sub("\n", text)
        text = _INVISIBLE.sub("", text)
        text = _OTHER_SPACE.sub(" ", text)
    # After the removals, which may leave a letter next to its accent.
    text = unicodedata.normalize("NFC", text)
    if "  " in text:
        text = _SPACES.sub(" ", text)
    if " \n" in text or "\t\n" in text:
        text = _LINE_END.sub("\n", text)
    if "\t" in text:
        text = _LONG_GAP.sub(r"\1", text)
    if "\n\n\n" in text:
        text = _BLANK_LINES.sub("\n\n", text)
    return text.strip(" \t\n")


def without_notes(text: str) -> str:
    """`normalise`, and without the leftovers of encyclopedic summaries: "[3]" and empty parentheses.

    For encyclopedias only: in anybody else's text, "v[0]" is what they meant.
    """
    # The notes first: "([1])" leaves empty parentheses.
    return normalise(_EMPTY.sub("", _NOTE.sub("", normalise(text))))
