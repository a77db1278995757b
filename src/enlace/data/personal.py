"""Personal data of the Spanish-speaking world, replaced by fixed placeholders.

Numbers are told by their check digit wherever there is one (DNI and NIE, CUIT and CUIL, RUT, CURP, IBAN, cards), so
that other numbers stay. A phone has none: it needs its "+" and country code, or a word such as "tel." before it; "600
000 000 de euros" is not one. Where there is no "@" and no run of digits, nothing else is looked for.
"""

from __future__ import annotations

import ipaddress
import re
from collections import Counter
from collections.abc import Callable, Iterator

PLACEHOLDERS = {
    "mail": "[correo]",
    "phone": "[teléfono]",
    "identity": "[identificación]",
    "iban": "[cuenta]",
    "card": "[tarjeta]",
    "ip": "[IP]",
}

# Six digits with nothing but a sign between them: whatever is looked for by its digits has as many.
_DIGITS = re.compile(r"[0-9](?:[ .\-/()]{0,2}\d){5}")
_COLONS = re.compile(r":[0-9a-fA-F]{0,4}:[0-9a-fA-F]")

_MAIL_NAME = re.compile(r"(?<![\w.+\-])[\w.+\-]{1,64}$")
_MAIL_HOST = re.compile(r"@[\w\-]{1,63}(?:\.[\w\-]{1,63})*\.[^\W\d_]{2,24}(?![\w@])")
# After a space the letter is a capital: "20240118 a las tres" is a date.
_DNI = re.compile(r"(?<![\w.\-])(?:\d{8}|\d{2}\.\d{3}\.\d{3}|[XYZxyz][ \-]?\d{7})(?:-?[A-Za-z]| [A-Z])(?!\w)")
_CUIT = re.compile(r"(?<![\w.\-])(?:20|2[3-7]|30|33|34)-?\d{8}-?\d(?![\w\-])")
_RUT = re.compile(r"(?<![\w.\-])(?:\d{1,2}\.\d{3}\.\d{3}|\d{7,8})-[\dkK](?![\w\-])")
_CURP = re.compile(r"(?<!\w)[A-Z][AEIOUX][A-Z]{2}[0-9]{6}[HMX][A-Z]{5}[A-Z0-9][0-9](?!\w)")
# Spain's apart: of digits only, so that a word in capitals after it is not taken for more of it.
_IBAN = re.compile(
    r"(?<!\w)(?:[Ee][Ss]\d{2}(?:[ \-]?\d{4}){5}|[A-Z]{2}\d{2}(?: ?[A-Z0-9]{4}){2,7}(?: ?[A-Z0-9]{1,3})?)(?!\w)"
)
_CARD = re.compile(
    r"(?<![\w.,\-])(?:\d{13,19}|\d{4}([ \-])\d{4}\1\d{4}\1\d{4}|3\d{3}([ \-])\d{6}\2\d{5})(?![\w\-]|[.,]\d)"
)
_PHONE = re.compile(
    r"(?<![\w+])(?:\(\+\d{1,3}\)|(?:\+|00)\d{1,3})[ .\-]?(?:\(\d{1,4}\)[ .\-]?)?\d(?:[ .\-]?\d){6,11}(?!\w)"
    r"|(?i:(?P<word>\b(?:tel[ée]?f?(?:ono)?s?|tfno|tlf|m[óo]vil|cel(?:ular)?|fax|whats?app|ll[aá]m[ae](?:r|nos|me)?)\b"
    r"[^\d\n(+]{0,20}))\(?\d(?:[ .\-/()]{0,2}\d){6,11}(?!\w)"
)
_IPV4 = re.compile(r"(?<![\w.])\d{1,3}(?:\.\d{1,3}){3}(?![\w]|\.\d)")
# The sign before is looked at after the first digit: so written, it looks for that digit much sooner.
_IPV6 = re.compile(
    r"[0-9a-fA-F](?<![\w:.].)[0-9a-fA-F]{0,3}:(?:[0-9a-fA-F]{1,4}:){1,6}:?[0-9a-fA-F]{1,4}(?::[0-9a-fA-F]{1,4})*+(?![\w:])"
)
_VERSION = re.compile(r"(?:versi[óo]n|v\.?|release|paquete|secci[óo]n|cap[íi]tulo|art[íi]culo)[ \n]?$", re.IGNORECASE)

Check = Callable[[re.Match[str]], bool]


def without_personal_data(text: str) -> tuple[str, Counter[str]]:
    """`text` with placeholders for what is somebody's, and how many of each kind (the keys of `PLACEHOLDERS`)."""
    found: Counter[str] = Counter()
    if "@" in text:
        text = "".join(_without_mail(text, found))
    text = "".join(_without_numbers(text, found))
    if _COLONS.search(text):
        text = _replace(text, _IPV6, "ip", found, _is_public_ip)
    return text, found


def _without_mail(text: str, found: Counter[str]) -> Iterator[str]:
    """The parts of `text`, searched only around each "@"."""
    done = 0
    at = text.find("@")
    while at >= 0:
        first = max(done, at - 65)
        name, host = _MAIL_NAME.search(text[first:at]), _MAIL_HOST.match(text, at)
        if name and host:
            yield text[done : first + name.start()]
            yield PLACEHOLDERS["mail"]
            found["mail"] += 1
            done = host.end()
        at = text.find("@", max(at + 1, done))
    yield text[done:]


def _without_numbers(text: str, found: Counter[str]) -> Iterator[str]:
    """The parts of `text`, searched only in the lines that have a run of digits."""
    done = 0
    for start, end in _blocks(text):
        yield text[done:start]
        block = text[start:end]
        for pattern, kind, check in _NUMBERS:
            block = _replace(block, pattern, kind, found, check)
        yield block
        done = end
    yield text[done:]


def _blocks(text: str) -> Iterator[tuple[int, int]]:
    """Where the lines with a run of digits are, each with the line before it, where "versión" may be."""
    first, last = 0, -1
    for match in _DIGITS.finditer(text):
        if match.start() < last:
            continue
        start, end = text.rfind("\n", 0, match.start()), text.find("\n", match.end())
        start = text.rfind("\n", 0, start) + 1 if start >= 0 else 0
        if start > last:
            if last >= 0:
                yield first, last
            first = start
        last = end if end >= 0 else len(text)
    if last >= 0:
        yield first, last


def _replace(text: str, pattern: re.Pattern[str], kind: str, found: Counter[str], check: Check | None = None) -> str:
    def replacement(match: re.Match[str]) -> str:
        if check and not check(match):
            return match[0]
        found[kind] += 1
        return (match.groupdict().get("word") or "") + PLACEHOLDERS[kind]

    return pattern.sub(replacement, text)


def _digits(text: str) -> list[int]:
    return [int(character) for character in text if character.isdigit()]


def _is_dni(match: re.Match[str]) -> bool:
    """The letter is the number modulo 23; the X, Y or Z of a NIE counts as 0, 1 or 2. Order INT/2058/2008."""
    text = re.sub(r"[ .\-]", "", match[0]).upper()
    number = text[:-1].translate(str.maketrans("XYZ", "012"))
    return "TRWAGMYFPDXBNJZSQVHLCKE"[int(number) % 23] == text[-1]


def _is_cuit(match: re.Match[str]) -> bool:
    """Argentina (AFIP): weights 5 4 3 2 7 6 5 4 3 2, modulo 11."""
    *digits, last = _digits(match[0])
    check = 11 - sum(a * b for a, b in zip(digits, (5, 4, 3, 2, 7, 6, 5, 4, 3, 2), strict=True)) % 11
    return last == {11: 0, 10: 9}.get(check, check)


def _is_rut(match: re.Match[str]) -> bool:
    """Chile: weights 2 to 7 from the right, modulo 11; 10 is written K."""
    number, _, last = match[0].rpartition("-")
    check = 11 - sum(digit * (2 + i % 6) for i, digit in enumerate(reversed(_digits(number)))) % 11
    return last.upper() == {11: "0", 10: "K"}.get(check, str(check))


def _is_curp(match: re.Match[str]) -> bool:
    """Mexico (RENAPO): weights 18 to 2 over the alphabet with Ñ, modulo 10."""
    alphabet = "0123456789ABCDEFGHIJKLMNÑOPQRSTUVWXYZ"
    total = sum(alphabet.index(c) * (18 - i) for i, c in enumerate(match[0][:17]))
    return (10 - total % 10) % 10 == int(match[0][17])


def _is_iban(match: re.Match[str]) -> bool:
    """ISO 13616: the first four characters go to the end, letters count from 10, and the rest modulo 97 is 1."""
    text = re.sub(r"[ \-]", "", match[0])
    return 15 <= len(text) <= 34 and int("".join(str(int(c, 36)) for c in text[4:] + text[:4])) % 97 == 1


def _is_card(match: re.Match[str]) -> bool:
    """Luhn (ISO/IEC 7812), and the first digits of a brand."""
    digits = _digits(match[0])
    doubled = (digit if i % 2 == 0 else digit * 2 - 9 * (digit > 4) for i, digit in enumerate(reversed(digits)))
    brand = re.match(r"4|5[1-5]|2[2-7]|3[47]|6(?:011|5|4[4-9])|50|5[6-9]", "".join(map(str, digits)))
    return bool(brand) and len(set(digits)) > 1 and sum(doubled) % 10 == 0


def _is_phone(match: re.Match[str]) -> bool:
    years = re.search(r"(?:1[0-9]|20)\d\d ?[\-/] ?(?:1[0-9]|20)\d\d$", match[0])  # "el fax (1980-1990)"
    return 7 <= len(_digits(match[0])) <= 15 and not (years and len(_digits(match[0])) == 8)


def _is_public_ip(match: re.Match[str]) -> bool:
    """Not those of manuals and home networks (RFC 1918, 5737...), and no number of a version or a section (2.6.3.1)."""
    if len(re.findall(r"\d\d+", match[0])) < 2 and ":" not in match[0]:
        return False
    try:
        address = ipaddress.ip_address(match[0])
    except ValueError:
        return False
    before = match.string[max(0, match.start() - 12) : match.start()]
    return address.is_global and not address.is_multicast and not _VERSION.search(before)


# The most certain first: what one has replaced, the next no longer sees.
_NUMBERS: tuple[tuple[re.Pattern[str], str, Check], ...] = (
    (_CURP, "identity", _is_curp),
    (_IBAN, "iban", _is_iban),
    (_CARD, "card", _is_card),
    (_PHONE, "phone", _is_phone),
    (_CUIT, "identity", _is_cuit),
    (_RUT, "identity", _is_rut),
    (_DNI, "identity", _is_dni),
    (_IPV4, "ip", _is_public_ip),
)
