"""Pictures of a run as SVG, narrow enough to be read on a phone, and the numbers behind them as CSV for `dvc plots`."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from enlace import EnlaceError
from enlace.eval.statistics import Share

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_INK, _QUIET, _ACCENT, _WARM = "#1f2933", "#66717d", "#0b6e99", "#c2410c"
_COLORS = {"texto reservado": _ACCENT, "respuestas reservadas": _WARM}
_WIDTH = 4.6  # inches: 331 px at the natural size, so that letters are not made smaller on a phone


@dataclass(frozen=True)
class Picture:
    """An SVG with what it shows, in words for those who do not see it."""

    svg: bytes
    title: str
    text: str


def read_log(log: Path) -> list[dict[str, str]]:
    """The rows of reports/train.csv."""
    with log.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def column(rows: Iterable[Mapping[str, str]], name: str) -> tuple[list[int], list[float]]:
    """Steps (from 1) and values of a column, where it has any."""
    points = [(int(row["step"]) + 1, float(row[name])) for row in rows if row.get(name)]
    return [step for step, _ in points], [value for _, value in points]


def training_pictures(rows: Sequence[Mapping[str, str]], by_step: Sequence[Mapping[str, float]]) -> list[Picture]:
    """Loss, bits per byte, learning rate and gradient norm by step; `by_step` is of `bits_per_byte_by_step`."""
    decay = next((int(row["step"]) + 1 for row in rows if row["phase"] == "decay"), None)
    shaded = " La zona sombreada es la fase de descenso." if decay is not None else ""
    losses = {
        "entrenamiento": column(rows, "loss"),
        **_named(lambda name: column(rows, name), "val_loss", "val_chat_loss"),
    }
    bytes_ = _named(
        lambda name: (
            [int(row["step"]) for row in by_step if name in row],
            [row[name] for row in by_step if name in row],
        ),
        "val_bits_per_byte",
        "val_chat_bits_per_byte",
    )
    charts = (
        ("Pérdida", "nats por token", losses, False),
        ("Bits por byte", "bits por byte, texto reservado", bytes_, False),
        ("Tasa de aprendizaje", "tasa de aprendizaje (AdamW)", {"tasa": column(rows, "lr")}, False),
        ("Norma del gradiente", "norma del gradiente", {"norma": column(rows, "grad_norm")}, True),
    )
    return [
        Picture(
            line_chart(series, label, decay=decay, log=log),
            f"{title} por paso.{shaded}",
            f"{title} por paso: " + "; ".join(f"{name}, {_in_words(values)}" for name, (_, values) in series.items()),
        )
        for title, label, series, log in charts
        if any(values for _, values in series.values())
    ]


def pairs_picture(shares: Mapping[str, Share]) -> Picture:
    """Minimal pairs by phenomenon."""
    text = "; ".join(f"{name.replace('_', ' ')}, {100 * each.value:.0f} %" for name, each in shares.items())
    return Picture(
        interval_chart(shares, 0.5),
        "Pares acertados por fenómeno, con su intervalo del 95 %.",
        f"Pares acertados por fenómeno, azar 50 %: {text}",
    )


_Series = tuple[list[int], list[float]]


def _named(read: Callable[[str], _Series], text: str, answers: str) -> dict[str, _Series]:
    """The series of held-out text and answers that have any figure."""
    found = {"texto reservado": read(text), "respuestas reservadas": read(answers)}
    return {name: series for name, series in found.items() if series[0]}


def _in_words(values: Sequence[float]) -> str:
    if not values:
        return "sin datos"
    return (
        f"empieza en {values[0]:.3g} y acaba en {values[-1]:.3g} (mínimo {min(values):.3g}, máximo {max(values):.3g})"
    )


def bits_per_byte_by_step(
    rows: Iterable[Mapping[str, str]], tokens_per_byte: Mapping[str, float]
) -> list[dict[str, float]]:
    """The held-out losses of the training log in bits per byte: rows of `step` and a figure for each kind of text.

    Args:
        tokens_per_byte: of each loss column. The training measures evenly spread rows of the held-out text, end-of-text
            tokens included, so that the last figure is near that of `eval`, not equal.
    """
    return [
        {"step": int(row["step"]) + 1}
        | {
            name.replace("loss", "bits_per_byte"): round(float(row[name]) * ratio / math.log(2), 5)
            for name, ratio in tokens_per_byte.items()
            if row.get(name)
        }
        for row in rows
        if any(row.get(name) for name in tokens_per_byte)
    ]


def csv_bytes(rows: Sequence[Mapping[str, object]]) -> bytes:
    """Rows as CSV; the first one names the columns."""
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, list(rows[0]) if rows else [], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue().encode()


def line_chart(
    series: Mapping[str, tuple[Sequence[int], Sequence[float]]], label: str, *, decay: int | None, log: bool = False
) -> bytes:
    """SVG of one or more series by step.

    Args:
        label: of the vertical axis.
        decay: step at which the decay phase begins, shaded.
        log: logarithmic vertical axis.
    """
    figure = _figure(2.9)
    axes = figure.subplots()
    last = max((steps[-1] for steps, _ in series.values() if steps), default=1)
    for name, (steps, values) in series.items():
        dense = len(steps) > 100
        axes.plot(
            steps,
            values,
            color=_COLORS.get(name, _QUIET),
            linewidth=0.8 if dense else 1.6,
            marker="" if dense else "o",
            markersize=3,
            label=name,
        )
    if decay is not None:
        axes.axvspan(decay, last, color=_ACCENT, alpha=0.07, linewidth=0)
    if log:
        axes.set_yscale("log")
    axes.set_xlabel("paso")
    axes.set_title(label, loc="left", fontsize=9, color=_INK)
    if len(series) > 1:
        axes.legend(frameon=False, fontsize=8)
    return _svg(figure)


def interval_chart(shares: Mapping[str, Share], chance: float) -> bytes:
    """SVG of shares with their 95 % intervals, one a line, and the level of chance."""
    figure = _figure(0.8 + 0.21 * len(shares))
    axes = figure.subplots()
    names = list(shares)[::-1]
    for y, name in enumerate(names):
        each = shares[name]
        color = _ACCENT if each.low > chance else _WARM if each.high < chance else _QUIET
        axes.plot([100 * each.low, 100 * each.high], [y, y], color=color, linewidth=2, solid_capstyle="butt")
        axes.plot([100 * each.value], [y], color=color, marker="o", markersize=4.5)
    axes.axvline(100 * chance, color=_INK, linewidth=0.8, linestyle=(0, (3, 3)))
    axes.set_yticks(range(len(names)), [name.replace("_", " ") for name in names], fontsize=8)
    axes.set_ylim(-0.7, len(names) - 0.3)
    axes.set_xlim(0, 100)
    axes.set_title("% de pares acertados (línea: azar)", loc="left", fontsize=9, color=_INK)
    return _svg(figure)


def _figure(height: float) -> Figure:
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise EnlaceError("Para las gráficas hace falta matplotlib: pip install -e '.[pipeline]'") from None
    return Figure(figsize=(_WIDTH, height), layout="constrained")


def _svg(figure: Figure) -> bytes:
    from matplotlib import rc_context

    for axes in figure.axes:
        axes.spines[["top", "right"]].set_visible(False)
        axes.tick_params(colors=_INK, labelsize=8)
        axes.xaxis.label.set(color=_INK, fontsize=9)
    buffer = io.BytesIO()
    # Letters as letters, in whatever font the reader has; no date, no version, no random names: same run, same bytes.
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "enlace", "font.family": "sans-serif"}):
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    return buffer.getvalue()
