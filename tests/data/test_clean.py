import pytest
from hypothesis import given
from hypothesis import strategies as st

from enlace.data.clean import clean_document, normalise

# What breaks normalisers: accents apart, line breaks of all kinds, invisible characters, lone surrogates.
NASTY = st.text(
    st.one_of(
        st.sampled_from(
            "aé ne\u0301\u0303\t\n\r\v\f\x85\u2028\u00a0\u200b\u200d\ufeff\u00ad\0\x1f\ud83d👩🚀\ufe0f()[]1,;."
        ),
        st.characters(),
    )
)


@given(NASTY)
def test_normalising_twice_changes_nothing(text: str) -> None:
    assert normalise(normalise(text)) == normalise(text)


@given(NASTY)
def test_cleaning_twice_changes_nothing(text: str) -> None:
    assert clean_document(clean_document(text)) == clean_document(text)


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
        ("Dos [1[2]] y ( () ) quedan", "Dos y quedan"),
        ("La función print() imprime", "La función print() imprime"),
        ("Nació (1830-1903) aquí", "Nació (1830-1903) aquí"),
    ],
)
def test_leftovers_of_summaries_go_and_real_text_stays(raw: str, clean: str) -> None:
    assert clean_document(raw) == clean
