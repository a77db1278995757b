"""Pictures of a run, as PNG, so that they can be looked at without a network."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from enlace import EnlaceError
from enlace.durable import write_atomic

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_INK, _QUIET, _ACCENT, _WARM = "#1f2933", "#9aa5b1", "#0b6e99", "#d9480f"


def training_curves(log: Path) -> bytes:
    """PNG of loss, held-out losses, learning rate and gradient norm by step, from the CSV of `train`."""
    rows = _read(log)
    figure = _figure(9, 6.4)
    top, bottom = figure.subplots(2, 1, sharex=True, gridspec_kw={"height_ratios": [2, 1]})
    steps, losses = _column(rows, "loss")
    top.plot(steps, losses, color=_QUIET, linewidth=0.8, label="entrenamiento")
    for name, label, color in (
        ("val_loss", "texto reservado", _ACCENT),
        ("val_chat_loss", "respuestas reservadas", _WARM),
    ):
        if (points := _column(rows, name))[0]:
            top.plot(*points, color=color, marker="o", markersize=3, label=label)
    if decay := [int(row["step"]) for row in rows if row["phase"] == "decay"]:
        for axes in (top, bottom):
            axes.axvspan(decay[0], decay[-1], color=_ACCENT, alpha=0.06, linewidth=0)
        top.annotate(
            "fase de descenso",
            (decay[0], 1),
            xytext=(4, -12),
            xycoords=("data", "axes fraction"),
            textcoords="offset points",
            fontsize=8,
            color=_ACCENT,
        )
    top.set_ylabel("pérdida (nats por token)")
    top.legend(frameon=False)
    bottom.plot(*_column(rows, "lr"), color=_INK, label="tasa de aprendizaje (AdamW)")
    bottom.set_ylabel("tasa de aprendizaje")
    bottom.set_xlabel("paso")
    norm = bottom.twinx()
    norm.plot(*_column(rows, "grad_norm"), color=_WARM, linewidth=0.6, alpha=0.6)
    norm.set_ylabel("norma del gradiente", color=_WARM)
    norm.set_yscale("log")
    return _png(figure)


def bars(title: str, values: Mapping[str, float], chance: Mapping[str, float] | None = None, unit: str = "") -> bytes:
    """PNG of horizontal bars, the level of chance marked on those that have one."""
    figure = _figure(9, 0.9 + 0.55 * len(values))
    axes = figure.subplots()
    names = list(values)[::-1]
    axes.barh(names, [values[name] for name in names], color=_ACCENT, height=0.6)
    for y, name in enumerate(names):
        axes.annotate(f" {values[name]:.3f}{unit}", (values[name], y), va="center")
        if chance and name in chance:
            axes.plot([chance[name]] * 2, [y - 0.42, y + 0.42], color=_WARM, linewidth=2)
            axes.annotate("azar", (chance[name], y + 0.42), color=_WARM, ha="center", va="bottom", fontsize=8)
    axes.set_title(title if values else f"{title}: sin medidas", loc="left")
    axes.margins(x=0.15)
    return _png(figure)


def _figure(width: float, height: float) -> Figure:
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise EnlaceError("Para las gráficas hace falta matplotlib: pip install -e '.[pipeline]'") from None
    return Figure(figsize=(width, height), layout="constrained")


def _png(figure: Figure) -> bytes:
    for axes in figure.axes:
        axes.spines[["top", "right"]].set_visible(False)
        axes.tick_params(colors=_INK)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=110, metadata={"Software": None})  # no version: same run, same bytes
    return buffer.getvalue()


def _read(log: Path) -> list[dict[str, str]]:
    with log.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def _column(rows: Sequence[Mapping[str, str]], name: str) -> tuple[list[int], list[float]]:
    points = [(int(row["step"]) + 1, float(row[name])) for row in rows if row.get(name)]
    return [step for step, _ in points], [value for _, value in points]


def write_pictures(folder: Path, pictures: Mapping[str, bytes]) -> None:
    """Write each picture as `folder`/<name>.png."""
    for name, data in pictures.items():
        write_atomic(folder / f"{name}.png", data)
