"""The loader: the batch of step n is a pure function of (seed, n).

Each source is a numbered list of rows of `seq_len` + 1 tokens. A step takes a fixed number of rows from each source of
its phase (`rows_per_source`), in the order of a permutation that is computed, not stored: so the loader's whole state
is the step, resuming is exact by construction, nothing is reserved in memory, and how many GPUs share a batch does not
change it. Within an epoch every row is seen once; epochs follow each other with other permutations.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from enlace import EnlaceError
from enlace.config.schema import Mixture, PhaseMixture, TrainConfig
from enlace.data.rows import Row, Rows

Phase = Literal["stable", "decay"]


@dataclass(frozen=True)
class Batch:
    """One optimizer step's worth of training text, on the CPU."""

    inputs: Tensor  # [B, T] int64
    targets: Tensor  # [B, T] int64: the token after each input, shifted here and nowhere else
    mask: Tensor  # [B, T] bool: whether the target is trained

    def to(self, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
        """Inputs, targets and mask on `device`."""
        return self.inputs.to(device), self.targets.to(device), self.mask.to(device)

    def micro_batches(self, size: int) -> Iterator[Batch]:
        """Slices of `size` rows."""
        for start in range(0, len(self.inputs), size):
            part = slice(start, start + size)
            yield Batch(self.inputs[part], self.targets[part], self.mask[part])


def batch_size(train: TrainConfig) -> int:
    """Sequences per optimizer step."""
    return train.batch_tokens // train.seq_len


def stable_end(train: TrainConfig) -> int:
    """First step of the decay phase."""
    return train.steps - train.decay_steps


def phase(step: int, train: TrainConfig) -> Phase:
    """Which mixture step `step` (from 0) reads: the warm-up belongs to the stable phase."""
    return "stable" if step < stable_end(train) else "decay"


class Loader:
    """Batches by step, for any sources and a mixture per phase."""

    def __init__(self, sources: Mapping[str, Rows], train: TrainConfig, mixture: PhaseMixture) -> None:
        """`sources` by the names of `Mixture` ("corpus", "chat"); a source with no share anywhere may be absent."""
        self.train, self.sources = train, sources
        self.rows: dict[Phase, dict[str, int]] = {
            "stable": rows_per_source(mixture.stable, batch_size(train)),
            "decay": rows_per_source(mixture.decay, batch_size(train)),
        }
        for phase, rows in self.rows.items():
            for name, count in rows.items():
                if count and name not in sources:
                    raise EnlaceError(
                        f"params.yaml: data.mixture.{phase}.{name} es mayor que 0 y no hay datos de «{name}», o "
                        f"ninguno cabe en train.seq_len={train.seq_len}: ponlo a 0, prepáralos (dvc repro "
                        f"build-shards) o sube seq_len."
                    )
        self.next_step = 0

    def fingerprint(self, step: int) -> str:
        """Digest of everything that decides the batches before `step`: until the decay begins, not how it will be."""
        train = self.train
        what: list[object] = [
            {name: rows.digest for name, rows in sorted(self.sources.items())},
            (train.seed, train.seq_len),
            sorted(self.rows["stable"].items()),
        ]
        if step > stable_end(train):
            what += [sorted(self.rows["decay"].items()), stable_end(train)]
        return hashlib.sha256(repr(what).encode()).hexdigest()

    def batch(self, step: int) -> Batch:
        """The batch of step `step` (from 0)."""
        ids, masks = [], []
        for name, count in self.rows[phase(step, self.train)].items():
            first = self._rows_before(step, name)
            for number in range(first, first + count):
                row_ids, row_mask = self._row(name, number)
                ids.append(row_ids)
                masks.append(row_mask)
            self.sources[name].let_go()
        tokens, mask = torch.from_numpy(np.stack(ids)), torch.from_numpy(np.stack(masks))
        return Batch(tokens[:, :-1], tokens[:, 1:], mask[:, 1:])

    def __iter__(self) -> Iterator[Batch]:
        while True:
            # Counted before it is handed over: a state saved while a batch is being trained says that it was taken.
            self.next_step += 1
            yield self.batch(self.next_step - 1)

    def state_dict(self) -> dict[str, Any]:
        """Where the iterator is, and on what data."""
        return {"next_step": self.next_step, "fingerprint": self.fingerprint(self.next_step)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where `state` was saved; EnlaceError when it was saved on other data or another recipe."""
        if state["fingerprint"] != self.fingerprint(state["next_step"]):
            raise EnlaceError(
                "El punto de guardado se hizo con otros datos u otra mezcla: no se puede continuar desde él. "
                "Recupera aquellos o empieza de nuevo."
            )
        self.next_step = state["next_step"]

    def _rows_before(self, step: int, name: str) -> int:
        """Rows of source `name` that the steps before `step` took."""
        stable = min(step, stable_end(self.train))
        return stable * self.rows["stable"].get(name, 0) + (step - stable) * self.rows["decay"].get(name, 0)

    def _row(self, name: str, number: int) -> Row:
        rows = self.sources[name]
        epoch, position = divmod(number, len(rows))
        key = _key(self.train.seed, name, epoch)
        return rows.row(permuted(position, len(rows), key), shift=key)


def rows_per_source(mixture: Mixture, batch_size: int) -> dict[str, int]:
    """Split the rows of a batch by the shares of the mixture; the largest remainders round up, so that none is lost."""
    shares = mixture.model_dump()
    exact = {name: share * batch_size for name, share in shares.items()}
    rows = {name: int(value) for name, value in exact.items()}
    by_remainder = sorted(exact, key=lambda name: (rows[name] - exact[name], name))
    for name in by_remainder[: batch_size - sum(rows.values())]:
        rows[name] += 1
    return {name: count for name, count in rows.items() if count}


def permuted(position: int, length: int, key: int) -> int:
    """Where a pseudo-random permutation of range(`length`), chosen by `key`, sends `position`.

    A Feistel network over the next power of four, walked again while it falls outside (cycle walking: Black and
    Rogaway, "Ciphers with arbitrary finite domains", 2002). Unlike a library's shuffle it needs no memory and will
    give the same order with every version of every library.
    """
    half = max(1, ((length - 1).bit_length() + 1) // 2)
    low = (1 << half) - 1
    while True:
        left, right = position >> half, position & low
        for round_number in range(6):
            left, right = right, left ^ (_mix(right ^ _mix(key + round_number)) & low)
        position = left << half | right
        if position < length:
            return position


def _key(seed: int, name: str, epoch: int) -> int:
    return int.from_bytes(hashlib.blake2b(f"{seed}/{name}/{epoch}".encode(), digest_size=8).digest(), "little")


def _mix(x: int) -> int:
    """splitmix64's finaliser: every input bit changes every output bit."""
    x = (x + 0x9E3779B97F4A7C15) & 0xFFFFFFFFFFFFFFFF
    x = ((x ^ x >> 30) * 0xBF58476D1CE4E5B9) & 0xFFFFFFFFFFFFFFFF
    x = ((x ^ x >> 27) * 0x94D049BB133111EB) & 0xFFFFFFFFFFFFFFFF
    return x ^ x >> 31
