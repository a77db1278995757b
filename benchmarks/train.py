"""A training step here beside those of transformers' Qwen3ForCausalLM and litgpt.

    python -m benchmarks.train                 every pairing, each alone in its process, in turns
    python -m benchmarks.train --profile       where the time of a step here goes

All have the same shape, weights (the first loss is compared), batches and optimizer. Tokens per second of wall time
(median over steps, best round), and what part that is of the fastest matrix product of this machine in that precision,
measured here: the MFU, honest on a processor too. Freed heap is kept for all (`keep_heap`, a setting of ours that costs
nothing), and "defaults" leaves transformers with what it does by itself. litgpt takes part where it is found: its
requirements exclude newer ones of ours, so it goes beside them (pip install --no-deps --target FOLDER litgpt lightning
lightning-utilities pytorch-lightning torchmetrics jsonargparse, and FOLDER in PYTHONPATH).
"""

from __future__ import annotations

import argparse
import importlib.util
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
Step = Callable[[torch.Tensor], float]


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
    say(f"{million:.1f} M parameters, {BATCH} x {SEQ_LEN} tokens a step, {THREADS} threads, AdamW")
    contestants = {"ours": ("ours", "kept"), "transformers": ("transformers", "kept")}
    if importlib.util.find_spec("litgpt"):
        contestants["litgpt"] = ("litgpt", "kept")
    contestants["transformers, defaults"] = ("transformers", "freed")
    for precision in options.precision.split(","):
        peak = _peak(precision)
        say(f"{precision}: matrix products reach {peak / 1e9:,.0f} GFLOP/s")
        for mode in options.modes.split(","):
            runs: dict[str, list[tuple[float, float]]] = {name: [] for name in contestants}
            for _ in range(options.rounds):
                for name, (who, heap) in contestants.items():
                    runs[name].append(_run(who, precision, mode, heap, options.steps))
            losses = [loss for of_one in runs.values() for loss, _ in of_one]
            assert max(losses) - min(losses) < (1e-4 if precision == "float32" else 1e-2), losses
            best = {name: max(speed for _, speed in of_one) for name, of_one in runs.items()}
            for name, speed in best.items():
                rate = speed * flops
                told = f"{speed:7,.0f} tokens/s {rate / 1e9:6,.0f} GFLOP/s {100 * rate / peak:3.0f} % MFU"
                say(f"{mode:<8} {name:<22} {told}; ours is {best['ours'] / speed:.2f} times as fast")


def _peak(precision: str) -> float:
    """Operations per second of a large matrix product, the best of some."""
    torch.set_num_threads(THREADS)
    n = 2048
    a = torch.ones(n, n, dtype=getattr(torch, precision))
    took = []
    for _ in range(20):
        start = time.perf_counter()
        torch.mm(a, a)
        took.append(time.perf_counter() - start)
    return 2 * n**3 / min(took)


def _weights() -> Transformer:
    return Transformer(MODEL, VOCAB_SIZE).initialise(torch.Generator().manual_seed(0))


def _run(who: str, precision: str, mode: str, heap: str, steps: int) -> tuple[float, float]:
    command = [sys.executable, "-m", "benchmarks.train", "--steps", str(steps), "--alone", who, precision, mode, heap]
    loss, speed = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)
    return loss, speed


def _alone(who: str, precision: str, mode: str, heap: str, steps: int) -> tuple[float, float]:
    """First loss, and tokens per second, of one contestant; the first two steps (compilation, first pages) do not
    count.
    """
    torch.set_num_threads(THREADS)
    if heap == "kept":
        keep_heap()
    make = {"ours": _ours, "transformers": _transformers, "litgpt": _litgpt}[who]
    step = make(_weights(), precision, mode == "compile")
    torch.manual_seed(0)
    losses, took = [], []
    for _ in range(steps + 2):
        ids = torch.randint(0, VOCAB_SIZE, (BATCH, SEQ_LEN + 1))
        start = time.perf_counter()
        losses.append(step(ids))
        took.append(time.perf_counter() - start)
    return losses[0], BATCH * SEQ_LEN / statistics.median(took[2:])


def _ours(model: Transformer, precision: str, compiled: bool) -> Step:
    kernels = (SDPBackend.FLASH_ATTENTION, SDPBackend.MATH)
    runtime = Runtime(torch.device("cpu"), precision, kernels, "")  # type: ignore[arg-type]
    if compiled:
        for layer in model.layers:
            layer.compile(dynamic=False)
    step_loss = StepLoss(model, None, None)
    mask = torch.ones(BATCH, SEQ_LEN, dtype=torch.bool)

    def loss(ids: torch.Tensor) -> torch.Tensor:
        with runtime.compute():
            sums = step_loss(ids[:, :-1], ids[:, 1:], mask)
        return sums.total(0.0) / (BATCH * SEQ_LEN)

    return _stepper(model, loss)


def _transformers(weights: Transformer, precision: str, compiled: bool) -> Step:
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
        bos_token_id=None,
        eos_token_id=None,
    )
    model = Qwen3ForCausalLM(config)
    missing = model.load_state_dict({f"model.{k}": v for k, v in weights.state_dict().items()}, strict=False)
    assert not missing.unexpected_keys and missing.missing_keys in ([], ["lm_head.weight"])
    model.train()
    forward = torch.compile(model, dynamic=False) if compiled else model

    def loss(ids: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bfloat16"):
            # shift_labels: what transformers lets through untouched, so that the targets are those of the others
            return forward(input_ids=ids[:, :-1], labels=ids[:, 1:], shift_labels=ids[:, 1:].contiguous()).loss

    return _stepper(model, loss)


def _litgpt(weights: Transformer, precision: str, compiled: bool) -> Step:
    from litgpt.config import Config
    from litgpt.model import GPT

    config = Config(
        name="enlace",
        block_size=SEQ_LEN,
        vocab_size=VOCAB_SIZE,
        padded_vocab_size=VOCAB_SIZE,
        n_layer=MODEL.n_layers,
        n_head=MODEL.n_heads,
        n_query_groups=MODEL.n_kv_heads,
        n_embd=MODEL.d_model,
        head_size=MODEL.head_dim,
        rotary_percentage=1.0,
        parallel_residual=False,
        bias=False,
        norm_class_name="RMSNorm",
        mlp_class_name="LLaMAMLP",
        intermediate_size=MODEL.intermediate_size,
        norm_eps=MODEL.rms_norm_eps,
        rope_base=int(MODEL.rope_theta),
        norm_qk=True,
    )
    model = GPT(config)
    model.lm_head.weight = model.transformer.wte.weight  # tied by hand: its pretraining never does
    state = {"lm_head.weight": weights.embed_tokens.weight, "transformer.wte.weight": weights.embed_tokens.weight}
    state["transformer.ln_f.weight"] = weights.norm.weight
    for i, block in enumerate(weights.layers):
        attention, mlp, to = block.self_attn, block.mlp, f"transformer.h.{i}"
        qkv = [attention.q_proj.weight, attention.k_proj.weight, attention.v_proj.weight]
        state |= {
            f"{to}.norm_1.weight": block.input_layernorm.weight,
            f"{to}.attn.qkv.weight": torch.cat(qkv),
            f"{to}.attn.proj.weight": attention.o_proj.weight,
            f"{to}.attn.norm_q.weight": attention.q_norm.weight,
            f"{to}.attn.norm_k.weight": attention.k_norm.weight,
            f"{to}.norm_2.weight": block.post_attention_layernorm.weight,
            f"{to}.mlp.fc_1.weight": mlp.gate_proj.weight,
            f"{to}.mlp.fc_2.weight": mlp.up_proj.weight,
            f"{to}.mlp.proj.weight": mlp.down_proj.weight,
        }
    model.load_state_dict(state)
    forward = torch.compile(model, dynamic=False) if compiled else model

    def loss(ids: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bfloat16"):
            logits = forward(ids[:, :-1])
            return torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())

    return _stepper(model, loss)


def _stepper(model: torch.nn.Module, loss: Callable[[torch.Tensor], torch.Tensor]) -> Step:
    parameters = list(model.parameters())
    optimizer = torch.optim.AdamW(parameters, lr=1e-3, fused=True)

    def step(ids: torch.Tensor) -> float:
        now = loss(ids)
        now.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return now.item()

    return step


def _profile(precision: str) -> None:
    torch.set_num_threads(THREADS)
    keep_heap()
    step = _ours(_weights(), precision, compiled=False)
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
