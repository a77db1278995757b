"""The curves of a run drawn with characters."""

from __future__ import annotations

from collections.abc import Sequence

import plotext

from enlace.train.log import Record

CURVES = {
    "loss": ("pérdida", "blue+"),
    "val_loss": ("en texto reservado", "green+"),
    "val_chat_loss": ("en respuestas reservadas", "red+"),
}
_TICKS = 5


def curves(records: Sequence[Record], width: int, height: int) -> str:
    """The losses by step in `height` lines of `width` columns, with the marks that colour a terminal.

    Of the training loss, as many points as there are columns, each the mean of its steps: single steps are noise.
    """
    plotext.clear_figure()
    plotext.theme("clear")
    plotext.plotsize(width, height - 1)
    legend = []
    for key, (label, color) in CURVES.items():
        points = [(record["step"], record[key]) for record in records if record.get(key) is not None]
        if points:
            plotext.plot(*zip(*_thinned(points, width), strict=True), color=color)
            legend.append(plotext.colorize(f"▞▞ {label}", color))
    last = records[-1]["step"] if records else 0
    plotext.xticks(sorted({round(last * i / (_TICKS - 1)) for i in range(_TICKS)}))
    plot = str(plotext.build()).rstrip("\n")
    return f"{plot}\npaso   {'  '.join(legend)}"  # below: plotext's own legend hides the first steps


def _thinned(points: list[tuple[int, float]], count: int) -> list[tuple[float, float]]:
    size = max(1, len(points) // count)
    groups = [points[start : start + size] for start in range(0, len(points), size)]
    return [(sum(x for x, _ in group) / len(group), sum(y for _, y in group) / len(group)) for group in groups]
