"""reports/informe.html: the whole report as one page, readable without a network, on a phone, and by a screen reader.

Nothing is fetched and nothing runs: the pictures are inside as data, each with its text alternative, and the numbers
behind each are in a table beside it.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from enlace.eval.minimal_pairs import Pair, Phenomenon
from enlace.eval.plots import Picture
from enlace.eval.report import Measured

Metrics = Mapping[str, Mapping[str, float]]


@dataclass(frozen=True)
class Report:
    """All that the page shows."""

    metrics: Metrics  # rounded
    phenomena: Mapping[str, Phenomenon]
    measured: Measured
    curves: Sequence[Picture]
    pairs_picture: Picture
    run: Mapping[str, Any]  # run.json: what made the weights
    settings: Mapping[str, Any]  # of the evaluation
    machine: Mapping[str, str]
    sources: Sequence[Mapping[str, Any]]


def page(report: Report) -> str:
    """The page, in Spanish. Equal reports give equal bytes."""
    sections = (
        _at_a_glance(report.metrics),
        _section("Entrenamiento", "".join(map(_figure, report.curves)), "curvas"),
        _pairs(report),
        _questions(report),
        _tools(report.metrics["tools"]),
        _texts(report),
        _data(report),
        _how(report),
    )
    title = f"ENLACE {report.run['model']}: informe"
    return (
        f'<!DOCTYPE html>\n<html lang="es">\n<head>\n<meta charset="utf-8">\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n"
        f"<header><h1>{escape(title)}</h1>\n<p>{_summary(report.run)}</p>\n</header>\n<main>\n"
        f"{''.join(sections)}</main>\n</body>\n</html>\n"
    )


def _summary(run: Mapping[str, Any]) -> str:
    train = run["train"]
    tokens = train["steps"] * train["batch_tokens"]
    return (
        f"Un modelo de lenguaje en español entrenado desde cero: {train['steps']} pasos de {train['batch_tokens']} "
        f"tokens ({_number(tokens / 1e6)} millones), perfil {escape(run['hardware'])} en {escape(run['precision'])}. "
        f"Todo se mide con textos reservados, que el modelo no vio al entrenar."
    )


def _at_a_glance(metrics: Metrics) -> str:
    cards = [
        (f"bits por byte, {source}", _number(value, 3), "menos es mejor")
        for source, value in metrics["bits_per_byte"].items()
    ]
    cards.append(("pares mínimos", _percent(metrics["pairs"]["accuracy"]), "azar 50 %"))
    for group, key, name in (
        ("choices", "accuracy", "descripción de un título, de 4"),
        ("grounded", "choice_accuracy", "respuesta de un texto, de 4"),
        ("refusal", "refused", "reconoce que el texto no lo dice"),
    ):
        if figures := metrics[group]:
            low, high = figures[f"{key}_low"], figures[f"{key}_high"]
            chance = (
                f"azar 25 %; intervalo {_interval(low, high)}"
                if group != "refusal"
                else f"intervalo {_interval(low, high)}"
            )
            cards.append((name, _percent(figures[key]), chance))
    if "f1" in metrics["grounded"]:
        cards.append(
            (
                "F1 de lo que responde",
                _number(metrics["grounded"]["f1"]),
                f"azar {_number(metrics['grounded']['f1_chance'])}",
            )
        )
    items = "".join(
        f"<li><span>{escape(name)}</span><strong>{value}</strong><small>{escape(note)}</small></li>"
        for name, value, note in cards
    )
    return _section("De un vistazo", f'<ul class="cards">{items}</ul>', "vistazo")


def _pairs(report: Report) -> str:
    examples = {pair.phenomenon: pair for pair in reversed(report.measured.pairs)}
    rows = [
        (
            f"<strong>{escape(name.replace('_', ' '))}</strong><br>{escape(report.phenomena[name].about)}",
            f"{_percent(each.value)}<br><small>{_interval(each.low, each.high)}, {each.n} pares</small>",
            _marked(examples[name]),
        )
        for name, each in report.measured.shares.items()
    ]
    table = _table(("Fenómeno", "Acierta", "Un par: bien / mal"), rows, "Pares mínimos por fenómeno")
    intro = (
        "<p>Dos frases que difieren en una palabra; una es correcta y la otra no. Se cuenta acierto cuando el modelo "
        "encuentra más probable la correcta. Cada palabra es tantas veces la buena como la mala: quien solo supiera "
        "qué palabras son frecuentes acertaría la mitad. Azul, mejor que el azar; naranja, peor; gris, no se "
        "distingue.</p>"
    )
    return _section("Gramática: pares mínimos", intro + _figure(report.pairs_picture) + table, "pares")


def _questions(report: Report) -> str:
    figures, refusal = report.metrics["grounded"], report.metrics["refusal"]
    if not figures:
        return _section(
            "Preguntas sobre un texto", "<p>No hay bastantes preguntas reservadas para medir.</p>", "preguntas"
        )
    rows = [
        ("preguntas reservadas", f"{figures['questions']:.0f}"),
        ("elige la buena de 4", f"{_percent(figures['choice_accuracy'])} (azar {_percent(figures['choice_chance'])})"),
        ("pérdida en la respuesta", f"{_number(figures['answer_loss'], 3)} nats por token"),
        ("bits por byte de la respuesta", _number(figures["answer_bits_per_byte"], 3)),
    ]
    if "f1" in figures:
        rows += [
            ("respuesta exacta", f"{_percent(figures['exact'])} de {figures['written']:.0f}"),
            ("F1 de palabras", f"{_number(figures['f1'])} (azar {_number(figures['f1_chance'])})"),
        ]
    body = _table(
        ("Medida", "Valor"),
        [(escape(name), value) for name, value in rows],
        "Preguntas cuya respuesta está en el texto",
    )
    if refusal:
        taught = (
            "En sus conversaciones de entrenamiento no hay ninguna que lo enseñe, así que no cabe esperar que lo haga."
            if refusal["taught"] == 0
            else f"Lo enseñan {refusal['taught']:.0f} de sus conversaciones de entrenamiento."
        )
        body += (
            f"<p>Ante la misma pregunta con un texto de otra cosa, reconoce que el texto no lo dice el "
            f"{_percent(refusal['refused'])} de las veces "
            f"({_interval(refusal['refused_low'], refusal['refused_high'])}, {refusal['questions']:.0f} preguntas), "
            f"y lo dice sin motivo el {_percent(refusal['wrongly_refused'])}. {taught}</p>"
        )
    shown = [*report.measured.samples["answers"], *report.measured.samples["unanswerable"]]
    return _section("Preguntas sobre un texto", body + "".join(map(_asked, shown)), "preguntas")


def _asked(sample: Mapping[str, str]) -> str:
    right = escape(sample["right"]) or "<em>el texto no lo dice</em>"
    return (
        f'<article class="sample"><p>{_lines(sample["question"])}</p>'
        f"<p><b>Responde:</b> {_lines(sample['answer']) or '<em>(nada)</em>'}</p><p><b>Buena:</b> {right}</p></article>"
    )


def _tools(figures: Mapping[str, float]) -> str:
    if not figures:
        return _section("Búsquedas", "<p>No hay preguntas reservadas que buscar.</p>", "busquedas")
    rows = [
        ("preguntas, cada una sin su texto y con él", f"{figures['questions']:.0f}"),
        ("sin el texto, busca", _percent(figures["called_when_needed"])),
        ("y lo que busca va de la pregunta", _percent(figures["usable_query"])),
        ("con el texto delante, busca de todas formas", _percent(figures["called_needlessly"])),
        ("F1 de lo que responde con lo encontrado", _number(figures["answer_from_result_f1"])),
    ]
    return _section("Búsquedas", _table(("Medida", "Valor"), rows, "Cuándo busca, y qué"), "busquedas")


def _texts(report: Report) -> str:
    figures = report.metrics["written"]
    names = {
        "distinct_1": "palabras distintas, de todas",
        "distinct_2": "parejas de palabras distintas",
        "distinct_3": "tríos de palabras distintos",
        "repetition": "grupos de 4 palabras que se repiten en el mismo texto",
    }
    rows = [(escape(text), _percent(figures[key]), _percent(figures[f"{key}_human"])) for key, text in names.items()]
    for key, text in (
        ("longest_copy_tokens", "copia literal más larga, en tokens"),
        ("mean_copy_tokens", "copia más larga de cada texto, de media"),
    ):
        rows.append((text, _number(figures[key], 1), _number(figures[f"{key}_human"], 1)))
    table = _table(("Medida", "El modelo", "Personas"), rows, "Lo que escribe desde cero")
    copied = escape(report.measured.samples["copied"][0]["text"].strip())
    note = (
        f"<p>{figures['samples']:.0f} textos escritos sin pie, al lado de otros tantos reservados, obra de personas "
        f"y cortados a la misma longitud. Lo más largo que repite letra por letra de su entrenamiento: «{copied}».</p>"
        if copied
        else f"<p>{figures['samples']:.0f} textos escritos sin pie. No copia nada de su entrenamiento.</p>"
    )
    continued = "".join(
        f'<article class="sample"><p><b>{escape(sample["prompt"])}</b>{_lines(sample["text"])}</p></article>'
        for sample in report.measured.samples["continuations"]
    )
    free = "".join(
        f'<article class="sample"><p>{_lines(sample["text"])}</p></article>'
        for sample in report.measured.samples["written"]
    )
    more = f"<details><summary>Los {len(report.measured.samples['written'])} textos sin pie</summary>{free}</details>"
    return _section("Lo que escribe", note + table + "<h3>Continuaciones</h3>" + continued + more, "textos")


def _data(report: Report) -> str:
    rows = [
        (
            escape(source["name"]),
            f"{source['documents']}",
            f"{escape(source['license'])}<br>{escape(source['attribution'])}",
        )
        for source in report.sources
    ]
    return _section(
        "Datos y licencias", _table(("Fuente", "Documentos", "Licencia"), rows, "Fuentes del corpus"), "datos"
    )


def _how(report: Report) -> str:
    train = {"model": report.run["model"], "hardware": report.run["hardware"], "precision": report.run["precision"]}
    parts = (
        ("Entrenamiento", {**train, **_flat(report.run["train"]), **_flat(report.run.get("mixture", {}), "mixture.")}),
        ("Evaluación", _flat(report.settings)),
        ("Máquina que evaluó", report.machine),
        (
            "Todas las medidas",
            {f"{group}.{key}": value for group, of in report.metrics.items() for key, value in of.items()},
        ),
    )
    body = "".join(
        f"<details><summary>{name}</summary>"
        + _table(
            ("Clave", "Valor"),
            [(f"<code>{escape(key)}</code>", escape(str(value))) for key, value in values.items()],
            name,
        )
        + "</details>"
        for name, values in parts
    )
    return _section("Cómo se hizo", body, "como")


def _flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in values.items():
        found |= _flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {prefix + key: value}
    return found


def _section(title: str, body: str, name: str) -> str:
    return f'<section aria-labelledby="{name}"><h2 id="{name}">{title}</h2>\n{body}</section>\n'


def _figure(picture: Picture) -> str:
    data = base64.b64encode(picture.svg).decode("ascii")
    return (
        f'<figure><img alt="{escape(picture.text)}" src="data:image/svg+xml;base64,{data}">'
        f"<figcaption>{escape(picture.title)}</figcaption></figure>\n"
    )


def _table(head: Sequence[str], rows: Iterable[Sequence[str]], caption: str) -> str:
    """A table of cells that are HTML already."""
    columns = "".join(f'<th scope="col">{name}</th>' for name in head)
    body = "".join(
        f'<tr><th scope="row">{first}</th>{"".join(f"<td>{cell}</td>" for cell in others)}</tr>\n'
        for first, *others in rows
    )
    # Focusable, so that it scrolls by keyboard where it is wider than the screen.
    return (
        f'<div class="table" tabindex="0" role="region" aria-label="{escape(caption)}">'
        f"<table><caption>{escape(caption)}</caption><thead><tr>{columns}</tr></thead>\n<tbody>{body}</tbody></table></div>\n"
    )


def _marked(pair: Pair) -> str:
    """The pair as one sentence, with the right and the wrong word where they differ."""
    words = [
        escape(good) if good == bad else f"<ins>{escape(good)}</ins> / <del>{escape(bad)}</del>"
        for good, bad in zip(pair.good.split(" "), pair.bad.split(" "), strict=True)
    ]
    return " ".join(words)


def _lines(text: str) -> str:
    return escape(text).replace("\n", "<br>")


def _number(value: float, decimals: int = 2) -> str:
    return f"{value:.{decimals}f}".replace(".", ",")


def _percent(value: float) -> str:
    return f"{_number(100 * value, 1)} %"


def _interval(low: float, high: float) -> str:
    return f"{100 * low:.0f} a {100 * high:.0f} %"


_STYLE = """
:root { color-scheme: light dark; --ink: #1f2933; --quiet: #52606d; --paper: #fff; --line: #d5dbe1; --card: #f4f6f8;
  --good: #0b6e4f; --bad: #b42318; }
@media (prefers-color-scheme: dark) { :root { --ink: #e4e7eb; --quiet: #a9b4bf; --paper: #16191d; --line: #3a424b;
  --card: #20252b; --good: #5fd3a8; --bad: #ff9c8f; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1rem; max-width: 62rem; font: 1rem/1.5 system-ui, sans-serif; color: var(--ink);
  background: var(--paper); overflow-wrap: break-word; }
h1 { font-size: 1.6rem; line-height: 1.2; } h2 { margin-top: 2.5rem; font-size: 1.3rem; } h3 { font-size: 1.05rem; }
header p, figcaption, small, caption { color: var(--quiet); }
.cards { display: grid; grid-template-columns: repeat(auto-fill, minmax(9.5rem, 1fr)); gap: .6rem; padding: 0;
  list-style: none; }
.cards li { display: flex; flex-direction: column; justify-content: space-between; padding: .7rem; border-radius: .4rem;
  background: var(--card); }
.cards strong { font-size: 1.5rem; } .cards span { font-size: .9rem; }
figure { display: inline-block; margin: 0 .5rem 1rem 0; width: 100%; max-width: 29rem; vertical-align: top; }
figure img { display: block; width: 100%; height: auto; background: #fff; border-radius: .3rem; }
figcaption { font-size: .85rem; padding-top: .2rem; }
.table { overflow-x: auto; margin: 1rem 0; } table { border-collapse: collapse; width: 100%; font-size: .92rem; }
caption { text-align: left; padding-bottom: .3rem; font-size: .85rem; }
th, td { padding: .4rem .6rem .4rem 0; border-bottom: 1px solid var(--line); text-align: left; vertical-align: top; }
tbody th { font-weight: normal; } ins { color: var(--good); text-decoration: none; font-weight: bold; }
del { color: var(--bad); }
.sample { margin: .6rem 0; padding: .2rem .8rem; border-left: .25rem solid var(--line); background: var(--card); }
summary { cursor: pointer; padding: .5rem 0; font-weight: bold; }
"""
