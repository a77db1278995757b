"""What the hardware profile asks, against what the machine has, before the first step.

Decided by compute capability, never by `torch.cuda.is_bf16_supported()`, which counts Turing's slow emulation. The
attention kernels are those that the profile lists: cuDNN's is never among them (its backward pass gives NaN on masked
rows in torch 2.13), and the quadratic "math" kernel is used only where the profile names it.
"""

from __future__ import annotations

import ctypes
import os
import platform
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from enlace import EnlaceError
from enlace.config.schema import HardwareConfig, Parallel, Precision

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
_KERNELS = {
    "flash": SDPBackend.FLASH_ATTENTION,
    "mem_efficient": SDPBackend.EFFICIENT_ATTENTION,
    "math": SDPBackend.MATH,
}
GIB = 2**30


class HardwareError(EnlaceError):
    """The profile does not suit this machine; the message says which one does."""


@dataclass(frozen=True)
class Machine:
    """What matters of the computer: the card, or the processor when there is none."""

    device: str  # "cpu" or "cuda"
    name: str
    compute_capability: tuple[int, int] | None
    memory_gib: float  # of the card
    native_bfloat16: bool  # of the processor


@dataclass(frozen=True)
class Runtime:
    """Where and in which types the model runs."""

    device: torch.device
    precision: Precision
    kernels: tuple[SDPBackend, ...]
    machine_name: str  # results are exact to the bit on one kind of machine only
    compile: bool = False
    loss_chunk_tokens: int | None = None
    parallel: Parallel = "ddp"

    @property
    def dtype(self) -> torch.dtype:
        """Type of the matrix products."""
        return _DTYPES[self.precision]

    @contextmanager
    def compute(self) -> Iterator[None]:
        """Forward passes inside use the profile's types and attention kernels."""
        autocast = torch.autocast(self.device.type, self.dtype, enabled=self.precision != "float32")
        with autocast, sdpa_kernel(list(self.kernels)):
            yield


def this_machine() -> Machine:
    """The machine this runs on."""
    capabilities = torch.cpu.get_capabilities()
    native_bfloat16 = bool(capabilities.get("amx_bf16") or capabilities.get("avx512_bf16"))
    if not torch.cuda.is_available():
        return Machine("cpu", processor(), None, 0.0, native_bfloat16)
    card = torch.cuda.get_device_properties(0)
    return Machine("cuda", card.name, (card.major, card.minor), card.total_memory / GIB, native_bfloat16)


def processor() -> str:
    """Name of the processor."""
    return str(torch.cpu.get_capabilities().get("cpu_name", platform.machine()))


def prepare(
    name: str, profile: HardwareConfig, others: Mapping[str, HardwareConfig], machine: Machine, width: int
) -> Runtime:
    """Check the profile against the machine, set torch up for it, and try one pass in its types and kernels.

    Args:
        name: of the profile.
        others: every profile of the project by name, to suggest one that fits.
        width: of an attention head, which not every kernel takes.

    Raises:
        HardwareError: the machine lacks what the profile asks; nothing was allocated.
    """
    check(name, profile, others, machine)
    if profile.threads:
        torch.set_num_threads(profile.threads)
    if profile.keep_heap:
        keep_heap()
    if profile.device == "cuda":
        # Without these the backward passes of attention and embedding add in whatever order their threads finish, and
        # a run does not even repeat itself. cuBLAS reads the variable when it starts.
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True)
    runtime = runtime_of(profile, machine)
    _try_out(name, runtime, width)
    if runtime.compile:
        _try_to_compile(name, runtime)
    return runtime


def check(name: str, profile: HardwareConfig, others: Mapping[str, HardwareConfig], machine: Machine) -> None:
    """Raise `HardwareError`, naming a profile that fits, unless `profile` suits `machine`."""
    wrong = _mismatch(profile, machine)
    if wrong is None:
        return
    fitting = suggest(others, machine)
    way_out = f"usa el perfil «{fitting}»: make train HW={fitting}" if fitting else "escribe uno en configs/hardware/"
    raise HardwareError(f"El perfil «{name}» no sirve en esta máquina ({machine.name}): {wrong}; {way_out}.")


def suggest(profiles: Mapping[str, HardwareConfig], machine: Machine) -> str | None:
    """The profile that makes most of the machine: of those that suit it, a GPU's first, then the one of most memory."""
    suitable = [name for name, profile in profiles.items() if _mismatch(profile, machine) is None]
    return max(suitable, key=lambda name: (profiles[name].device == "cuda", profiles[name].memory_gib), default=None)


def runtime_of(profile: HardwareConfig, machine: Machine) -> Runtime:
    """The runtime of a profile that was checked; 'auto' becomes bfloat16 where the processor has it."""
    precision = profile.precision
    if precision == "auto":
        precision = "bfloat16" if machine.native_bfloat16 else "float32"
    return Runtime(
        torch.device(profile.device),
        precision,
        tuple(_KERNELS[k] for k in profile.sdpa_backends),
        machine.name if profile.device == machine.device else processor(),
        profile.compile,
        profile.loss_chunk_tokens,
        profile.parallel,
    )


@contextmanager
def memory_errors(name: str) -> Iterator[None]:
    """Turn a card that runs out of memory inside into a `HardwareError` with the way out."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise HardwareError(
            f"No cabe en la memoria de la tarjeta. Baja micro_batch_size en configs/hardware/{name}.yaml y repite el "
            f"comando: continúa desde el último punto de guardado."
        ) from error


def keep_heap() -> None:
    """Tell glibc to keep freed memory (no trim, no mmap for large blocks); does nothing with another C library.

    A step frees and asks again for hundreds of megabytes; by default each round goes back to the kernel, which clears
    every page. For one trainer process: a process that makes many models would fragment the kept heap.
    """
    if platform.libc_ver()[0] != "glibc":
        return
    libc = ctypes.CDLL(None)
    trim_threshold, top_pad, mmap_threshold = -1, -2, -3  # M_* of <malloc.h>
    libc.mallopt(mmap_threshold, 2**31 - 1)
    libc.mallopt(trim_threshold, 2**31 - 1)
    libc.mallopt(top_pad, 64 * 2**20)


def _mismatch(profile: HardwareConfig, machine: Machine) -> str | None:
    """What the profile asks and the machine lacks; None when nothing."""
    if profile.device == "cpu":
        return None
    if machine.device != "cuda":
        return "pide una GPU de NVIDIA y torch no ve ninguna"
    wanted, have = profile.compute_capability or (0, 0), machine.compute_capability or (0, 0)
    if have < wanted:
        return f"pide compute capability {wanted[0]}.{wanted[1]} y la tarjeta tiene {have[0]}.{have[1]}"
    if machine.memory_gib < profile.memory_gib:
        return f"pide {profile.memory_gib:g} GiB y la tarjeta tiene {machine.memory_gib:.1f}"
    return None


def _try_out(name: str, runtime: Runtime, width: int) -> None:
    """One forward and backward of causal attention, so that a missing kernel is found now and not hours later."""
    try:
        q = torch.randn(1, 2, 128, width, device=runtime.device, dtype=runtime.dtype, requires_grad=True)
        with runtime.compute():
            y = F.scaled_dot_product_attention(q, q, q, is_causal=True)
        y.float().sum().backward()
    except torch.OutOfMemoryError as error:
        raise HardwareError("La tarjeta no tiene memoria libre. Cierra los programas que la usan y repite.") from error
    except RuntimeError as error:
        kernels = ", ".join(kernel.name for kernel in runtime.kernels)
        raise HardwareError(
            f"El perfil «{name}» pide atención con {kernels} en {runtime.precision} y esta máquina no la tiene "
            f"({str(error).splitlines()[0]}). Cambia sdpa_backends o precision en configs/hardware/{name}.yaml."
        ) from error


def _try_to_compile(name: str, runtime: Runtime) -> None:
    """Compile a small function, so that a missing compiler is found now and not after the data is read.

    Not one of torch's own layers, which are not compiled alone.
    """
    compiled = torch.compile(lambda x: F.silu(x) * x, dynamic=False)
    try:
        compiled(torch.ones(8, device=runtime.device, requires_grad=True)).sum().backward()
    except Exception as error:  # torch's compiler has many kinds, and those of the tools that it calls
        raise HardwareError(
            f"El perfil «{name}» pide compilar y aquí no se puede ({str(error).splitlines()[0]}). Instala g++ y, con "
            f"GPU, triton; o pon compile: false en configs/hardware/{name}.yaml: va más lento, nada más."
        ) from error
