"""Several processes training one model, on torch's own engines: DDP (each card a whole copy) or FSDP2 (each a part).

`torchrun` starts one process per card and tells each its rank. The global batch of a step does not depend on how many
share it: rank r takes the r-th part of its rows. The loss of each rank is divided by the tokens trained in the whole
step, on all ranks, so that gradients are those of one process; both engines average over ranks, hence `World.size` in
the trainer. Checkpoints hold whole tensors whatever the number of ranks, so a run may go on with another number.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.nn.parallel import DistributedDataParallel

from enlace import EnlaceError
from enlace.config.schema import Parallel
from enlace.data.loader import Batch


@dataclass(frozen=True)
class World:
    """The processes that train together, and which of them this one is."""

    rank: int = 0
    size: int = 1

    @property
    def first(self) -> bool:
        """Whether this process writes and speaks for all."""
        return self.rank == 0

    def share(self, batch: Batch) -> Batch:
        """This rank's part of the rows of a global batch."""
        rows = len(batch.inputs) // self.size
        part = slice(self.rank * rows, (self.rank + 1) * rows)
        return Batch(batch.inputs[part], batch.targets[part], batch.mask[part])

    def total(self, value: Tensor) -> Tensor:
        """The sum of `value` over ranks."""
        return self._reduced(value, dist.ReduceOp.SUM)

    def largest(self, value: int, device: torch.device) -> int:
        """The largest of the ranks' values."""
        return int(self._reduced(torch.tensor(value, device=device), dist.ReduceOp.MAX)) if self.size > 1 else value

    def wait(self) -> None:
        """Until every rank is here."""
        if self.size > 1:
            dist.barrier()

    def _reduced(self, value: Tensor, how: Any) -> Tensor:
        if self.size > 1:
            dist.all_reduce(value, how)
        return value


class LostConnection(EnlaceError):
    """Another process has gone: it has said why, or the launcher does."""


@contextmanager
def lost_connections() -> Iterator[None]:
    """No traceback where another process has gone, but `LostConnection`."""
    try:
        yield
    except RuntimeError as error:
        if not isinstance(error, dist.DistError) and "gloo/transport" not in str(error):  # gloo's has no class
            raise
        raise LostConnection(
            f"Se perdió la conexión con otro de los procesos que entrenan ({str(error).splitlines()[0]}). Mira si dijo "
            f"por qué y repite el comando: continúa desde el último punto de guardado."
        ) from error


def check_world(world: World, rows: int, micro_batch_size: int, parallel: Parallel, precision: str) -> None:
    """Raise EnlaceError unless `rows` sequences per step divide among the ranks, and the engine does the precision."""
    if rows % (world.size * micro_batch_size):
        smaller = "" if rows % world.size else "baja micro_batch_size en configs/hardware, o "
        raise EnlaceError(
            f"params.yaml: las {rows} secuencias por paso (train.batch_tokens / train.seq_len) no se reparten entre "
            f"{world.size} procesos de micro_batch_size={micro_batch_size}; {smaller}usa otro número de GPUs."
        )
    if world.size > 1 and parallel == "fsdp" and precision == "float16":
        raise EnlaceError("configs/hardware: parallel=fsdp no sirve con precision=float16; usa parallel: ddp.")


def spread(step_loss: nn.Module, layers: nn.ModuleList, world: World, parallel: Parallel, device: torch.device) -> Any:
    """`step_loss`, called alike, on all ranks; alone it is returned as it is."""
    if world.size == 1:
        return step_loss
    if parallel == "ddp":
        devices = [device.index] if device.type == "cuda" else None
        # Gradients live in the buckets that ranks exchange: else every card holds them twice.
        return DistributedDataParallel(step_loss, device_ids=devices, gradient_as_bucket_view=True)
    for layer in layers:
        fully_shard(layer)
    fully_shard(step_loss)
    return step_loss


@contextmanager
def gradients_of(module: Any, *, last: bool) -> Iterator[None]:
    """Forward and backward of one micro-batch inside; ranks add their gradients up in the last one of a step only."""
    if isinstance(module, FSDPModule):
        module.set_requires_gradient_sync(last)
    quiet = isinstance(module, DistributedDataParallel) and not last
    with module.no_sync() if quiet else nullcontext():
        yield


def whole(value: Any) -> Any:
    """`value` (tensors and plain values in dicts and lists) with every tensor that ranks share put together."""
    if isinstance(value, DTensor):
        return value.full_tensor()
    if isinstance(value, dict):
        return {key: whole(item) for key, item in value.items()}
    return [whole(item) for item in value] if isinstance(value, list) else value


def on_first(value: Any) -> Any:
    """As `whole`, in the main memory of the first rank; the others get empty tensors.

    One tensor at a time: a card that has room for a part of model and optimizer has none for all of them.
    """
    if isinstance(value, DTensor):
        full = value.full_tensor()
        return full.cpu() if dist.get_rank() == 0 else torch.empty(0)
    if isinstance(value, dict):
        return {key: on_first(item) for key, item in value.items()}
    return [on_first(item) for item in value] if isinstance(value, list) else value


def like(value: Tensor, parameter: Tensor) -> Tensor:
    """`value` shared among ranks as `parameter` is, when it is of its shape."""
    if isinstance(parameter, DTensor) and value.shape == parameter.shape:
        return distribute_tensor(value, parameter.device_mesh, parameter.placements)
    return value
