"""train: shards in, a trained model out (models/enlace), and the log of its steps (reports/train.csv)."""

from __future__ import annotations

import sys
from pathlib import Path

from enlace.config.dotenv import load_dotenv
from enlace.config.load import hardware_profiles, load_config
from enlace.config.paths import project_root, runs_dir
from enlace.config.rules import micro_batch_size
from enlace.console import errors, run_main, say
from enlace.data.shards import open_shards
from enlace.durable import locked, write_atomic
from enlace.export.weights import save_weights
from enlace.train.backends import memory_errors, prepare, this_machine
from enlace.train.finished import forget_others, mark_exported
from enlace.train.run import fingerprint, fit_with_progress, make_trainer, records_csv, validator
from enlace.train.trainer import Interrupted

SHARDS = Path("data/shards")
MODEL = Path("models/enlace")
LOG = Path("reports/train.csv")


def main() -> None:
    """Train, or go on where the run was cut, then export; the run before this one is forgotten."""
    load_dotenv()
    config = load_config()
    hardware, name = config.hardware, config.layers.hardware
    runtime = prepare(name, hardware, hardware_profiles(project_root()), this_machine(), config.model.head_dim)
    shards = open_shards(SHARDS)
    run_name = fingerprint(config.model, config.train, config.data.mixture, shards)
    run = runs_dir() / run_name
    forget_others(runs_dir(), run)
    with locked(run / ".lock", f"Otro proceso ya está entrenando {run}"):
        micro = micro_batch_size(hardware, config.train)
        trainer = make_trainer(config.model, config.train, config.data.mixture, shards, runtime, micro, run)
        if trainer.resume(warn=lambda text: errors.print(text, markup=False, style="yellow")):
            say(f"Continúo en el paso {trainer.step} de {trainer.train.steps} ({run}).")
        million = config.model.n_parameters(shards.manifest.vocab_size) / 1e6
        say(f"{million:.1f} millones de parámetros, {runtime.precision} en {runtime.device}, perfil {name}.")
        try:
            with memory_errors(name):
                fit_with_progress(trainer, validator(shards, config.train, runtime.device, micro))
        except Interrupted as stop:
            say(f"Guardado en el paso {trainer.step}. Para continuar, repite el mismo comando.")
            sys.exit(128 + stop.signal_number)
        record = {
            "run": run_name,
            "hardware": name,
            "precision": runtime.precision,
            "model": config.layers.model,
            "train": config.train.model_dump(),
            "mixture": config.data.mixture.model_dump(),
        }
        tokenizer = shards.tokenizer_path.read_bytes()
        save_weights(MODEL, trainer.model, tokenizer, config.train.seq_len, record)
        write_atomic(LOG, records_csv(trainer.log.records()))
        mark_exported(run)


if __name__ == "__main__":
    run_main(main)
