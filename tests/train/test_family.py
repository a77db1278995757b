"""A longer run, or another decay, goes on from a relative's stable phase, with the bits of one trained alone."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from enlace.config.schema import Mixture, ModelConfig, PhaseMixture, TrainConfig
from enlace.data.loader import stable_end
from enlace.data.shards import Shards
from enlace.train import checkpoint
from enlace.train.family import SOURCES, about, family, fingerprint, join_family
from enlace.train.finished import forget_others, mark_exported
from enlace.train.run import make_trainer
from enlace.train.trainer import Trainer
from tests.train.test_trainer import cpu_runtime


class House:
    """A folder of runs, and what they have in common."""

    def __init__(self, runs: Path, model: ModelConfig, mixture: PhaseMixture, shards: Shards) -> None:
        self.runs, self.model, self.mixture, self.shards = runs, model, mixture, shards

    def open(self, train: TrainConfig, **changes: Any) -> tuple[Trainer, tuple[Path, int] | None]:
        """The trainer of a run where the stage would put it, resumed as the stage would."""
        what = (changes.get("model", self.model), train, changes.get("mixture", self.mixture), self.shards)
        run = self.runs / fingerprint(*what)
        joined = join_family(self.runs, run, family(*what), train, self.told(*what[:3]))
        trainer = make_trainer(*what, cpu_runtime(), 8, run)
        trainer.resume(pytest.fail)
        return trainer, joined

    @staticmethod
    def told(model: ModelConfig, train: TrainConfig, mixture: PhaseMixture) -> dict[str, object]:
        """Its values, as the stage notes them."""
        return about(model=model, train=train, mixture=mixture)

    def train(self, train: TrainConfig, **changes: Any) -> Trainer:
        """The run, trained to its end."""
        trainer, _ = self.open(train, **changes)
        trainer.fit()
        return trainer


@pytest.fixture
def house(model_config: ModelConfig, mixture: PhaseMixture, small_shards: Shards, tmp_path: Path) -> House:
    return House(tmp_path / "runs", model_config, mixture, small_shards)


@pytest.fixture
def train_config(train_config: TrainConfig) -> TrainConfig:
    return train_config.model_copy(update={"checkpoint_every": 4, "keep_every": 4})


def _weights(trainer: Trainer) -> dict[str, torch.Tensor]:
    return {name: p.detach().clone() for name, p in trainer.model.named_parameters()}


def _same(a: Trainer, b: Trainer) -> bool:
    return all(torch.equal(x, _weights(b)[name]) for name, x in _weights(a).items())


@pytest.mark.parametrize(
    "changes",
    [
        {"steps": 30},  # longer: the stable phase goes on
        {"decay_steps": 6},  # a shorter decay, from the same stable phase
        {"decay_steps": 20},  # an earlier one
        {"steps": 16},  # shorter
        {"min_lr_ratio": 0.1},
    ],
)
def test_another_length_or_decay_goes_on_and_ends_with_the_bits_of_one_trained_alone(
    house: House, train_config: TrainConfig, tmp_path: Path, changes: dict[str, Any]
) -> None:
    other = train_config.model_copy(update=changes)
    house.train(train_config)
    trainer, joined = house.open(other)
    assert joined is not None and 0 < joined[1] == trainer.step <= min(stable_end(train_config), stable_end(other))
    trainer.fit()

    alone = House(tmp_path / "alone", house.model, house.mixture, house.shards).train(other)
    assert _same(trainer, alone)
    assert trainer.log.path.read_bytes() == alone.log.path.read_bytes()


def test_another_mixture_of_the_decay_is_a_branch(house: House, train_config: TrainConfig) -> None:
    house.train(train_config)
    more_talk = PhaseMixture(stable=house.mixture.stable, decay=Mixture(corpus=0.25, chat=0.75))
    trainer, joined = house.open(train_config, mixture=more_talk)
    assert joined is not None and trainer.step == stable_end(train_config)


@pytest.mark.parametrize("changes", [{"lr": 0.02}, {"seed": 4}, {"warmup_steps": 2}, {"weight_decay": 0.0}])
def test_another_recipe_is_another_family(house: House, train_config: TrainConfig, changes: dict[str, Any]) -> None:
    house.train(train_config)
    trainer, joined = house.open(train_config.model_copy(update=changes))
    assert joined is None and trainer.step == 0


def test_another_model_is_another_family(house: House, train_config: TrainConfig, model_config: ModelConfig) -> None:
    house.train(train_config)
    assert house.open(train_config, model=model_config.model_copy(update={"n_layers": 1}))[1] is None


def test_how_often_it_is_saved_does_not_name_another_run(house: House, train_config: TrainConfig) -> None:
    house.train(train_config)
    trainer, joined = house.open(train_config.model_copy(update={"checkpoint_every": 7, "keep_every": None}))
    assert joined is None and trainer.step == train_config.steps


def test_a_checkpoint_of_the_decay_is_never_shared(house: House, train_config: TrainConfig) -> None:
    first = house.train(train_config)
    for step in checkpoint.steps_of(first.run):
        if step <= stable_end(train_config):
            (checkpoint.folder_of(first.run, step) / "manifest.json").unlink()  # damaged: not taken either
    trainer, joined = house.open(train_config.model_copy(update={"steps": 30}))
    assert joined is None and trainer.step == 0


def test_an_exported_run_can_still_be_extended(house: House, train_config: TrainConfig) -> None:
    first = house.train(train_config)
    mark_exported(first.run, first.keep)
    longer = train_config.model_copy(update={"steps": 30})
    trainer, joined = house.open(longer)
    assert joined == (first.run, stable_end(train_config))
    forget_others(house.runs, trainer.run)
    assert not first.run.exists()
    trainer.fit()  # what it took from there is its own


def test_the_loader_refuses_a_state_of_another_decay(house: House, train_config: TrainConfig) -> None:
    trainer, _ = house.open(train_config)
    trainer.loader.next_step = stable_end(train_config) + 1
    state = trainer.loader.state_dict()
    other, _ = house.open(train_config.model_copy(update={"decay_steps": 6}))
    with pytest.raises(Exception, match="otros datos u otra mezcla"):
        other.loader.load_state_dict(state)


def test_a_cut_run_that_other_code_leaves_behind_is_told(
    house: House, train_config: TrainConfig, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Somebody who updates the code in the middle of a long run sees it begin anew."""
    cut, _ = house.open(train_config)
    cut.train = train_config.model_copy(update={"steps": 6})
    cut.fit()
    house.open(train_config)
    house.open(train_config.model_copy(update={"lr": 0.02}))  # another recipe: nobody takes it for the same
    assert capsys.readouterr().err == ""
    monkeypatch.setattr("enlace.train.family.SOURCES", SOURCES[1:])
    again, joined = house.open(train_config.model_copy(update={"checkpoint_every": 7}))
    told = " ".join(capsys.readouterr().err.split())
    assert joined is None and again.step == 0
    assert f"{cut.run.name} iba por el paso 6" in told and "otro código u otros datos" in told

    mark_exported(cut.run, cut.keep)
    shutil.rmtree(again.run)
    house.open(train_config)
    assert capsys.readouterr().err == "", "what was done is not left behind"


def test_a_relative_whose_note_is_damaged_is_passed_over(house: House, train_config: TrainConfig) -> None:
    first = house.train(train_config)
    for name, note in (("cut", b"{"), ("older", b'{"steps": 24}')):
        shutil.copytree(first.run, house.runs / name)
        (house.runs / name / "run.json").write_bytes(note)
    longer, joined = house.open(train_config.model_copy(update={"steps": 30}))
    assert joined == (first.run, longer.step)


def test_a_checkpoint_that_goes_while_it_is_taken_is_passed_over(
    house: House, train_config: TrainConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two runs of a family at once: the relative lets go of its older checkpoints while this one looks at them."""
    first = house.train(train_config)
    shared = [step for step in checkpoint.steps_of(first.run) if step <= stable_end(train_config)]
    real = os.link

    def gone(source: Path, target: Path) -> None:
        if checkpoint.step_of(source.parent) == shared[0]:
            shutil.rmtree(source.parent, ignore_errors=True)
        real(source, target)

    monkeypatch.setattr(os, "link", gone)
    longer, joined = house.open(train_config.model_copy(update={"steps": 30}))
    assert joined == (first.run, shared[1]) and longer.step == shared[1]
    assert [record["step"] for record in longer.log.records()] == list(range(shared[1]))
    assert not list(longer.run.glob("*.tmp"))


def test_where_the_disk_knows_no_links_the_checkpoint_is_copied(
    house: House, train_config: TrainConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = house.train(train_config)

    def refuse(source: Path, target: Path) -> None:
        raise PermissionError(1, "no links here")

    monkeypatch.setattr(os, "link", refuse)
    longer, joined = house.open(train_config.model_copy(update={"steps": 30}))
    assert joined is not None and checkpoint.damage(checkpoint.folder_of(longer.run, joined[1])) is None
    for file in checkpoint.folder_of(longer.run, joined[1]).iterdir():
        file.write_bytes(b"")
    assert checkpoint.damage(checkpoint.folder_of(first.run, joined[1])) is None, "a copy: no damage is shared"
