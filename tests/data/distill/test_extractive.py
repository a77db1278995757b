"""The embedded teacher: honest, repeatable, and never a word that is not in the text."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from enlace.config.schema import DistillConfig
from enlace.data.dedup import document_hash
from enlace.data.distill import (
    ClienteExtractivo,
    Peticion,
    Trabajo,
    collect,
    leer_especificaciones,
    resumen_de_uso,
    submit,
)
from enlace.data.distill.answers import answer
from enlace.data.distill.passages import SYSTEM, grounded, parse_grounded, passage_of, sentences
from enlace.data.distill.questions import questions_from_document
from enlace.data.distill.spans import find_span
from enlace.data.documents import Document

SPECS = sorted((Path(__file__).parents[3] / "data" / "specs").glob("*.jsonl"))


@pytest.mark.parametrize(
    "text",
    [
        "Nació en el 45 a. C. en Roma. Murió joven.",
        "El Dr. Ruiz y J. R. R. Tolkien viven en EE. UU. desde 1950.",
        "Mide 1.5 metros. Pesa 3 kg.",
        "¿Quién es? ¡Nadie! Eso dijo… Y se fue.",
    ],
)
def test_sentences_lose_nothing(text: str) -> None:
    assert " ".join(sentences(text)) == text


def test_sentences_end_where_they_end() -> None:
    assert sentences("Fue el Sr. Gil. Vivió en el siglo I a. C. y murió. ¿Sí?") == [
        "Fue el Sr. Gil.",
        "Vivió en el siglo I a. C. y murió.",
        "¿Sí?",
    ]


def test_a_passage_is_whole_sentences() -> None:
    first, second = "El río es largo.", "A" + "a" * 395 + "."
    assert passage_of(f"{first} {second} Otra más.") == f"{first} {second}"
    assert passage_of(f"{first} {second}aaaaaaaaaaaaaaaaaaaaaaaaaaa") == first
    assert passage_of(f"{first}\n\n{second}") == first
    assert passage_of("Sin punto final") is None
    assert passage_of("") is None


@given(st.text().filter(str.strip), st.text(st.characters(exclude_characters="\n"), min_size=1))
def test_form_of_a_grounded_request(passage: str, question: str) -> None:
    assert parse_grounded(grounded(passage, question)) == (passage, question)


def test_a_free_request_has_no_passage() -> None:
    assert parse_grounded("¿Qué tiempo hace?") is None


PROUST = (
    "Marcel Proust (París, 1871) fue un novelista y crítico francés, conocido por su obra En busca. Nació en Auteuil."
)
GAMBIA = "Gambia, también llamada La Gambia, es un país situado en el oeste de África. Su capital es Banjul."
SOUL = "El soul es un género musical que nació hacia 1950. Es alegre."


@pytest.mark.parametrize(
    ("passage", "question", "expected"),
    [
        (PROUST, "¿Quién fue Marcel Proust?", "un novelista y crítico francés"),
        (PROUST, "¿A qué se dedicaba Marcel Proust?", "novelista y crítico"),
        (PROUST, "¿De qué nacionalidad fue Marcel Proust?", "francés"),
        (PROUST, "¿Por qué fue conocido Marcel Proust?", "por su obra En busca"),
        (PROUST, "¿Dónde nació Marcel Proust?", "en Auteuil"),
        (PROUST, "¿De quién habla el texto?", "Marcel Proust"),
        (PROUST, "¿Quién fue Victor Hugo?", None),
        (PROUST, "¿Cuándo murió Marcel Proust?", None),
        (GAMBIA, "¿Qué es Gambia?", "un país situado en el oeste de África"),
        (GAMBIA, "¿Cuál es la capital de Gambia?", "Banjul"),
        (GAMBIA, "¿Dónde está Gambia?", "en el oeste de África"),
        (GAMBIA, "¿Qué otro nombre tiene Gambia?", None),  # no real other name
        (SOUL, "¿Qué es el soul?", "un género musical que nació hacia 1950"),
        (SOUL, "¿Qué año menciona el texto?", "1950"),
        (SOUL + " Volvió en 1990.", "¿Qué año menciona el texto?", None),
        ("Mide 1950 metros de alto.", "¿Qué año menciona el texto?", None),
        (" \n ", "¿Qué otro nombre tiene Gambia?", None),
        (", El fue la", "¿De qué habla el texto?", None),  # an answer without words is none
    ],
)
def test_encyclopedic_answers(passage: str, question: str, expected: str | None) -> None:
    assert answer(passage, question) == expected


BILL = "Consumo: 214 kWh. Total a pagar: 58,37 €. Se cargará el 12 de abril. El potus se riega cada 15 días."
PLANT = "Riégala una vez por semana en verano y cada 15 días en invierno."


@pytest.mark.parametrize(
    ("passage", "question", "expected"),
    [
        (BILL, "¿Cuánto hay que pagar?", "58,37 €"),
        (BILL, "¿Cuándo se cargará?", "el 12 de abril"),
        (BILL, "¿Cada cuánto se riega el potus?", "cada 15 días"),
        (BILL, "¿Cuánto cuesta el pan?", None),
        (BILL, "¿Quién vino ayer?", None),
        (PLANT, "¿Cada cuánto se riega en invierno?", "cada 15 días"),
        (PLANT, "¿Cada cuánto se riega en verano?", "una vez por semana"),
    ],
)
def test_everyday_answers(passage: str, question: str, expected: str | None) -> None:
    assert find_span(passage, question) == expected


WORDS = (
    "El la una fue es un y de en (1871) 12 20 € minutos lunes Luis Roma Gambia, conocido como por situado . ¿ , ; « »"
)
words = st.sampled_from(WORDS.split())


@given(st.lists(words, min_size=1, max_size=40).map(" ".join), st.lists(words, max_size=3).map(" ".join))
def test_an_answer_is_a_piece_of_the_passage(passage: str, name: str) -> None:
    forms = (
        "¿Quién fue {}?",
        "¿Dónde está {}?",
        "¿De qué habla el texto?",
        "¿Cuánto tiempo {}?",
        "¿Quién {}?",
        "¿Qué {}?",
    )
    for question in (form.format(name) for form in forms):
        for found in (answer(passage, question), find_span(passage, question)):
            assert found is None or (found in passage and 0 < len(found) <= 120)


def test_the_requests_of_the_house_are_answered(tmp_path: Path) -> None:
    peticiones = [peticion for path in SPECS for peticion in leer_especificaciones(path)]
    assert len(peticiones) > 90
    trabajo = Trabajo("hogar", tmp_path)
    cliente = ClienteExtractivo(tmp_path / "lotes")
    submit(trabajo, peticiones, cliente, DistillConfig())
    collect(trabajo, cliente, DistillConfig())
    answered = {row["custom_id"] for row in trabajo.leer_resultados()}
    for peticion in peticiones:
        assert (peticion.custom_id in answered) == (parse_grounded(peticion.user) is not None), peticion.user
    assert {row["class"] for row in trabajo.leer_errores()} == {"sin_pasaje"}
    assert resumen_de_uso(trabajo, DistillConfig())["usd_estimado"] == 0.0


def test_the_protocol(tmp_path: Path) -> None:
    cliente = ClienteExtractivo(tmp_path)
    peticiones = [
        Peticion(SYSTEM, grounded(SOUL, "¿Qué es el soul?")),
        Peticion(SYSTEM, grounded(SOUL, "¿Cuánto cuesta el pan?")),
        Peticion(SYSTEM, "Cuéntame algo."),
        Peticion(SYSTEM, grounded(SOUL, "¿Qué es el soul?"), schema={"type": "object"}),
    ]
    pedidos = [{"custom_id": p.custom_id, "params": cliente.construir_params(p)} for p in peticiones]
    batch_id = cliente.crear(pedidos)
    assert batch_id == cliente.crear(pedidos) != cliente.crear(pedidos[:1])
    assert cliente.estado(batch_id)["processing_status"] == "ended"
    assert (cliente.estado(batch_id)["succeeded"], cliente.estado(batch_id)["errored"]) == (1, 3)
    rows = list(cliente.resultados(batch_id))
    assert [row.get("text", row.get("error_type")) for row in rows] == [
        "un género musical que nació hacia 1950",
        "sin_respuesta",
        "sin_pasaje",
        "sin_respuesta",
    ]


def test_personal_data_of_a_document_is_not_asked_about() -> None:
    """The teacher may be a paid one, far from home."""
    text = "La posada es un hotel; para reservar escriba a ana.ruiz@ejemplo.com o llame al +34 600 123 123."
    asked = questions_from_document(Document("x", text, "propio", {"title": "La posada", "topic": "Lugares"}), 9)
    assert asked
    for peticion in asked:
        assert "ana.ruiz" not in peticion.user and "600 123" not in peticion.user
        assert "[correo] o llame al [teléfono]" in peticion.user
        assert peticion.meta["document_hash"] == document_hash(text)  # of what lies in data/raw: it decides the split


def test_questions_of_a_document() -> None:
    document = Document("wiki:Gambia", GAMBIA, "wiki", {"title": "Gambia (país)", "topic": "Geografía"})
    asked = questions_from_document(document, 9)
    assert {parse_grounded(p.user)[1] for p in asked} == {  # type: ignore[index]
        "¿Qué es Gambia?",
        "¿Cuál es la capital de Gambia?",
        "¿Dónde está Gambia?",
        "¿De qué habla el texto?",
    }
    assert questions_from_document(document, 2) == asked[:2]
    for peticion in asked:
        passage, question = parse_grounded(peticion.user)  # type: ignore[misc]
        assert passage == GAMBIA and answer(passage, question)
        assert peticion.system == SYSTEM
        assert peticion.meta["document_hash"] == document_hash(GAMBIA)
        assert (peticion.meta["document"], peticion.meta["source"]) == ("wiki:Gambia", "wiki")
    assert questions_from_document(Document("x", "Sin sujeto ni nada", "casa", {}), 2) == []
    assert questions_from_document(Document("x", SOUL, "casa", {}), 2) == []  # no title: who or what is unknown
