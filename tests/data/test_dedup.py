import random

from hypothesis import given
from hypothesis import strategies as st

from enlace.data.clean import normalise
from enlace.data.dedup import deduplicate, document_hash, is_held_out
from enlace.data.documents import Document


def _documents(texts: list[str]) -> list[Document]:
    return [Document(f"d:{i}", text, "d", {}) for i, text in enumerate(texts)]


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


def test_the_first_copy_is_kept() -> None:
    kept, dropped = deduplicate(_documents(["uno", "dos", "UNO", "tres", "dos "]))
    assert [document.id for document in kept] == ["d:0", "d:1", "d:3"]
    assert dropped == 2
    assert deduplicate([]) == ([], 0)


def test_the_share_held_out_is_the_one_asked_for() -> None:
    held_out = sum(is_held_out(document_hash(f"documento {i}"), 0.05) for i in range(4000))
    assert 150 < held_out < 250


def test_no_copy_is_on_both_sides_in_any_order() -> None:
    """MakazhanAlpamys/Soup#680: validation text leaks into training through copies."""
    texts = [f"texto número {i}" for i in range(200)] + [f"  Texto  NÚMERO {i}" for i in range(50)]
    sides = []
    for seed in range(3):
        random.Random(seed).shuffle(texts)
        kept, dropped = deduplicate(_documents(texts))
        assert dropped == 50
        sides.append({h for d in kept if is_held_out(h := document_hash(d.text), 0.3)})
    assert sides[0] == sides[1] == sides[2] != set()
