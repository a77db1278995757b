import random
import tracemalloc

import numpy as np
import pytest

from enlace.data import near
from enlace.data.near import band_keys, near_duplicates, similarity
from enlace.data.words import words_of

DRAWN = random.Random(7)
LEXICON = ["".join(DRAWN.choices("abcdefgilmnoprstu", k=DRAWN.randint(2, 9))) for _ in range(3000)]


def _text(seed: int, words: int = 200) -> list[str]:
    return random.Random(seed).choices(LEXICON, k=words)


def _roots(texts: list[str], threshold: float = 0.7) -> list[int]:
    return near_duplicates(iter(band_keys(words_of(texts))), texts.__getitem__, threshold, len(texts)).tolist()


def test_copies_with_small_changes_are_one_and_unrelated_texts_are_not() -> None:
    """ChenghaoMou/text-dedup#129: every copy was deleted. marin-community/marin#6854: unrelated texts were merged."""
    base = _text(1)
    copies = [" ".join([*base[:i], "cambiada", *base[i + 1 :]]) for i in range(0, 100, 20)]
    template = "Bienvenidos a la página de {}. Aquí encontrará usted todo lo que necesita saber. "
    topics = [template.format(i) + " ".join(_text(100 + i, 60)) for i in range(5)]
    roots = _roots([*copies, *topics])
    assert roots == [0] * 5 + [5, 6, 7, 8, 9]


def test_accents_capitals_and_punctuation_do_not_hide_a_copy() -> None:
    text = "La canción de cuna que cantaba mi abuela decía así: duerme, niño, duerme ya. " * 3
    assert _roots([text, text.replace("ó", "o").replace("í", "i").replace("ñ", "n").upper().replace(",", " ")]) == [
        0,
        0,
    ]


def test_which_one_stays_does_not_depend_on_the_order() -> None:
    texts = [" ".join(_text(i % 20)[: 200 - i // 20]) for i in range(60)]  # three of each, cut here and there
    kept = set()
    for seed in range(3):
        order = sorted(range(60), key=lambda i: texts[i])  # callers number the documents by what they say
        random.Random(seed).shuffle(shuffled := list(order))
        ordered = sorted(texts[i] for i in shuffled)
        roots = _roots(ordered)
        kept.add(frozenset(ordered[i] for i in range(60) if roots[i] == i))
    assert len(kept) == 1 and len(kept.pop()) == 20


@pytest.mark.parametrize(("changed", "low", "high"), [(1, 0.9, 1.0), (8, 0.55, 0.8), (60, 0.0, 0.35)])
def test_the_signature_finds_what_is_alike(changed: int, low: float, high: float) -> None:
    hits = 0
    for seed in range(60):
        base = _text(seed)
        other = list(base)
        for place in random.Random(seed).sample(range(200), changed):
            other[place] = "otra"
        pair = [" ".join(base), " ".join(other)]
        assert low <= similarity(*pair) <= high
        keys = band_keys(words_of(pair))
        hits += bool((keys[:, 0] == keys[:, 1]).any())
    assert hits >= 58 if changed == 1 else hits <= 58 if changed == 8 else hits == 0


def test_empty_and_very_short_texts_meet_only_their_equals() -> None:
    assert _roots(["", "", "uno", "uno", "dos tres"]) == [0, 1, 2, 2, 4]
    assert band_keys(words_of([])).shape == (14, 0)


def test_the_similarity_is_jaccards() -> None:
    words = LEXICON[:20]
    a, b = " ".join(words[:16]), " ".join(words[4:])
    grams = [{tuple(t[i : i + 5]) for i in range(len(t) - 4)} for t in (words[:16], words[4:])]
    assert similarity(a, b) == pytest.approx(len(grams[0] & grams[1]) / len(grams[0] | grams[1]))
    assert similarity(a, a) == 1.0 and similarity("", a) == 0.0


def test_words_of_a_text_do_not_depend_on_its_neighbours() -> None:
    """Texts are hashed a megabyte at a time: where a word stands must not change its number."""
    texts = ["El niño comió ñoquis.", "", "EL NINO   comio «noquis»", "日本語 uno"]
    together = words_of(texts)
    for i, text in enumerate(texts):
        alone = words_of([text])
        assert together.numbers[together.starts[i] : together.starts[i + 1]].tolist() == alone.numbers.tolist()
    assert words_of([texts[0]]).numbers.tolist() == words_of([texts[2]]).numbers.tolist()
    assert len(np.unique(words_of([" ".join(sorted(set(LEXICON)))]).numbers)) == len(set(LEXICON))


def test_a_long_text_is_taken_by_the_megabyte_with_the_same_words() -> None:
    """A library in one document, of up to 32 MB, needed 800 MB in each process."""
    sentence = "Había una vez un gato que dormía. "
    once = words_of([sentence]).numbers.tolist()
    tracemalloc.start()
    words = words_of([sentence * 200_000])
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert (words.numbers.reshape(200_000, 7) == once).all()
    assert peak < 25 * len(sentence) * 200_000  # 38 when it was taken whole, and 16 more kept for ever
    words = words_of([sentence * 50_000, "x" * (3 << 20) + " fin", sentence])
    assert words.counts().tolist() == [7 * 50_000, 2, 7]
    assert words.numbers[-7:].tolist() == once
    assert words.numbers[-9:-7].tolist() == [words_of([word]).numbers[0] for word in ("x" * (3 << 20), "fin")]


def test_the_words_of_some_texts_are_those_of_them_alone() -> None:
    texts = ["uno dos tres", "", "cuatro", "cinco seis"]
    chosen = np.array([False, True, True, True])
    some, alone = words_of(texts).of(chosen), words_of(texts[1:])
    assert np.array_equal(some.numbers, alone.numbers) and np.array_equal(some.starts, alone.starts)


def test_pages_out_of_one_mould_are_not_each_compared_with_all(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = [" ".join(DRAWN.choices(LEXICON, k=40)) for _ in range(400)]
    compared = 0
    jaccard = near._jaccard

    def counted(one: near.Numbers, other: near.Numbers) -> float:
        nonlocal compared
        compared += 1
        return jaccard(one, other)

    monkeypatch.setattr(near, "_jaccard", counted)
    bands = iter([np.ones(len(texts), dtype=np.uint64)])
    assert np.array_equal(near_duplicates(bands, texts.__getitem__, 0.7, len(texts)), np.arange(len(texts)))
    assert compared < 50 * len(texts)


def test_what_is_joined_already_is_not_read_again() -> None:
    """Copies meet in all fourteen bands."""
    texts = [" ".join(DRAWN.choices(LEXICON, k=40))] * 10
    read: list[int] = []

    def text_of(document: int) -> str:
        read.append(document)
        return texts[document]

    bands = iter([np.ones(len(texts), dtype=np.uint64)] * 14)
    assert not near_duplicates(bands, text_of, 0.7, len(texts)).any()
    assert len(read) == len(texts)
