from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch.nn.attention import SDPBackend

from enlace.config.budget import peak_of
from enlace.config.load import hardware_profiles
from enlace.config.schema import HardwareConfig
from enlace.train.backends import HardwareError, Machine, check, prepare, runtime_of, suggest, this_machine
from tests.conftest import ROOT

PROFILES = hardware_profiles(ROOT)
LAPTOP = Machine("cpu", "Ryzen", None, 0, native_bfloat16=False)
XEON = Machine("cpu", "Xeon", None, 0, native_bfloat16=True)
RTX2060 = Machine("cuda", "NVIDIA GeForce RTX 2060", (7, 5), 5.79, native_bfloat16=False)
RTX5090 = Machine("cuda", "NVIDIA GeForce RTX 5090", (12, 0), 31.4, native_bfloat16=False)
H200 = Machine("cuda", "NVIDIA H200", (9, 0), 139.8, native_bfloat16=True)
GTX1060 = Machine("cuda", "NVIDIA GeForce GTX 1060", (6, 1), 5.9, native_bfloat16=False)


@pytest.mark.parametrize(
    ("machine", "name"),
    [(LAPTOP, "cpu"), (RTX2060, "rtx2060"), (RTX5090, "rtx5090"), (H200, "h200"), (GTX1060, "cpu")],
)
def test_each_machine_has_the_profile_that_makes_most_of_it(machine: Machine, name: str) -> None:
    assert suggest(PROFILES, machine) == name
    check(name, PROFILES[name], PROFILES, machine)


@pytest.mark.parametrize(
    ("profile", "machine", "suggested"),
    [
        ("rtx5090", RTX2060, "rtx2060"),
        ("h200", RTX5090, "rtx5090"),
        ("rtx5090", H200, "h200"),
        ("rtx2060", LAPTOP, "cpu"),
        ("rtx2060", GTX1060, "cpu"),
    ],
)
def test_a_profile_that_does_not_suit_is_refused_naming_the_one_that_does(
    profile: str, machine: Machine, suggested: str
) -> None:
    with pytest.raises(HardwareError) as error:
        check(profile, PROFILES[profile], PROFILES, machine)
    message = str(error.value)
    assert f"«{profile}»" in message and machine.name in message and f"HW={suggested}" in message


def test_turing_trains_in_float16_with_the_memory_efficient_kernel_alone() -> None:
    runtime = runtime_of(PROFILES["rtx2060"], RTX2060)
    assert runtime.precision == "float16"
    assert runtime.kernels == (SDPBackend.EFFICIENT_ATTENTION,)


@pytest.mark.parametrize("name", PROFILES)
def test_no_profile_uses_cudnn_and_no_gpu_falls_to_math(name: str) -> None:
    runtime = runtime_of(PROFILES[name], XEON)
    assert SDPBackend.CUDNN_ATTENTION not in runtime.kernels
    assert name == "cpu" or SDPBackend.MATH not in runtime.kernels


def test_auto_is_bfloat16_only_where_the_processor_has_it() -> None:
    assert runtime_of(PROFILES["cpu"], XEON).precision == "bfloat16"
    assert runtime_of(PROFILES["cpu"], LAPTOP).precision == "float32"


def test_on_a_machine_with_a_card_the_cpu_profile_is_of_its_processor() -> None:
    runtime = runtime_of(PROFILES["cpu"], RTX5090)
    assert runtime.machine_name == runtime_of(PROFILES["cpu"], this_machine()).machine_name != RTX5090.name
    assert peak_of(PROFILES, runtime.machine_name, "bfloat16") is None, "no part of what the card can do"
    assert runtime_of(PROFILES["rtx5090"], RTX5090).machine_name == RTX5090.name


def test_a_compiler_that_is_not_there_is_found_before_the_first_step(tmp_path: Path) -> None:
    code = """
import sys
from pathlib import Path
from enlace.config.load import hardware_profiles
from enlace.train.backends import HardwareError, prepare, this_machine
profile = hardware_profiles(Path(sys.argv[1]))["cpu"].model_copy(update={"compile": True})
try: prepare("cpu", profile, {}, this_machine(), 8)
except HardwareError as error: print(error)
"""
    without = {"PATH": "", "CXX": "/no/hay", "TORCHINDUCTOR_CACHE_DIR": str(tmp_path)}
    command = [sys.executable, "-c", code, str(ROOT)]
    ended = subprocess.run(command, env=os.environ | without, capture_output=True, text=True, check=False)
    assert "Instala g++" in ended.stdout and "compile: false" in ended.stdout, ended.stdout + ended.stderr


def test_a_kernel_that_is_not_there_is_found_before_the_first_step() -> None:
    profile = HardwareConfig.model_validate(PROFILES["cpu"].model_dump() | {"sdpa_backends": ["mem_efficient"]})
    with pytest.raises(HardwareError, match="sdpa_backends"):
        prepare("cpu", profile, PROFILES, LAPTOP, 64)


def test_the_heap_is_really_kept() -> None:
    """In a process of its own: with the kept heap, memory that was freed and asked for again costs no page faults."""
    code = """
import resource, sys, torch
from enlace.train.backends import keep_heap
if sys.argv[1] == "keep": keep_heap()
def faults(): return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(15): torch.empty(2**24).fill_(1)
before = faults()
for _ in range(10): torch.empty(2**24).fill_(1)
print(faults() - before)
"""

    def faults(mode: str) -> int:
        out = subprocess.run([sys.executable, "-c", code, mode], capture_output=True, text=True, check=True)
        return int(out.stdout)

    if platform.libc_ver()[0] != "glibc":
        pytest.skip("only glibc has the setting")
    assert faults("keep") * 10 < faults("default")


def test_prepare_sets_the_threads_of_the_profile() -> None:
    before = torch.get_num_threads()
    profile = HardwareConfig.model_validate(PROFILES["cpu"].model_dump() | {"threads": 1, "keep_heap": False})
    try:
        prepare("cpu", profile, PROFILES, LAPTOP, 64)
        assert torch.get_num_threads() == 1
    finally:
        torch.set_num_threads(before)
