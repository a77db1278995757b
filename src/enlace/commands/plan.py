"""`enlace plan`: what to train on a machine in so many hours."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from enlace import EnlaceError, console
from enlace.config.load import hardware_profiles, load_config
from enlace.config.paths import project_root

if TYPE_CHECKING:
    from enlace.config.budget import Plan

TABLE_HOURS = (8, 24, 72, 168)


def plan(
    hardware: Annotated[
        str, typer.Option(metavar="PERFIL", help="Perfil de configs/hardware; sin él, una tabla con todos.")
    ] = "",
    hours: Annotated[
        float, typer.Option(min=0.1, max=24 * 365, metavar="HORAS", help="Horas de entrenamiento.")
    ] = 72.0,
) -> None:
    """Dice qué modelo y cuántos tokens aprovechan mejor una máquina en unas horas, y cuánta luz gasta."""
    root = project_root()
    console.say(_told(root, hardware, hours) if hardware else table(root))


def table(root: Path) -> str:
    """Every profile of the project, for a night, a day, three days and a week, as a Markdown table."""
    lines = ["| perfil | horas | parámetros | tokens | GiB | tokens/s | kWh |", "|---|---|---|---|---|---|---|"]
    for name in hardware_profiles(root):
        for hours in TABLE_HOURS:
            try:
                made = _plan(root, name, hours)
            except EnlaceError:
                continue  # said when somebody asks for that profile
            cells = [
                name,
                str(hours),
                _millions(made.parameters),
                _millions(made.tokens),
                f"{made.memory_gib:.1f}" + (" (límite)" if made.memory_bound else ""),
                _rounded(made.tokens_per_second),
                "?" if made.kwh is None else f"{made.kwh:.1f}",
            ]
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _plan(root: Path, name: str, hours: float) -> Plan:
    from enlace.config.budget import make_plan

    made = make_plan(load_config(root, hardware=name, consistent=False), hours)
    if made is None:
        raise EnlaceError(
            f"configs/hardware/{name}.yaml: faltan train_tflops (medido entrenando) o peak_tflops (de la ficha de la "
            f"tarjeta), o no cabe ningún modelo en memory_gib. Pon uno de los dos y repite."
        )
    return made


def _told(root: Path, name: str, hours: float) -> str:
    from enlace.config.budget import ASSUMED_UTILISATION, TOKENS_PER_PARAMETER

    made = _plan(root, name, hours)
    model = made.model
    peak = load_config(root, hardware=name, consistent=False).hardware.peak_tflops
    speed = (
        f"medida: {made.speed.flops / 1e12:.2f} TFLOP/s entrenando"
        if made.speed.measured
        else f"supuesta, sin medir en la tarjeta: el {100 * ASSUMED_UTILISATION:.0f} % de sus {peak:g} TFLOP/s de pico"
    )
    lines = [
        f"{name}, {hours:g} horas: un modelo de {_millions(made.parameters)} de parámetros con "
        f"{_millions(made.tokens)} de tokens "
        f"({made.tokens / made.parameters:.0f} por parámetro; lo mejor son unos {TOKENS_PER_PARAMETER}).",
        f"Forma: d_model={model.d_model}, n_layers={model.n_layers}, n_heads={model.n_heads}, "
        f"n_kv_heads={model.n_kv_heads}, intermediate_size={model.intermediate_size}, vocab_size={made.vocab_size}.",
        f"Velocidad: {_rounded(made.tokens_per_second)} tokens/s ({speed}).",
        f"Memoria: {made.memory_gib:.1f} GiB de a una secuencia."
        + (
            " Es la memoria la que pone el límite: uno mayor aprovecharía mejor las horas." if made.memory_bound else ""
        ),
        "Luz: no se sabe; pon watts en el perfil." if made.kwh is None else f"Luz: unos {made.kwh:.1f} kWh.",
    ]
    return "\n".join(lines)


def _millions(count: float) -> str:
    return f"{count / 1e6:.0f} M" if count >= 1e7 else f"{count / 1e6:.1f} M"


def _rounded(count: float) -> str:
    return f"{float(f'{count:.2g}'):.0f}"
