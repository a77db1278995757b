import random

import pytest

from enlace.data import language
from enlace.data.clean import normalise
from enlace.data.decontaminate import EvalSet, read_eval_sets
from enlace.data.documents import Document
from enlace.data.filters import Kept, Report, clean_batch
from enlace.data.language import is_spanish
from enlace.data.words import words_of
from tests.conftest import NO_RULES, sentences

GOOD = "El mate se ceba con agua caliente, nunca hirviendo, porque la yerba se quema y queda amarga."


def _clean(*texts: str, evals: tuple[str, ...] = (), **rules: object) -> tuple[Kept, Report]:
    report = Report()
    documents = [Document(f"d:{i}", text, "d", {}) for i, text in enumerate(texts)]
    kept = clean_batch(documents, NO_RULES.model_copy(update=rules), 20, EvalSet.of(evals), report)
    return kept, report


@pytest.mark.parametrize(
    ("rule", "value", "bad"),
    [
        ("spanish", 0.1, "The quick brown fox jumps over the lazy dog and then goes back to the house of its family."),
        ("symbols", 0.3, "| 12 | 34 | 56 | 78 | ==== ---- //// 99 %% ## @@ !! || (( )) [[ ]]"),
        ("repetition", 0.3, "Compra ya tu coche nuevo en la tienda. " * 8),
    ],
)
def test_each_rule_drops_counts_and_shows_what_is_bad_and_can_be_switched_off(
    rule: str, value: float, bad: str
) -> None:
    kept, report = _clean(GOOD, bad, **{rule: value})
    assert kept.texts == [GOOD]
    reason = {"spanish": "language"}.get(rule, rule)
    assert report.dropped == {reason: 1} and report.documents == 2
    assert report.samples[reason][0][1:] == ("d:1", bad[:160])
    kept, report = _clean(GOOD, bad)
    assert len(kept.texts) == 2 and report.dropped == {}


def test_good_texts_pass_all_rules(documents: list[Document]) -> None:
    rules = {"boilerplate": True, "spanish": 0.1, "symbols": 0.3, "repetition": 0.3, "personal_data": True}
    texts = [normalise(document.text) for document in documents]
    kept, report = _clean(*texts, **rules)
    assert kept.texts == texts and report.dropped == report.removed == {}


def test_boilerplate_lines_go_and_the_text_stays() -> None:
    page = (
        f"Usamos cookies propias y de terceros.\nLeer más\n{GOOD}\n© 2024 Mi Casa S.A.\nCompartir en Facebook\nImprimir"
    )
    page += "\n[ << Antes ]\n[Arriba][Índice]"
    kept, report = _clean(
        page, f"{GOOD}\nLas cookies de avena llevan mantequilla.\nImprimir el libro cuesta mucho.", boilerplate=True
    )
    assert kept.texts[0] == GOOD and report.removed == {"boilerplate": 7}
    assert kept.texts[1].endswith("Las cookies de avena llevan mantequilla.\nImprimir el libro cuesta mucho.")
    assert len(report.samples["boilerplate"]) == 5


def test_each_line_is_boilerplate_by_itself() -> None:
    """Signs alone are none, and neither is what would be one only together with the line before."""
    lines = (
        "— Leer más —\n***\nCompartir en Facebook\nTwitter\n\nMi Casa, 2024. TODOS LOS DERECHOS RESERVADOS.\nVer más"
    )
    kept, report = _clean(f"{GOOD}\n{lines}", boilerplate=True)
    assert kept.texts == [f"{GOOD}\n***\nTwitter"] and report.removed == {"boilerplate": 4}


@pytest.mark.parametrize("lines", ["---\n" * 20_000, "[<" * 20_000, "compartir en " + "- " * 40_000 + "fin"])
def test_signs_by_the_thousand_are_read_in_no_time(lines: str) -> None:
    kept, _ = _clean(f"{GOOD}\n{lines}\n{GOOD}", boilerplate=True)
    assert len(kept.texts) == 1


def test_a_sample_shows_no_personal_data_of_a_line_that_is_taken_out() -> None:
    line = "© 2024 Ana Pérez, ana.perez@correo.es, tel. 600 123 456"
    _, report = _clean(f"{GOOD}\n{line}", boilerplate=True, personal_data=True)
    (sample,) = report.samples["boilerplate"]
    assert sample[2] == "© 2024 Ana Pérez, [correo], tel. [teléfono]"


def test_a_line_repeated_in_a_document_stays_once_but_short_ones_stay() -> None:
    menu = "Inicio de la página de la casa"
    kept, report = _clean(f"{menu}\n{GOOD}\n{menu}\n—No.\n—No.\n—No.\n{menu}", boilerplate=True)
    assert kept.texts == [f"{menu}\n{GOOD}\n—No.\n—No.\n—No."] and report.removed == {"boilerplate": 2}


def test_the_split_goes_by_what_the_text_was_before_cleaning() -> None:
    """Conversations know a document by the hash of the raw text; cleaning must not move it to the other side."""
    from enlace.data.dedup import document_hash

    raw = f"{GOOD} Escribe a ana@casa.es."
    kept, _ = _clean(raw, personal_data=True)
    assert kept.keys[0].hex() == document_hash(raw) != kept.digests[0].hex() == document_hash(kept.texts[0])


@pytest.mark.parametrize(
    "text",
    [
        "O Brasil é o maior país da América do Sul e da região da América Latina, sendo o quinto maior do mundo em "
        "área territorial e o sexto em população, com mais de 213 milhões de habitantes. É o único na América onde se "
        "fala majoritariamente a língua portuguesa e não o espanhol.",
        "Catalunya és un país europeu situat a la Mediterrània occidental, constituït com a comunitat autònoma. La "
        "seva capital és la ciutat de Barcelona. Està situada al nord-est de la península, i limita amb França.",
        "Galicia é unha comunidade autónoma española situada ao noroeste da península Ibérica, que ten a "
        "consideración de nacionalidade histórica. A súa capital é Santiago, e está formada polas provincias da "
        "Coruña, Lugo, Ourense e Pontevedra.",
        "La France est un pays dont le territoire métropolitain est situé en Europe de l'Ouest et dont le territoire "
        "ultramarin est situé dans les océans Indien, Atlantique et Pacifique ainsi qu'en Amérique du Sud.",
        "L'Italia è uno Stato situato nell'Europa meridionale, il cui territorio coincide in gran parte con la omonima "
        "regione geografica. È una repubblica parlamentare e conta una popolazione di circa 59 milioni di abitanti.",
        "Deutschland ist ein Bundesstaat in Mitteleuropa und hat etwa 84 Millionen Einwohner, die sich auf eine Fläche "
        "von 357 588 Quadratkilometern verteilen und mit der Hauptstadt Berlin als bevölkerungsreichster Stadt.",
    ],
)
def test_neighbouring_languages_are_not_taken_for_spanish(text: str) -> None:
    assert is_spanish(words_of([GOOD, text]), 0.1).tolist() == [True, False]


@pytest.mark.parametrize(
    "text",
    [
        "Per fer la truita bateu els ous amb una mica de sal, escalfeu l'oli i deixeu que la ceba es cogui a poc.",
        "Molts pobles de la comarca celebren la festa al mes d'agost, quan els fills que viuen a fora tornen a casa.",
        "Para facer a tortilla bate os ovos cun pouco de sal, quenta o aceite e deixa que a cebola se vaia facendo.",
        "Moitas vilas da comarca celebran a festa no mes de agosto, cando volven á casa os fillos que viven fóra.",
        "Para fazer a tortilha bata os ovos com um pouco de sal, aqueça o azeite e deixe a cebola alourar devagar.",
        "Muitas aldeias da região fazem a festa em agosto, quando os filhos que vivem fora voltam para casa.",
        "Pour faire l'omelette, battez les œufs avec un peu de sel, chauffez l'huile et laissez cuire les oignons.",
        "Per fare la frittata sbattete le uova con un po' di sale, scaldate l'olio e lasciate cuocere la cipolla.",
        "To make the omelette, beat the eggs with a little salt, heat the oil and let the onion cook slowly in it.",
        "La compra: pa de pagès, oli d'oliva, dues cebes, mig quilo de tomàquets per amanir, una dotzena d'ous, "
        "formatge fresc, sal, i també mantega si en queda a la botiga de sota.",
        "Lista da compra: pan de millo, aceite, dúas cebolas, medio quilo de tomates para a ensalada, unha ducia de "
        "ovos, queixo do país, sal e tamén manteiga se queda na tenda da esquina.",
        "Conteúdo: 1. A casa e os seus quartos. 2. O que se faz na cozinha. 3. Como tratar das plantas. 4. As contas "
        "do mês. 5. Para não esquecer.",
    ],
)
def test_a_recipe_or_a_list_of_twenty_words_is_enough_to_tell(text: str) -> None:
    assert not is_spanish(words_of([text]), 0.1)[0]


@pytest.mark.parametrize(
    "text",
    [
        "El cantante grabó más de cien canciones, casi todas en inglés, y las que hoy recuerda el público son «House "
        "by the River», «All of You», «What Is This?», «When Rain Stops», «Out of My Mind», «She Came from Nowhere», "
        "«Do It» y «Up in the Air».",
        "Sūn Shān (Sūn Shānshuǐ en pinyin, Syūn Sāanséui en cantonés; Jǐnán, provincia de Shāndōng), nieto de Sūn "
        "Jiān e hijo de Sūn Mǐn, fue un médico y poeta chino, discípulo de Sūn Sīmiǎo.",
        "Abū Saʿīd al-Dīn al-Fārābī, también conocido como Rashīd al-Dīn al-Ḥamdānī, fue un filósofo y músico en la "
        "corte del emir Sayf al-Dawla. Nació en una familia de Fārāb.",
        "La línea sale de la plaza de la Vila, pasa por el carrer dels Àngels, la ronda del Mig, l'Hospital de Sant "
        "Pau, el passeig d'en Fabra i Puig y el Portal de l'Àngel, y acaba en la estación de Sants.",
        "Jugaron Marcos Assunção, Antônio dos Santos, João da Silva, Zé do Carmo, Luís das Neves y Paulo do Vale; los "
        "goles fueron de dos Santos y de da Silva, y el partido acabó con el estadio lleno.",
    ],
)
def test_spanish_dense_with_foreign_names_is_spanish(text: str) -> None:
    assert is_spanish(words_of([text]), 0.1)[0]


def test_every_common_word_is_known() -> None:
    """Two words with the same place would hide one of them."""
    texts = [f"{word} " * 5 for word in language._COMMON["es"].split()]
    assert is_spanish(words_of(texts), 1.0).all()


def test_short_spanish_sentences_are_spanish() -> None:
    assert is_spanish(words_of(sentences()), 0.1).all()


def test_samples_do_not_depend_on_the_order_of_the_documents() -> None:
    texts = [f"The house number {i} of the street is not in the list of the houses for sale." for i in range(40)]
    documents = [Document(f"d:{i}", text, "d", {}) for i, text in enumerate(texts)]
    reports = []
    for seed in range(2):
        random.Random(seed).shuffle(documents)
        whole = Report()
        for batch in (documents[:13], documents[13:]):
            clean_batch(batch, NO_RULES.model_copy(update={"spanish": 0.1}), 20, EvalSet.of([]), part := Report())
            whole.add(Report.from_json(part.to_json()))
        reports.append(whole.to_json())
    assert reports[0] == reports[1] and reports[0]["dropped"] == {"language": 40}


# ── Evaluation sets ──────────────────────────────────────────────────────────────────────────────────────────────────

QUESTION = "¿Cuál de estos dos animales domésticos duerme más horas al día, el gato o el perro?"


def test_whoever_contains_an_evaluation_item_is_dropped_and_both_ways_are_told() -> None:
    short = "El agua hierve a cien grados al nivel del mar."
    quoting = f"{GOOD} Dice: «{QUESTION.lower()}» {GOOD}"
    other = "¿Cuál de estos dos animales domésticos duerme más horas en verano? Nadie lo sabe todavía."
    kept, report = _clean(GOOD, quoting, other, f"{GOOD} {short}", evals=(QUESTION, short, "¿Qué hora es?", GOOD * 2))
    assert kept.texts == [other]
    assert report.dropped == {"contaminated": 3}
    # GOOD itself is a part of the fourth item: whatever shares 13 words with it goes too.
    assert report.eval_items == {0, 1, 3}
    kept, report = _clean(GOOD, quoting, evals=(QUESTION,))
    assert kept.texts == [GOOD] and report.eval_items == {0}
    assert EvalSet.of(["¿Qué hora es?", QUESTION]).too_short() == 1


def test_evaluation_sets_are_read_from_lines_and_from_any_text_of_a_record(tmp_path) -> None:
    from enlace import EnlaceError

    (tmp_path / "a.txt").write_text(f"{QUESTION}\n\nOtra frase\n", encoding="utf-8")
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub/b.jsonl").write_text('{"good": "uno", "n": 3, "o": ["dos", {"x": "tres"}]}\n', encoding="utf-8")
    (tmp_path / ".gitkeep").touch()
    assert read_eval_sets(tmp_path).items == (QUESTION, "Otra frase", "uno", "dos", "tres")
    assert read_eval_sets(tmp_path / "nada").runs == ()
    (tmp_path / "c.csv").write_text("uno,dos", encoding="utf-8")
    with pytest.raises(EnlaceError, match=r"c\.csv: no es \.txt ni \.jsonl"):
        read_eval_sets(tmp_path)
