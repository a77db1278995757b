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
_LINE_END = re.compile(r"[ \t]+\n")
_BLANK_LINES = re.compile(r"\n{3,}")

# What a summary keeps of the article it was cut from: note marks "[3]" and the parentheses that held a pronunciation,
# with the spaces around them. "f()" is code, not a leftover: the parenthesis must follow a space.
_LEFTOVER = re.compile(r"(?:(?:^|[ \t]+)\([\s,;]*\)|[ \t]*\[\d{1,3}\])(?:[ \t]+(?=[.,;:]))?", re.MULTILINE)


def normalise(text: str) -> str:
    """The canonical spelling of `text`: NFC, LF line breaks, no invisible characters, no superfluous white space.

    Tabs stay; runs of spaces become one, and more than one blank line becomes one. Idempotent.
    """
    text = _LINE_BREAK.sub("\n", text)
    text = _INVISIBLE.sub("", text)
    text = _OTHER_SPACE.sub(" ", text)
    # After the removals, which may leave a letter next to its accent.
    if not unicodedata.is_normalized("NFC", text):
        text = unicodedata.normalize("NFC", text)
    text = _SPACES.sub(" ", text)
    text = _LINE_END.sub("\n", text)
    return _BLANK_LINES.sub("\n\n", text).strip(" \t\n")


def clean_document(text: str) -> str:
    """`normalise`, and without the leftovers of encyclopedic summaries: "[3]" and empty parentheses. Idempotent."""
    text = normalise(text)
    # Again until nothing changes: taking "[2]" out of "[1[2]]" leaves another mark.
    while (shorter := normalise(_LEFTOVER.sub("", text))) != text:
        text = shorter
    return text
