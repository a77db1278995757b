"""A training step here beside that of transformers' Qwen3ForCausalLM: the same shape, weights, batches and optimizer.

    python -m benchmarks.train                 every pairing, each alone in its process, in turns
    python -m benchmarks.train --profile       where the time of a step here goes

Tokens per second of wall time (median over steps). "equal" keeps the freed heap in both (`keep_heap`, a setting of ours
that costs nothing); "defaults" leaves transformers with what it does by itself.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

import torch
from torch.nn.attention import SDPBackend

from enlace.config.budget import flops_per_token
from enlace.config.schema import ModelConfig
from enlace.console import run_main, say
from enlace.model.transformer import Transformer
from enlace.train.backends import Runtime, keep_heap
from enlace.train.trainer import StepLoss

MODEL = ModelConfig(
    d_model=256, n_layers=6, n_heads=4, n_kv_heads=2, intermediate_size=704, rope_theta=1e4, rms_norm_eps=1e-6
)
VOCAB_SIZE, SEQ_LEN, BATCH = 8192, 256, 16
THREADS = 2
Step = Callable[[torch.Tensor], None]


def main() -> None:
    """Run every pairing, or one contestant alone (how the pairings run)."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--precision", default="float32,bfloat16")
    parser.add_argument("--modes", default="eager,compile")
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--alone", nargs=4, metavar=("WHO", "PRECISION", "MODE", "HEAP"))
    options = parser.parse_args()
    if options.alone:
        print(json.dumps(_alone(*options.alone, options.steps)))
    elif options.profile:
        _profile(options.precision.split(",")[-1])
    else:
        _pairings(options)


def _pairings(options: argparse.Namespace) -> None:
    million = MODEL.n_parameters(VOCAB_SIZE) / 1e6
    flops = flops_per_token(MODEL, VOCAB_SIZE, SEQ_LEN)
    say(f"{million:.1f} M parameters, {BATCH} x {SEQ_LEN} tokens a step, {THREADS} threads, AdamW; tokens/s (GFLOP/s)")
    for precision in options.precision.split(","):
        for mode in options.modes.split(","):
            speeds: dict[str, list[float]] = {"ours": [], "equal": [], "defaults": []}
            for _ in range(options.rounds):
                for name, (who, heap) in {
                    "ours": ("ours", "kept"),
                    "equal": ("transformers", "kept"),
                    "defaults": ("transformers", "freed"),
                }.items():
                    speeds[name].append(_run(who, precision, mode, heap, options.steps))
            best = {name: max(values) for name, values in speeds.items()}
            say(
                f"{precision:<9}{mode:<8} ours {best['ours']:7,.0f} ({best['ours'] * flops / 1e9:4.0f})   "
                f"transformers {best['equal']:7,.0f}: {best['ours'] / best['equal']:.2f} times   "
                f"with its defaults {best['defaults']:7,.0f}: {best['ours'] / best['defaults']:.2f} times"
            )


def _run(who: str, precision: str, mode: str, heap: str, steps: int) -> float:
    command = [sys.executable, "-m", "benchmarks.train", "--steps", str(steps), "--alone", who, precision, mode, heap]
    return float(json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout))


def _alone(who: str, precision: str, mode: str, heap: str, steps: int) -> float:
    """Tokens per second of one contestant; the first two steps (compilation, first pages) do not count."""
    torch.set_num_threads(THREADS)
    torch.manual_seed(0)
    if heap == "kept":
        keep_heap()
    step = (_ours if who == "ours" else _transformers)(precision, mode == "compile")
    took = []
    for _ in range(steps + 2):
        ids = torch.randint(0, VOCAB_SIZE, (BATCH, SEQ_LEN + 1))
        start = time.perf_counter()
        step(ids)
        took.append(time.perf_counter() - start)
    return BATCH * SEQ_LEN / statistics.median(took[2:])


def _ours(precision: str, compiled: bool) -> Step:
    kernels = (SDPBackend.FLASH_ATTENTION, SDPBackend.MATH)
    runtime = Runtime(torch.device("cpu"), precision, kernels, "")  # type: ignore[arg-type]
    model = Transformer(MODEL, VOCAB_SIZE).initialise(torch.Generator().manual_seed(0))
    if compiled:
        for layer in model.layers:
            layer.compile(dynamic=False)
    step_loss = StepLoss(model, None, None)
    mask = torch.ones(BATCH, SEQ_LEN, dtype=torch.bool)

    def loss(ids: torch.Tensor) -> torch.Tensor:
        with runtime.compute():
            return step_loss(ids[:, :-1], ids[:, 1:], mask).total(1e-4) / (BATCH * SEQ_LEN)

    return _stepper(list(model.parameters()), loss)


def _transformers(precision: str, compiled: bool) -> Step:
    from transformers import Qwen3Config, Qwen3ForCausalLM

    config = Qwen3Config(
        vocab_size=VOCAB_SIZE,
        hidden_size=MODEL.d_model,
        intermediate_size=MODEL.intermediate_size,
        num_hidden_layers=MODEL.n_layers,
        num_attention_heads=MODEL.n_heads,
        num_key_value_heads=MODEL.n_kv_heads,
        head_dim=MODEL.head_dim,
        rms_norm_eps=MODEL.rms_norm_eps,
        rope_parameters={"rope_type": "default", "rope_theta": MODEL.rope_theta},
        tie_word_embeddings=True,
        use_cache=False,
    )
    model = Qwen3ForCausalLM(config)
    weights = Transformer(MODEL, VOCAB_SIZE).initialise(torch.Generator().manual_seed(0)).state_dict()
    missing = model.load_state_dict({f"model.{name}": tensor for name, tensor in weights.items()}, strict=False)
    assert not missing.unexpected_keys and missing.missing_keys in ([], ["lm_head.weight"])
    model.train()
    forward = torch.compile(model, dynamic=False) if compiled else model

    def loss(ids: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bfloat16"):
            return forward(input_ids=ids[:, :-1], labels=ids[:, :-1]).loss

    return _stepper(list(model.parameters()), loss)


def _stepper(parameters: list[torch.nn.Parameter], loss: Callable[[torch.Tensor], torch.Tensor]) -> Step:
    optimizer = torch.optim.AdamW(parameters, lr=1e-3, fused=True)

    def step(ids: torch.Tensor) -> None:
        loss(ids).backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def _profile(precision: str) -> None:
    torch.set_num_threads(THREADS)
    keep_heap()
    step = _ours(precision, compiled=False)
    ids = torch.randint(0, VOCAB_SIZE, (BATCH, SEQ_LEN + 1))
    step(ids)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        for _ in range(3):
            step(ids)
    events = [(event.key, event.self_cpu_time_total) for event in profile.key_averages()]
    total = sum(time for _, time in events)
    for key, spent in sorted(events, key=lambda event: -event[1])[:15]:
        say(f"{100 * spent / total:5.1f} %  {key}")


if __name__ == "__main__":
    run_main(main)
