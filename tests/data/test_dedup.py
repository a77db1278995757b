from hypothesis import given
from hypothesis import strategies as st

from enlace.data.clean import normalise
from enlace.data.dedup import document_hash, is_held_out


def test_the_hash_never_changes_between_versions() -> None:
    """Held-out documents, and the conversations about them, are found again by this number: pinned."""
    assert document_hash("El mate se ceba con agua caliente.") == "7b166913e582d28d"


def test_copies_that_differ_in_case_space_or_accent_spelling_have_one_hash() -> None:
    assert document_hash("La Canción\n de hoy") == document_hash(" la cancio\u0301n de  HOY ")
    assert document_hash("hacía") != document_hash("hacia")
    assert document_hash("v[0]") != document_hash("v")


@given(st.text())
def test_raw_and_normal_text_have_the_same_hash(text: str) -> None:
    assert document_hash(text) == document_hash(normalise(text))


def test_the_share_held_out_is_the_one_asked_for() -> None:
    held_out = sum(is_held_out(document_hash(f"documento {i}"), 0.05) for i in range(4000))
    assert 150 < held_out < 250
