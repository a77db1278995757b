import pytest
from hypothesis import given
from hypothesis import strategies as st

from enlace.data import clean
from enlace.data.clean import normalise, without_notes

# What breaks normalisers: accents apart, line breaks of all kinds, invisible characters, lone surrogates.
NASTY = st.text(
    st.one_of(
        st.sampled_from(
            "aéÃ±â€œÂ¿ ne\u0301\u0303\t\n\r\v\f\x85\u2028\u00a0\u200b\u200d\ufeff\u00ad\0\x1f\ud83d👩🚀\ufe0f()[]1,;."
        ),
        st.characters(),
    )
)


@given(NASTY)
def test_normalising_twice_changes_nothing(text: str) -> None:
    assert normalise(normalise(text)) == normalise(text)


@given(NASTY)
def test_what_is_without_notes_is_normal_text(text: str) -> None:
    assert normalise(without_notes(text)) == without_notes(text)


@pytest.mark.parametrize("run", ["\t" * 100_000, " \t" * 50_000])
@pytest.mark.parametrize("end", ["b", "[b", "(b", "( ,", "[1234]"])
def test_a_long_run_of_white_space_is_read_once(run: str, end: str) -> None:
    """Each pattern that reads a run again from each of its characters would take minutes here."""
    text = f"a{run}{end}"
    assert normalise(text) == without_notes(text) == f"a{run[:64]}{end}"


def test_leftovers_by_the_thousand_are_read_once() -> None:
    assert without_notes("a" + "\t" * 50_000 + "( ,;" + "\t" * 50_000 + ")\tb") == "a\tb"
    assert without_notes("a" + " [1]" * 50_000 + " (" * 50_000) == "a" + " (" * 50_000
    assert without_notes("[" * 50_000 + "1" + "]" * 50_000) == "[" * 49_999 + "]" * 49_999


@given(NASTY)
def test_normal_text_is_utf8_without_controls_or_loose_ends(text: str) -> None:
    normal = normalise(text)
    normal.encode("utf-8")
    assert not any(ord(c) < 32 and c not in "\n\t" for c in normal)
    assert "  " not in normal and " \n" not in normal and "\n\n\n" not in normal
    assert normal == normal.strip(" \t\n")


@pytest.mark.parametrize(
    ("raw", "normal"),
    [
        ("cancio\u0301n", "canción"),
        ("uno\r\ndos\rtres\u2028cuatro\x85cinco", "uno\ndos\ntres\ncuatro\ncinco"),
        ("\ufeffhola\u200b mun\u00addo\0", "hola mundo"),
        ("10\u00a0000\u202fkm", "10 000 km"),
        ("  a   b \t\n\n\n\n\nc  ", "a b\n\nc"),
        ("a\tb", "a\tb"),
        ("\ud83d roto", "roto"),
        ("¿niño 👩\u200d🚀?", "¿niño 👩\u200d🚀?"),
        ("ni\u200dño", "niño"),
        ("\u200b \n", ""),
    ],
)
def test_each_kind_of_dirt_has_one_clean_spelling(raw: str, normal: str) -> None:
    assert normalise(raw) == normal


@pytest.mark.parametrize(
    ("raw", "clean"),
    [
        ("Camboya ( ) es un país.", "Camboya es un país."),
        ("Camboya (), país de Asia[3][12], limita", "Camboya, país de Asia, limita"),
        ("Lima (; ) , capital [1] .", "Lima, capital."),
        ("() Al principio", "Al principio"),
        ("Quito ([1], [2]) y\tLoja\t[3]\t.", "Quito y\tLoja."),
        ("La función print() imprime", "La función print() imprime"),
        ("Nació (1830-1903) aquí", "Nació (1830-1903) aquí"),
    ],
)
def test_leftovers_of_summaries_go_and_real_text_stays(raw: str, clean: str) -> None:
    assert without_notes(raw) == clean


def test_a_tab_for_each_of_a_million_empty_cells_is_cut_short() -> None:
    """The tokenizer's regular expression overflows on longer runs; mixed with spaces too."""
    assert normalise("a" + "\t" * 1_000_000 + "b") == "a" + "\t" * 64 + "b"
    mixed = normalise("a" + " \t" * 1_000_000 + "b")
    assert len(mixed) == 66 and normalise(mixed) == mixed
    assert normalise("a" + "\t" * 64 + "b") == "a" + "\t" * 64 + "b"


def test_every_character_that_is_changed_is_looked_for_first() -> None:
    """Texts without an unusual character skip the patterns that change some: none of those may be usual."""
    patterns = (clean._LINE_BREAK, clean._INVISIBLE, clean._OTHER_SPACE)
    changed = [c for c in map(chr, range(0x110000)) if any(pattern.search(c) for pattern in patterns)]
    assert len(changed) > 2000 and all(clean._UNUSUAL.search(c) for c in changed)


@pytest.mark.parametrize(
    ("raw", "normal"),
    [
        ("canciÃ³n", "canción"),
        ("Â¿QuÃ© es un Ã±andÃº?", "¿Qué es un ñandú?"),
        ("cafÃ© â€œholaâ€\x9d", "café “hola”"),
        ("Ã\u200b±ato", "ñato"),
        ("JOÃO comió en un château", "JOÃO comió en un château"),
        ("«IRMÃ» y “LÔ", "«IRMÃ» y “LÔ"),
        ("CANCIÃ“N, aoÃ»t", "CANCIÓN, août"),
    ],
)
def test_text_decoded_with_the_wrong_table_is_repaired_and_no_other(raw: str, normal: str) -> None:
    assert normalise(raw) == normal
    assert normalise(normalise(raw)) == normal
