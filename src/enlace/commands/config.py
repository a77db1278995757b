"""`enlace config …`: look at the configuration, check it, change it."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from enlace import EnlaceError, console
from enlace.config.load import choose_hardware, choose_preset, flatten, hardware_profiles, load_config, preset_path
from enlace.config.paths import project_root
from enlace.usage import App

app = App("La configuración: params.yaml y configs/.")


@app.command("check")
def check(
    changes: Annotated[
        list[str] | None, typer.Argument(metavar="CLAVE=VALOR…", help="Otros valores, por ejemplo train.lr=1e-3.")
    ] = None,
) -> None:
    """Comprueba la configuración y dice qué se entrenaría."""
    from enlace.config.rules import GIB, estimate_memory

    config = load_config(changes=values_of(changes or []))
    vocab_size, train = config.data.shards.vocab_size, config.train
    memory = estimate_memory(config.model, vocab_size, train, config.hardware)
    console.say(
        f"Bien: modelo {config.layers.model} ({config.model.n_parameters(vocab_size) / 1e6:.1f} M de parámetros), "
        f"{train.steps} pasos de {train.batch_tokens} tokens ({train.steps * train.batch_tokens / 1e6:.1f} M), "
        f"perfil {config.layers.hardware}, unos {memory / GIB:.1f} GiB."
    )


@app.command("show")
def show() -> None:
    """Enseña la configuración entera, con todas las capas resueltas."""
    for key, value in flatten(load_config()).items():
        console.say(f"{key} = {_shown(value)}")


@app.command("diff")
def diff(
    preset: Annotated[str, typer.Argument(metavar="PRESET", help="Preset con el que comparar.")] = "demo",
) -> None:
    """Compara la configuración entera con la de un preset, clave por clave."""
    root = project_root()
    theirs = flatten(load_config(root, params=preset_path(root, preset)))
    ours = flatten(load_config(root))
    different = [key for key in {**theirs, **ours} if ours.get(key) != theirs.get(key)]
    for key in different:
        console.say(f"{key}: {_shown(theirs.get(key))} -> {_shown(ours.get(key))}")
    if not different:
        console.say(f"Igual que el preset «{preset}».")


@app.command("preset")
def preset(
    name: Annotated[str, typer.Argument(metavar="PRESET", help="Nombre, por ejemplo hogar-100m.")] = "",
) -> None:
    """Pone un preset en params.yaml; lo que había queda en params.anterior.yaml."""
    root = project_root()
    choose_preset(root, name)
    console.say(f"params.yaml es ahora el preset «{name}»; el anterior está en params.anterior.yaml. Míralo: git diff")


@app.command("hardware")
def hardware(
    name: Annotated[str, typer.Argument(metavar="[PERFIL]", help="Nombre del perfil, por ejemplo rtx2060.")] = "",
) -> None:
    """Comprueba que un perfil existe y sirve en esta máquina, y lo pone en params.yaml; sin nombre, dice cuál le va."""
    from enlace.train.backends import check, suggest, this_machine

    root, machine = project_root(), this_machine()
    if not name:
        fitting = suggest(hardware_profiles(root), machine) or "ninguno; escribe uno en configs/hardware"
        console.say(f"{machine.name}: perfil {fitting}.")
        return
    config = load_config(root, hardware=name)
    check(name, config.hardware, hardware_profiles(root), machine)
    choose_hardware(root, name)
    console.say(f"params.yaml: hardware: {name}")


def values_of(changes: list[str]) -> dict[str, Any]:
    """The values of arguments such as "train.lr=1e-3", by dotted key."""
    from enlace.config import yaml12

    given = [change.partition("=") for change in changes]
    if wrong := [key for key, sign, _ in given if not sign]:
        raise EnlaceError(f"«{wrong[0]}» no es CLAVE=VALOR. Por ejemplo: train.lr=1e-3")
    return {key: yaml12.loads(value, key) for key, _, value in given}


def _shown(value: object) -> str:
    return "(nada)" if value is None else ", ".join(map(str, value)) if isinstance(value, tuple) else str(value)
