"""train: shards in, a trained model out (models/enlace), and the log of its steps (reports/train.csv)."""

from __future__ import annotations

import sys
from contextlib import nullcontext, suppress
from pathlib import Path

from enlace import EnlaceError
from enlace.config.budget import peak_of
from enlace.config.dotenv import load_dotenv
from enlace.config.load import hardware_profiles, load_config
from enlace.config.paths import project_root, runs_dir
from enlace.config.rules import memory_problem, micro_batch_size
from enlace.console import errors, run_main, say
from enlace.data.rows import ChatRows, Rows
from enlace.data.shards import open_shards
from enlace.durable import locked, write_atomic
from enlace.export.weights import save_weights
from enlace.train.backends import memory_errors, prepare, this_machine
from enlace.train.distributed import World, check_world
from enlace.train.family import about, family, fingerprint, join_family
from enlace.train.finished import LOCK, forget_others, mark_exported
from enlace.train.launch import launch
from enlace.train.log import records_csv
from enlace.train.progress import Meter, bytes_per_token, fit_with_progress
from enlace.train.run import make_trainer, validator
from enlace.train.stopping import Interrupted

SHARDS = Path("data/shards")
MODEL = Path("models/enlace")
LOG = Path("reports/train.csv")


def main() -> None:
    """Train, or go on where the run was cut, then export; the run before this one is forgotten."""
    load_dotenv()
    launch(_train, "enlace.stages.train", load_config().hardware.device)


def _train(world: World) -> None:
    config = load_config()
    hardware, name = config.hardware, config.layers.hardware
    profiles = hardware_profiles(project_root())
    runtime = prepare(name, hardware, profiles, this_machine(), config.model.head_dim)
    micro = micro_batch_size(hardware, config.train, world.size)
    check_world(world, config.train.batch_tokens // config.train.seq_len, micro, runtime.parallel, runtime.precision)
    shards = open_shards(SHARDS)
    tokenizer = shards.tokenizer_path.read_bytes()  # days before it is exported: it must be that of these shards
    vocab_size = shards.manifest.vocab_size
    if problem := memory_problem(config.model, vocab_size, config.train, hardware, world.size):
        raise EnlaceError(f"configs/hardware/{name}.yaml: {problem}")
    what = (config.model, config.train, config.data.mixture, shards)
    run_name = fingerprint(*what)
    run = runs_dir() / run_name
    told = about(model=config.model, train=config.train, mixture=config.data.mixture, hardware=hardware)

    def tell(text: str) -> None:
        if world.first:
            say(text)

    def warn(text: str) -> None:
        if world.first:
            errors.print(text, markup=False, style="yellow")

    with locked(run / LOCK, f"Otro proceso ya está entrenando {run}") if world.first else nullcontext():
        if world.first and (joined := join_family(runs_dir(), run, family(*what), config.train, told)):
            say(f"Aprovecho {joined[0]} hasta el paso {joined[1]}: hasta ahí es la misma ejecución.")
        world.wait()
        trainer = make_trainer(*what, runtime, micro, run, world)
        if trainer.resume(warn):
            tell(f"Continúo en el paso {trainer.step} de {trainer.train.steps} ({run}).")
        meter = Meter(
            trainer,
            bytes_per_token(shards),
            hardware.watts,
            peak_of(profiles, runtime.machine_name, runtime.precision),
        )
        validate = validator(shards, config.train, runtime.device, micro)
        million = config.model.n_parameters(vocab_size) / 1e6
        cards = f"{world.size} × " if world.size > 1 else ""
        if any("chat" in rows for rows in trainer.loader.rows.values()) and (
            lost := _without_room(trainer.loader.sources["chat"], config.train.seq_len)
        ):
            tell(lost)
        tell(f"{million:.1f} millones de parámetros, {runtime.precision} en {cards}{runtime.device}, perfil {name}.")
        try:
            with memory_errors(name):
                fit_with_progress(trainer, validate, meter)
        except Interrupted as stop:
            with suppress(OSError, SystemExit):  # the terminal was closed, or nobody reads (`| tee` ended)
                tell(f"Guardado en el paso {trainer.step}. Para continuar, repite el mismo comando.")
            sys.exit(128 + stop.signal_number)
        model = trainer.whole_model()
        if not world.first:
            return
        record = {
            "run": run_name,
            "hardware": name,
            "precision": runtime.precision,
            "environments": trainer.environments,
            "model": config.layers.model,
            "train": config.train.model_dump(),
            "mixture": config.data.mixture.model_dump(),
        }
        save_weights(MODEL, model, tokenizer, config.train.seq_len, record)
        write_atomic(LOG, records_csv(trainer.log.records()))
        mark_exported(run, trainer.keep)
        forget_others(runs_dir(), run)  # only now: a run that fails half way leaves the one before as it was


def _without_room(chat: Rows, seq_len: int) -> str:
    """What was taken out of the conversations for them to fit in rows; empty when nothing was."""
    if not isinstance(chat, ChatRows):
        return ""
    kinds = {"sin sus primeros turnos": chat.shortened, "con la respuesta cortada": chat.cut, "fuera": chat.dropped}
    told = ", ".join(f"{count} {kind}" for kind, count in kinds.items() if count)
    return told and f"Conversaciones que no caben en train.seq_len={seq_len}: {told}."


if __name__ == "__main__":
    run_main(main)
