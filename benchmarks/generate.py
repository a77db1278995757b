"""Tokens a second here beside transformers' `generate` on the same weights, and the bound that memory sets.

python -m benchmarks.generate [--tokens 64] [--threads N]

Two models: the trained one (models/enlace, if there is one) and one of the shape of configs/model/hogar.yaml with
random weights. Greedy, one sequence and eight. Each program runs in a process of its own, in turns, and its best turn
counts; CPU time counts rather than the clock where other programs share the machine.

The bound: each token reads every weight once, so no more tokens a second than memory gives copies of the weights.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from enlace.config.schema import ModelConfig
from enlace.config.yaml12 import load
from enlace.console import run_main, say
from enlace.export.trained import load_trained
from enlace.export.weights import save_weights
from enlace.model.generate import Sampling, generate_batch
from enlace.model.transformer import Transformer

TURNS = 2
PROMPT_TOKENS = 32
BATCHES = (1, 8)


def main() -> None:
    """Compare on both models, or (as a child) time one program on one folder."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.generate")
    parser.add_argument("--tokens", type=int, default=64, help="new tokens of each sequence")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--time", choices=sorted(PROGRAMS), help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--batch", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    if arguments.time:
        print(json.dumps(_time(PROGRAMS[arguments.time](arguments.folder), arguments.batch, arguments.tokens)))
        return
    bandwidth = _bandwidth()
    say(f"memory: {bandwidth / 1e9:.1f} GB/s read with {arguments.threads} threads")
    trained = Path("models/enlace")
    with tempfile.TemporaryDirectory() as folder:
        tokenizer = trained / "tokenizer.json"
        if tokenizer.is_file():
            _compare("models/enlace", trained, arguments, bandwidth)
        else:
            say("models/enlace: not trained yet, left out")
        _compare("hogar, random weights", _random_model(Path(folder)), arguments, bandwidth)


def _compare(name: str, folder: Path, arguments: argparse.Namespace, bandwidth: float) -> None:
    size = (folder / "model.safetensors").stat().st_size
    say(f"\n{name}: {size / 1e6:.0f} MB of weights, at most {bandwidth / size:.0f} readings of them a second")
    for batch in BATCHES:
        best: dict[str, dict[str, float]] = {}
        for _ in range(TURNS):
            for program in PROGRAMS:
                figures = _child(program, folder, batch, arguments)
                held = best.setdefault(program, figures)
                best[program] = {key: max(held[key], figures[key]) for key in figures}
        for program, figures in best.items():
            share = figures["wall"] / batch * size / bandwidth
            say(
                f"  batch {batch}, {program:12} {figures['wall']:8.1f} tokens/s ({100 * share:.0f} % of the bound), "
                f"{figures['cpu']:8.1f} tokens per CPU second"
            )
        ours, theirs = best["enlace"], best["transformers"]
        say(
            f"  batch {batch}: {ours['wall'] / theirs['wall']:.1f} times transformers by the clock, "
            f"{ours['cpu'] / theirs['cpu']:.1f} by CPU time"
        )


def _child(program: str, folder: Path, batch: int, arguments: argparse.Namespace) -> dict[str, float]:
    flags = {
        "time": program,
        "folder": folder,
        "batch": batch,
        "tokens": arguments.tokens,
        "threads": arguments.threads,
    }
    command = [sys.executable, "-m", "benchmarks.generate"]
    command += [word for flag, value in flags.items() for word in (f"--{flag}", str(value))]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=True)
    figures: dict[str, float] = json.loads(done.stdout)
    return figures


def _time(answer: Callable[[list[list[int]], int], int], batch: int, tokens: int) -> dict[str, float]:
    """Tokens a second and per CPU second, the reading of a short prompt included; the first answers warm up."""
    prompts = [[10 + i, *range(40, 39 + PROMPT_TOKENS)] for i in range(batch)]
    answer(prompts, 4)
    wall, cpu = time.perf_counter(), time.process_time()
    made = answer(prompts, tokens)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    return {"wall": made / wall, "cpu": made / cpu}


def _enlace(folder: Path) -> Callable[[list[list[int]], int], int]:
    trained = load_trained(folder)

    def answer(prompts: list[list[int]], tokens: int) -> int:
        sampling = Sampling(tokens, temperature=0, top_p=1, seed=0)
        return sum(map(len, generate_batch(trained.model, prompts, sampling, (), trained.context_length)))

    return answer


def _transformers(folder: Path) -> Callable[[list[list[int]], int], int]:
    from transformers import AutoModelForCausalLM

    model: Any = AutoModelForCausalLM.from_pretrained(folder).eval()

    def answer(prompts: list[list[int]], tokens: int) -> int:
        ids = torch.tensor(prompts)
        settings = {"max_new_tokens": tokens, "min_new_tokens": tokens, "do_sample": False, "pad_token_id": 3}
        with torch.inference_mode():
            out = model.generate(ids, attention_mask=torch.ones_like(ids), **settings)
        return (out.shape[1] - ids.shape[1]) * len(prompts)

    return answer


PROGRAMS = {"enlace": _enlace, "transformers": _transformers}


def _random_model(folder: Path) -> Path:
    """A model of the shape of `hogar`, with a vocabulary of 32768 and a tokenizer to go with it in name only."""
    shape = ModelConfig.model_validate(load(Path("configs/model/hogar.yaml")))
    model = Transformer(shape, 32768).initialise(torch.Generator().manual_seed(0))
    special = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|pad|>")
    tokens = [*special, *(f"{i:x}" for i in range(32768 - len(special)))]
    vocabulary = {token: id for id, token in enumerate(tokens)}
    added = [{"content": token, "id": id} for id, token in enumerate(special)]
    tokenizer = json.dumps({"added_tokens": added, "model": {"vocab": vocabulary}})
    save_weights(folder / "hogar", model, tokenizer.encode(), 1024, {})
    return folder / "hogar"


def _bandwidth() -> float:
    """Bytes a second that summing 400 MB reads, best of a few."""
    numbers = torch.ones(100_000_000)
    best = 0.0
    for _ in range(5):
        start = time.perf_counter()
        numbers.sum()
        best = max(best, numbers.nbytes / (time.perf_counter() - start))
    return best


if __name__ == "__main__":
    run_main(main)
