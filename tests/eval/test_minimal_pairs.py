from __future__ import annotations

import math
from collections import Counter, defaultdict
from pathlib import Path

import pytest
import torch

from enlace import EnlaceError
from enlace.config.schema import ModelConfig
from enlace.data.shards import Shards
from enlace.data.tokenizer import Tokenizer
from enlace.eval.minimal_pairs import FILE, Pair, Phenomenon, generate_pairs, judge, load_phenomena
from enlace.export.trained import Trained
from enlace.model.transformer import Transformer
from tests.conftest import ROOT, sentences

PHENOMENA = load_phenomena(ROOT / FILE)
PAIRS = generate_pairs(PHENOMENA, 1000)


def _by_phenomenon(pairs: list[Pair]) -> dict[str, list[Pair]]:
    found = defaultdict(list)
    for pair in pairs:
        found[pair.phenomenon].append(pair)
    return found


def test_there_are_enough_of_each() -> None:
    counts = Counter(pair.phenomenon for pair in PAIRS)
    assert len(counts) >= 12
    assert min(counts.values()) >= 100, counts


def test_each_pair_differs_in_one_word_and_no_sentence_is_right_and_wrong() -> None:
    for pair in PAIRS:
        good, bad = pair.good.split(" "), pair.bad.split(" ")
        assert len(good) == len(bad) and sum(a != b for a, b in zip(good, bad, strict=True)) == 1, pair
        assert pair.good[0] == pair.good[0].upper() and pair.good[-1] in ".?" and "  " not in pair.good, pair
        assert not set("{}_") & set(pair.good + pair.bad), pair
    assert not {pair.good for pair in PAIRS} & {pair.bad for pair in PAIRS}
    assert len(set(PAIRS)) == len(PAIRS)


@pytest.mark.parametrize("limit", [10, 200])
@pytest.mark.parametrize("corpus", ["the pairs themselves", "a book of stories"])
def test_knowing_how_frequent_words_are_is_worth_one_half(corpus: str, limit: int) -> None:
    """A unigram model with add-one smoothing; where the two words are as frequent, it gets half of the credit."""
    texts = [text for pair in PAIRS for text in (pair.good, pair.bad)] if corpus.startswith("the") else sentences()
    counts = Counter(word for text in texts for word in _words(text))
    total = sum(counts.values())

    def log_p(sentence: str) -> float:
        return sum(math.log((counts[word] + 1) / (total + len(counts))) for word in _words(sentence))

    for name, pairs in _by_phenomenon(generate_pairs(PHENOMENA, limit)).items():
        differences = [log_p(pair.good) - log_p(pair.bad) for pair in pairs]
        credit = [0.5 if abs(d) < 1e-9 else float(d > 0) for d in differences]
        assert sum(credit) / len(credit) == 0.5, name


def _words(text: str) -> list[str]:
    return text.lower().replace(",", "").rstrip(".?").lstrip("¿").split()


def test_every_word_is_as_often_right_as_wrong() -> None:
    for name, pairs in _by_phenomenon(generate_pairs(PHENOMENA, 100)).items():
        balance: Counter[str] = Counter()
        for pair in pairs:
            [(good, bad)] = [w for w in zip(_words(pair.good), _words(pair.bad), strict=True) if w[0] != w[1]]
            balance[good] += 1
            balance[bad] -= 1
        assert not any(balance.values()), (name, balance)


def test_the_same_pairs_each_time_and_a_part_is_a_part() -> None:
    assert generate_pairs(load_phenomena(ROOT / FILE), 1000) == PAIRS
    few = _by_phenomenon(generate_pairs(PHENOMENA, 20))
    for name, pairs in _by_phenomenon(PAIRS).items():
        assert few[name] == pairs[:20]


# Known right and wrong, apart from the file: its groups could be turned around and no other test would see it.
@pytest.mark.parametrize(
    ("good", "bad"),
    [
        ("Es una mujer muy educada.", "Es una mujer muy educado."),
        ("La puerta del garaje está abierta.", "La puerta del garaje está abierto."),
        ("Las casas del vecino están cerca del río.", "Las casas del vecino está cerca del río."),
        ("Mi hermano es médico.", "Mi hermano está médico."),
        ("Ayer saludé al vecino en la calle.", "Ayer saludé el vecino en la calle."),
        ("Quiero que Ana venga mañana.", "Quiero que Ana viene mañana."),
        ("Ana no tiene tiempo para leer.", "Ana no tiene tiempo por leer."),
        ("Esta mañana no ha venido nadie.", "Esta mañana no ha venido alguien."),
        ("Vimos el águila del bosque.", "Vimos la águila del bosque."),
        ("Hoy leímos el primer capítulo.", "Hoy leímos el primero capítulo."),
        ("En la plaza había varios niños.", "En la plaza habían varios niños."),
        ("No sé dónde vive Ana.", "No sé donde vive Ana."),
        ("A Ana le gustan las canciones.", "A Ana le gusta las canciones."),
        ("Hablan de Francia e Italia.", "Hablan de Francia y Italia."),
        ("Si Ana viniera aquí, todo sería distinto.", "Si Ana vendría aquí, todo sería distinto."),
        ("La mesa ya la compré.", "La mesa ya lo compré."),
        ("Yo nunca me quejo del ruido.", "Yo nunca te quejo del ruido."),
    ],
)
def test_right_is_right(good: str, bad: str) -> None:
    pairs = {(pair.good, pair.bad) for pair in PAIRS}
    assert (good, bad) in pairs


def test_a_model_that_prefers_the_right_sentence_is_right(model_config: ModelConfig, small_shards: Shards) -> None:
    tokenizer = Tokenizer.load(small_shards.tokenizer_path)
    model = Transformer(model_config, tokenizer.vocab_size).initialise(torch.Generator().manual_seed(0)).eval()
    trained = Trained(model, tokenizer, 64)
    pairs = PAIRS[:40]
    right = judge(trained, pairs)
    assert judge(trained, [Pair(p.phenomenon, p.bad, p.good) for p in pairs]) == [not r for r in right]
    assert judge(trained, [Pair("x", p.good, p.good) for p in pairs]) == [False] * 40, "a tie is wrong"
    for pair, was_right in zip(pairs[:6], right, strict=False):
        costs = []
        for sentence in (pair.good, pair.bad):
            ids = torch.tensor([[tokenizer.end_of_text_id, *tokenizer.encode(sentence)]])
            with torch.no_grad():
                log_p = model.logits(model(ids[:, :-1])).log_softmax(-1)
            costs.append(-float(log_p.gather(-1, ids[:, 1:, None]).sum()))
        assert (costs[0] < costs[1]) == was_right


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("x:\n  about: r\n  groups:\n    - {words: [[a, b]], contexts: [['Un ___.', 'Dos.']]}\n", "«Dos.»"),
        ("x:\n  about: r\n  groups:\n    - {words: [[a, a]], contexts: [['Un ___.', 'Dos ___.']]}\n", "«a»"),
        ("x:\n  about: r\n  gropus: []\n", "gropus"),
        ("x: [1]\n", "x"),
        ("- x\n", "fenómeno"),
    ],
)
def test_a_broken_file_is_named(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "pairs.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(EnlaceError, match=r"pairs\.yaml") as caught:
        load_phenomena(path)
    assert said in str(caught.value)


def test_a_slot_is_filled_alike_in_both_contexts() -> None:
    group = {"words": [["al", "el"]], "contexts": [["{t} vi ___ niño.", "{t} vi ___ río."]]}
    phenomenon = Phenomenon.model_validate(
        {"about": "x", "slots": {"t": ["ayer", "hoy"]}, "groups": [group]}, strict=False
    )
    good = {pair.good for pair in generate_pairs({"x": phenomenon}, 100)}
    assert good == {"Ayer vi al niño.", "Ayer vi el río.", "Hoy vi al niño.", "Hoy vi el río."}
