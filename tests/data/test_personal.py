import json
import random
from pathlib import Path

import pytest

from enlace.data.personal import PLACEHOLDERS, without_personal_data

# What is somebody's. The numbers are examples of the rules' own publications, or made up so that the check digit fits.
PERSONAL = [
    ("Escribe a juan.perez+casa@correo.com.ar, gracias.", "Escribe a [correo], gracias."),
    ("DNI 12345678Z.", "DNI [identificación]."),
    ("dni: 12.345.678-Z", "dni: [identificación]"),
    ("NIE X1234567L y Z-1234567-R", "NIE [identificación] y [identificación]"),
    ("CUIT 20-12345678-6", "CUIT [identificación]"),
    ("CUIL 27123456780", "CUIL [identificación]"),
    ("RUT 12.345.678-5 y 11111112-k", "RUT [identificación] y [identificación]"),
    ("CURP HEGG560427MVZRRL04.", "CURP [identificación]."),
    ("IBAN ES91 2100 0418 4502 0005 1332, a nombre", "IBAN [cuenta], a nombre"),
    ("ES9121000418450200051332", "[cuenta]"),
    ("ES91 2100 0418 4502 0005 1332 BANCO, es91-2100-0418-4502-0005-1332", "[cuenta] BANCO, [cuenta]"),
    ("(+54) 11 4321-8765", "[teléfono]"),
    ("tarjeta 4111 1111 1111 1111 o 5500005555555559", "tarjeta [tarjeta] o [tarjeta]"),
    ("3782 822463 10005", "[tarjeta]"),
    ("llámame al +34 612 345 678", "llámame al [teléfono]"),
    ("+54 9 11 1234-5678, +52 (55) 1234 5678", "[teléfono], [teléfono]"),
    ("Tel.: (011) 4123-4567", "Tel.: [teléfono]"),
    ("teléfono 91 123 45 67", "teléfono [teléfono]"),
    ("la IP 200.45.67.8 y 2001:4860:4860::8888", "la IP [IP] y [IP]"),
    (
        "En casa, 200.45.67.8\ny 2001:4860:4860::8888\nJuan\nDNI 12345678Z\nAna",
        "En casa, [IP]\ny [IP]\nJuan\nDNI [identificación]\nAna",
    ),
]
# What looks like it and is not.
NOBODYS = [
    "600 000 000 de euros, y 699 999 999 más",
    "De 1914-1918 a 1936-1939, 3.14159265358979",
    "El fax (1980-1990) y el móvil 1983-2010; el 20240118 a las tres",
    "12345678A tiene mal la letra; 20-12345678-1 y 12.345.678-1, la cifra",
    "HEGG560427MVZRRL05",
    "ES92 2100 0418 4502 0005 1332",
    "4111 1111 1111 1112 y 0000 0000 0000 0000",
    "192.168.1.1, 127.0.0.1, 10.0.0.8, 203.0.113.7, ::1 y fe80::1",
    "la versión 17.14.7.2 y v1.22.33.4; 300.10.20.3",
    "De la versión\n17.14.77.20 a la 18",
    "Actualiza la 3 del 2019-2020 a la versión\n100.20.30.40 de la biblioteca",
    "GARC٨٥٠١٠١HDFRRL09 y 123456",
    "2.6.3.1 Diagramas de flauta, y 8.8.8.8",
    "a las 10:30:15, Génesis 1:1-3",
    "un @usuario, correo@, @dominio.com y 5 @ 3",
    "ISBN 978-84-376-0494-7 y 978-3-16-148410-0",
    "población de 1 234 567 habitantes en 505 990 km²",
]


@pytest.mark.parametrize(("text", "clean"), PERSONAL)
def test_what_is_somebodys_becomes_a_placeholder(text: str, clean: str) -> None:
    found = without_personal_data(text)
    assert found[0] == clean
    assert sum(found[1].values()) == sum(clean.count(placeholder) for placeholder in set(PLACEHOLDERS.values()))


@pytest.mark.parametrize("text", NOBODYS)
def test_what_only_looks_like_it_stays(text: str) -> None:
    assert without_personal_data(text) == (text, {})


def test_placeholders_are_fixed_and_cleaning_twice_changes_nothing() -> None:
    text = " ".join(text for text, _ in PERSONAL)
    once, _ = without_personal_data(text)
    assert without_personal_data(once) == (once, {})
    assert without_personal_data(text)[0] == once


def test_a_wrong_check_digit_saves_nine_numbers_of_ten() -> None:
    """Of random numbers in the form of a card or a CUIT few pass: the digit is checked, not only the form."""
    drawn = random.Random(0)
    cards = ["4" + "".join(drawn.choices("0123456789", k=15)) for _ in range(500)]
    cuits = [f"20-{drawn.randrange(10**8):08d}-{drawn.randrange(10)}" for _ in range(500)]
    for numbers in (cards, cuits):
        assert 20 < sum(bool(without_personal_data(number)[1]) for number in numbers) < 90


def test_nothing_is_replaced_in_good_text(documents: list) -> None:
    assert all(without_personal_data(document.text) == (document.text, {}) for document in documents)


def test_digits_by_the_hundred_thousand_are_read_in_no_time() -> None:
    for text in ("1" * 200_000, "1 " * 100_000, "1." * 100_000, "a@" * 100_000, "A1" * 100_000, ":" * 200_000):
        without_personal_data(text)


def test_samples_of_reports_do_not_hold_what_was_removed(tmp_path: Path) -> None:
    from enlace.data.documents import Document
    from enlace.data.filters import EvalSet, Report, clean_batch
    from tests.conftest import NO_RULES

    report = Report()
    rules = NO_RULES.model_copy(update={"personal_data": True})
    document = Document("a:1", "Escribe a juan.perez@correo.com si quieres saber más de esto.", "a", {})
    clean_batch([document], rules, 10, EvalSet.of([]), report)
    told = json.dumps(report.to_json())
    assert "juan.perez" not in told and "[correo]" in told and report.removed == {"mail": 1}
