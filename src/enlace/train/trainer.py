"""The trainer: one loop, whose every step is decided by what a checkpoint holds.

A step is: batch of that step, forward and backward over its micro-batches, one division by the tokens trained in the
whole step, clip, update. Killed at any instant and resumed, a run ends with the same bits as one never interrupted.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from enlace import EnlaceError
from enlace.config.schema import TrainConfig
from enlace.data.loader import Batch, Loader, phase, stable_end
from enlace.data.special_tokens import IM_START_ID
from enlace.model.transformer import Transformer
from enlace.train import checkpoint
from enlace.train.backends import Runtime
from enlace.train.checkpoint import Retention
from enlace.train.distributed import World, gradients_of, like, on_first, spread, whole
from enlace.train.generators import generator_states, restore_generators
from enlace.train.log import Record, RunLog
from enlace.train.loss import LossSums, loss_sums, loss_sums_in_chunks
from enlace.train.optim import build_optimizers
from enlace.train.schedule import lr_scale
from enlace.train.stopping import Interrupted, stop_requests

MAX_SKIPPED_IN_A_ROW = 20
Validate = Callable[["StepLoss"], Mapping[str, float]]


class StepLoss(nn.Module):
    """Token ids in, sums of the loss out: all that happens under the profile's types, and what ranks share."""

    def __init__(self, model: Transformer, separator: int | None, chunk: int | None) -> None:
        """`separator` parts documents, where those of a row may not see each other; `chunk`: see `HardwareConfig`."""
        super().__init__()
        self.model, self.separator, self.chunk = model, separator, chunk

    def forward(self, inputs: Tensor, targets: Tensor, mask: Tensor) -> LossSums:
        """Sums over the trained tokens of inputs, targets and mask [B, T]."""
        hidden = self.model(inputs, documents=self._documents(inputs))
        if self.chunk is None:
            return loss_sums(self.model.logits(hidden), targets, mask)
        return loss_sums_in_chunks(self.model.logits, hidden, targets, mask, self.chunk)

    def _documents(self, inputs: Tensor) -> Tensor | None:
        """Number of the document of each token, as it will be read: a text after the separator, a conversation not."""
        if self.separator is None:
            return None
        separates = inputs == self.separator
        opens = separates[:, :-1] & (inputs[:, 1:] == IM_START_ID)
        return (separates | F.pad(opens, (1, 0))).cumsum(dim=1)


class Trainer:
    """A model being trained: everything that a checkpoint holds, and the step that changes it."""

    def __init__(
        self,
        model: Transformer,
        train: TrainConfig,
        loader: Loader,
        runtime: Runtime,
        micro_batch_size: int,
        run: Path,
        separator: int | None,
        world: World = World(),  # noqa: B008  frozen
    ) -> None:
        self.model = model.to(runtime.device).train()
        self.train, self.loader, self.runtime, self.run, self.world = train, loader, runtime, run, world
        self.micro_batch_size = micro_batch_size
        if runtime.compile:
            for layer in self.model.layers:
                layer.compile(dynamic=False)  # layer by layer: the whole model compiled does not repeat itself
        self.step_loss = StepLoss(self.model, separator if train.document_mask else None, runtime.loss_chunk_tokens)
        self.spread_loss = spread(self.step_loss, self.model.layers, world, runtime.parallel, runtime.device)
        self.optimizers = build_optimizers(self.model, train, runtime.dtype)
        self.scaler = torch.amp.GradScaler(runtime.device.type, enabled=runtime.precision == "float16")
        self.skipped_in_a_row = 0
        self.environments = [environment(self)]  # where the run has been trained, this one last
        self.log = RunLog(run / "log.jsonl")
        self.keep = Retention(train.keep_checkpoints, train.keep_every, stable_end(train))

    @property
    def step(self) -> int:
        """Steps done."""
        return self.loader.next_step

    def fit(
        self,
        validate: Validate | None = None,
        on_step: Callable[[Record], None] = lambda record: None,
    ) -> None:
        """Train from where the state is to `train.steps`, saving every `checkpoint_every` and at the end of each phase.

        Args:
            validate: measured every `val_every` steps and at the end; its figures join the step's record.
            on_step: told each record as it is logged.

        Raises:
            Interrupted: SIGTERM, Ctrl-C or a closed terminal, on any rank; the state was saved.
            EnlaceError: too many steps in a row were not finite, or a checkpoint could not be written.
        """
        train = self.train
        with stop_requests() as stop, _Ahead(self.loader.batch, train.steps) as batches:
            if isinstance(self.spread_loss, DistributedDataParallel) and self.step < train.steps:
                self._settle_buckets()
            while self.step < train.steps:
                record = self.train_step(self.step, batches.take(self.step))
                self.loader.next_step += 1
                if validate and (self.step % train.val_every == 0 or self.step == train.steps):
                    record |= self._validated(validate)
                if self.world.first:
                    self.log.append(record)
                on_step(record)
                # Asked once: a signal between save and raise would claim a save that was not made.
                number = self.world.largest(stop(), self.runtime.device)
                if self.step % train.checkpoint_every == 0 or self.step in (stable_end(train), train.steps) or number:
                    self.save()
                if number:
                    raise Interrupted(number)

    def train_step(self, step: int, batch: Batch) -> Record:
        """One optimizer step on the global `batch`; gives its record (plain numbers, the same bits on every run)."""
        n_trained = int(batch.mask.sum())
        scale = float(self.scaler.get_scale())
        lr = lr_scale(step, self.train)
        for optimizer in self.optimizers:
            optimizer.zero_grad(set_to_none=True)
            for group in optimizer.param_groups:
                group["lr"] = group["peak_lr"] * lr
        cross_entropy = self._forward_backward(batch, n_trained)
        for optimizer in self.optimizers:
            self.scaler.unscale_(optimizer)
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), self.train.grad_clip)
        grad_norm = float(norm.full_tensor() if isinstance(norm, DTensor) else norm)
        loss = float(cross_entropy) / n_trained
        skipped = not (math.isfinite(grad_norm) and math.isfinite(loss))
        if not skipped:
            for optimizer in self.optimizers:
                self.scaler.step(optimizer)
        self.scaler.update()
        self._count_skipped(skipped, step, loss, grad_norm)
        return {
            "step": step,
            "phase": phase(step, self.train),
            "loss": loss if math.isfinite(loss) else None,
            "lr": lr * self.train.lr,
            "grad_norm": grad_norm if math.isfinite(grad_norm) else None,
            "scale": scale,
            "trained_tokens": n_trained,
            "skipped": int(skipped),
        }

    def _forward_backward(self, batch: Batch, n_trained: int) -> Tensor:
        """Gradients of the mean loss over `n_trained` tokens, summed over micro-batches and ranks; gives the summed
        loss.
        """
        total = torch.zeros((), device=self.runtime.device)
        micro_batches = list(self.world.share(batch).micro_batches(self.micro_batch_size))
        for i, micro in enumerate(micro_batches):
            with gradients_of(self.spread_loss, last=i == len(micro_batches) - 1):
                with self.runtime.compute():
                    sums = LossSums(*self.spread_loss(*micro.to(self.runtime.device)))
                    # Ranks take the mean of their gradients, and each has divided by the tokens of all.
                    loss = sums.total(self.train.z_loss) / n_trained * self.world.size
                self.scaler.scale(loss).backward()
            total += sums.cross_entropy.detach()
        return self.world.total(total)

    def _settle_buckets(self) -> None:
        """One backward pass for nothing: after its first one, DDP deals the gradients out to other buckets, where more
        than two ranks add them up in another order. A run that goes on would differ from one that was never cut.
        """
        nothing = torch.zeros(self.micro_batch_size, self.train.seq_len, dtype=torch.int64, device=self.runtime.device)
        with self.runtime.compute():
            sums = LossSums(*self.spread_loss(nothing, nothing, nothing.bool()))
        sums.total(self.train.z_loss).backward()
        self.model.zero_grad(set_to_none=True)

    def _count_skipped(self, skipped: bool, step: int, loss: float, grad_norm: float) -> None:
        self.skipped_in_a_row = self.skipped_in_a_row + 1 if skipped else 0
        if self.skipped_in_a_row > MAX_SKIPPED_IN_A_ROW:
            raise EnlaceError(
                f"Paso {step}: {self.skipped_in_a_row} pasos seguidos sin pérdida o gradiente finitos "
                f"(loss={loss}, grad_norm={grad_norm}). Baja train.lr y train.muon_lr en params.yaml y repite: con "
                f"otros valores es otra ejecución y empieza en el paso 0. Los puntos de guardado de esta siguen en "
                f"{self.run}, pero aquella no continúa desde ellos."
            )

    def _validated(self, validate: Validate) -> Record:
        self.step_loss.eval()
        with torch.no_grad(), self.runtime.compute():
            figures = validate(self.step_loss)
        self.step_loss.train()
        return {name: value if math.isfinite(value) else None for name, value in figures.items()}

    def save(self) -> None:
        """Write a checkpoint; the log up to here is durable before it."""
        state = self.state_dict()
        if self.world.first:
            self.log.sync()
            checkpoint.save(self.run, self.step, state, self.keep)
        self.world.wait()

    def resume(self, warn: Callable[[str], None]) -> bool:
        """Continue from the newest whole checkpoint of the run; False when there is none and the run begins."""
        parts = isinstance(self.spread_loss, FSDPModule)  # then no card need have room for the whole state
        state = checkpoint.load_newest(self.run, torch.device("cpu") if parts else self.runtime.device, warn)
        self.world.wait()  # nobody cuts the log or writes a checkpoint while another rank reads
        if state is None:
            if self.world.first:
                self.log.cut(0)
            return False
        self.load_state_dict(state)
        before, now = state["environments"][-1], environment(self)
        both = [key for key in before if key in now]  # an older version knew of fewer things
        differences = [f"{key} era {before[key]} y es {now[key]}" for key in both if before[key] != now[key]]
        if differences:
            warn(f"Continúo, pero no bit a bit: {'; '.join(differences)}.")
            self.environments = [*self.environments, now]
        if self.world.first:
            self.log.cut(self.step)
        return True

    def whole_model(self) -> Transformer:
        """The model with whole weights, on every rank; for FSDP a copy, since there each rank holds a part."""
        if not any(isinstance(p, DTensor) for p in self.model.parameters()):
            return self.model
        model = Transformer(self.model.config, self.model.embed_tokens.num_embeddings)
        model.load_state_dict(whole(dict(self.model.state_dict())))
        return model

    def state_dict(self) -> dict[str, Any]:
        """Everything that decides the next step: tensors and plain values; with FSDP, on the first rank only."""
        return {
            "model": on_first(dict(self.model.state_dict())),
            "optimizers": [on_first(optimizer.state_dict()) for optimizer in self.optimizers],
            "scaler": self.scaler.state_dict(),
            "loader": self.loader.state_dict(),
            "skipped_in_a_row": self.skipped_in_a_row,
            "generators": generator_states(),
            "environments": self.environments,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Put back what `state_dict` gave; anything missing is an error, never a silent default."""
        self.loader.load_state_dict(state["loader"])
        weights = {name: like(state["model"][name], p) for name, p in self.model.named_parameters()}
        self.model.load_state_dict({**state["model"], **weights})
        for optimizer, saved in zip(self.optimizers, state["optimizers"], strict=True):
            parameters = [p for group in optimizer.param_groups for p in group["params"]]
            moments = {
                i: {name: like(value, parameters[i]) for name, value in of_one.items()}
                for i, of_one in saved["state"].items()
            }
            optimizer.load_state_dict({**saved, "state": moments})
        if state["scaler"]:  # empty where the run was saved in a precision that needs no scaler
            self.scaler.load_state_dict(state["scaler"])
        self.skipped_in_a_row = state["skipped_in_a_row"]
        self.environments = state["environments"]
        restore_generators(state["generators"])


def environment(trainer: Trainer) -> dict[str, str]:
    """What exactness depends on beside the state; another value means other last bits."""
    runtime, size = trainer.runtime, trainer.world.size
    what = {
        "torch": str(torch.__version__),
        "equipo": runtime.machine_name,
        "precisión": runtime.precision,
        "hilos": str(torch.get_num_threads()),
        "micro_batch_size": str(trainer.micro_batch_size),
        "loss_chunk_tokens": str(runtime.loss_chunk_tokens),
        "compile": str(runtime.compile),
        "sdpa_backends": ", ".join(sorted(kernel.name for kernel in runtime.kernels)),
        "procesos": str(size),
    }
    if size > 1:
        what["parallel"] = runtime.parallel
    if runtime.device.type == "cpu":
        what["instrucciones"] = torch.backends.cpu.get_cpu_capability()
    return what


class _Ahead:
    """The batch of the next step, made while this one is trained. None of its work is state: it can be thrown away."""

    def __init__(self, batch: Callable[[int], Batch], steps: int) -> None:
        self._batch, self._steps = batch, steps
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="batches")
        self._next: tuple[int, Future[Batch]] | None = None

    def take(self, step: int) -> Batch:
        """The batch of `step`; that of `step` + 1 is begun."""
        ready = self._next[1].result() if self._next and self._next[0] == step else self._batch(step)
        self._next = (step + 1, self._thread.submit(self._batch, step + 1)) if step + 1 < self._steps else None
        return ready

    def __enter__(self) -> _Ahead:
        return self

    def __exit__(self, *error: object) -> None:
        self._thread.shutdown(cancel_futures=True)
