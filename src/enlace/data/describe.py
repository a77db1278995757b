"""The corpus described for people: the page of its sources, its picture, and the names of what the rules drop."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import Any

from enlace import EnlaceError
from enlace.data.shards import Manifest

# One, and many, of each thing that the rules drop or take out.
REASONS = {
    "short": ("corto", "cortos"),
    "symbols": ("con demasiados signos", "con demasiados signos"),
    "language": ("que no está en español", "que no están en español"),
    "repetition": ("que se repite", "que se repiten"),
    "contaminated": ("con textos de evaluación", "con textos de evaluación"),
    "duplicate": ("repetido", "repetidos"),
    "near_duplicate": ("casi igual a otro", "casi iguales a otro"),
    "empty_conversation": ("conversación vacía", "conversaciones vacías"),
    "duplicate_conversation": ("conversación repetida", "conversaciones repetidas"),
    "contaminated_conversation": ("conversación con textos de evaluación", "conversaciones con textos de evaluación"),
    "held_out_conversation": ("conversación sobre un texto reservado", "conversaciones sobre textos reservados"),
    "boilerplate": ("línea de relleno", "líneas de relleno"),
    "mail": ("correo", "correos"),
    "phone": ("teléfono", "teléfonos"),
    "identity": ("número de identificación", "números de identificación"),
    "iban": ("cuenta bancaria", "cuentas bancarias"),
    "card": ("tarjeta", "tarjetas"),
    "ip": ("dirección IP", "direcciones IP"),
}
_INK, _ACCENT, _WARM = "#1f2933", "#0b6e99", "#d9480f"


def spanish_count(names: Mapping[str, tuple[str, str]], reason: str, count: int) -> str:
    """Such as "3 cortos"."""
    return f"{count} {names.get(reason, (reason, reason))[count != 1]}"


def sources_page(sources: Sequence[Mapping[str, Any]], manifest: Manifest) -> str:
    """data/SOURCES.md: of each source its origin, licence, digest, documents and tokens."""
    lines = [
        "# Fuentes del corpus",
        "",
        "Lo escribe `dvc repro build-shards`. Los shards y el modelo que se entrena con ellos derivan de estos textos.",
        "",
        "| fuente | clase | licencia | peso | documentos leídos | para entrenar | reservados | tokens | sha256 |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for source in sources:
        streams = {s.split: s for s in manifest.streams if s.name == source["name"]}
        train, val = (sum(s.documents for s in streams[x].shards) if x in streams else 0 for x in ("train", "val"))
        tokens = sum(shard.tokens for stream in streams.values() for shard in stream.shards)
        cells = (
            *(source[key] for key in ("name", "kind", "license")),
            f"{source.get('weight', 1.0):g}",
            *(source["documents"], train, val, tokens),
            f"`{source['sha256'][:16]}…`",
        )
        lines.append("| " + " | ".join(str(cell).replace("|", "\\|") for cell in cells) + " |")
    lines += ["", *(f"- **{source['name']}**: {source['attribution']}" for source in sources)]
    for stream in manifest.streams:
        if stream.kind == "chat":
            documents, tokens = (sum(getattr(s, what) for s in stream.shards) for what in ("documents", "tokens"))
            lines.append(f"- Conversaciones ({stream.split}): {documents}, {tokens} tokens.")
    return "\n".join(lines) + "\n"


def corpus_picture(manifest: Manifest, report: Mapping[str, Any]) -> bytes:
    """PNG: tokens by source, length of the documents, and what was dropped."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise EnlaceError("Para las gráficas hace falta matplotlib: pip install -e '.[pipeline]'") from None
    figure = Figure(figsize=(9, 6.4), layout="constrained")
    top, middle, bottom = figure.subplots(3, 1)
    tokens = {f"{s.name} ({s.split})": sum(shard.tokens for shard in s.shards) for s in manifest.streams}
    _bars(top, tokens, "Tokens por fuente (train: para entrenar, val: reservado)", _ACCENT)
    for name, histogram in report["bytes_histogram"].items():
        counts = sorted((int(size), count) for size, count in histogram.items())
        total = sum(histogram.values())
        middle.plot(*zip(*((s, 100 * n / total) for s, n in counts), strict=True), marker="o", markersize=3, label=name)
    middle.set_xscale("log", base=2)
    middle.set_title(
        "% de documentos por longitud (bytes, de cada potencia de 2 a la siguiente)", loc="left", fontsize=10
    )
    middle.legend(frameon=False, fontsize=8)
    gone = {REASONS[reason][1]: count for reason, count in report["dropped"].items() if count}
    gone |= {f"{REASONS[what][1]} (quitado)": count for what, count in report["removed"].items() if count}
    bottom.set_xscale("symlog")
    _bars(bottom, gone, "Descartado por las reglas de limpieza" + ("" if gone else ": nada"), _WARM)
    for axes in (top, middle, bottom):
        axes.spines[["top", "right"]].set_visible(False)
        axes.tick_params(colors=_INK, labelsize=8)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=110, metadata={"Software": None})  # no version: same corpus, same bytes
    return buffer.getvalue()


def _bars(axes: Any, values: Mapping[str, int], title: str, color: str) -> None:
    names = list(values)[::-1]
    axes.barh(names, [values[name] for name in names], color=color, height=0.6)
    for y, name in enumerate(names):
        axes.annotate(f" {values[name]:,}".replace(",", " "), (values[name], y), va="center", fontsize=8)
    axes.set_title(title, loc="left", fontsize=10)
    axes.margins(x=0.15)
