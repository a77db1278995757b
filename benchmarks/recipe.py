"""The recipe here beside nanoGPT's, on the same text, processor and seconds: bits per byte of held-out text.

    python -m benchmarks.recipe [--seconds 240] [--corpus wikipedia-es | manuales-es]

Ours is the model and recipe of params.yaml with the corpus alone. The peer is transformers' GPT-2 of the same width,
depth, heads and vocabulary, trained as nanoGPT trains its small models: AdamW on random windows, 100 steps of warm-up,
cosine to a tenth, weight decay on every matrix (the embedding too), betas 0.9 and 0.99, no dropout. Its learning rate
is the best of 1e-3 (nanoGPT's), 2e-3 and 4e-3 on the demo corpus. Both keep the freed heap and use the profile's type
and threads, each alone in its process; the time of a step is measured first, and the schedule made to fill the seconds.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch import Tensor, nn
from transformers import GPT2Config, GPT2LMHeadModel

from enlace.config.load import hardware_profiles, load_config
from enlace.config.paths import project_root
from enlace.config.schema import Config, Mixture, PhaseMixture
from enlace.console import run_main, say
from enlace.data.build import build_shards
from enlace.data.corpus import documents_of
from enlace.data.documents import write_documents
from enlace.data.loader import batch_size
from enlace.data.rows import corpus_rows
from enlace.data.shards import Shards, open_shards
from enlace.data.tokenizer import Tokenizer
from enlace.eval.bpb import bits_per_byte
from enlace.eval.report import held_out_texts
from enlace.train.backends import Runtime, prepare, this_machine
from enlace.train.run import make_trainer

CORPUS = Mixture(corpus=1.0, chat=0.0)
CALIBRATION_STEPS = 12
PEER_WARMUP, PEER_BETAS, PEER_DECAY, PEER_FLOOR = 100, (0.9, 0.99), 0.1, 0.1
PEER_LR = 4e-3
Step = Callable[[int], None]


def main() -> None:
    """Build the shards once, then run each contestant in a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=240.0)
    parser.add_argument("--corpus", default="wikipedia-es", help="a file of configs/data")
    parser.add_argument("--peer-lr", type=float, default=PEER_LR)
    parser.add_argument("--alone", nargs=2, metavar=("WHO", "SHARDS"))
    options = parser.parse_args()
    config = load_config(changes={"corpus": options.corpus})
    if options.alone:
        who, shards = options.alone
        print(json.dumps(_alone(who, open_shards(Path(shards)), config, options.seconds, options.peer_lr)))
        return
    with TemporaryDirectory(prefix="enlace-bench-") as name:
        shards = _shards(config, Path(name))
        found = {}
        for who in ("ours", "peer"):
            command = [sys.executable, "-m", "benchmarks.recipe", *sys.argv[1:], "--alone", who, str(shards)]
            found[who] = result = json.loads(
                subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
            )
            say(
                f"{who:<5} {result['bits_per_byte']:.3f} bits per byte: {result['parameters'] / 1e6:.1f} M parameters, "
                f"{result['steps']} steps of {result['batch_tokens']} tokens in {result['seconds']:.0f} s"
            )
        say(f"{found['peer']['bits_per_byte'] - found['ours']['bits_per_byte']:.3f} bits per byte lower here")


def _shards(config: Config, folder: Path) -> Path:
    """Shards of the corpus of `config`, made as the pipeline makes them."""
    raw = []
    for source in config.corpus.sources:
        raw.append(folder / f"{source.name}.jsonl")
        write_documents(raw[-1], documents_of(source, folder))
    weights = json.dumps([{"name": source.name, "weight": source.weight} for source in config.corpus.sources])
    build_shards(raw, [], config.data.shards, folder / "shards", weights.encode())
    return folder / "shards"


def _alone(who: str, shards: Shards, config: Config, seconds: float, peer_lr: float) -> dict[str, float]:
    """Train one contestant for about `seconds` and measure it."""
    name, profiles = config.layers.hardware, hardware_profiles(project_root())
    runtime = prepare(name, config.hardware, profiles, this_machine(), config.model.head_dim)
    make = _ours if who == "ours" else _peer
    with TemporaryDirectory(prefix="enlace-bench-") as run:
        _, step = make(config, shards, runtime, CALIBRATION_STEPS, peer_lr, Path(run))
        steps = round(seconds / statistics.median(_timed(step, i) for i in range(CALIBRATION_STEPS)))
        model, step = make(config, shards, runtime, steps, peer_lr, Path(run))
        start = time.perf_counter()
        for i in range(steps):
            step(i)
        took = time.perf_counter() - start
    tokenizer = Tokenizer.load(shards.tokenizer_path)
    documents = chain.from_iterable(held_out_texts(shards, config.eval.max_documents).values())
    lengths, context = tokenizer.token_byte_lengths, config.train.seq_len
    return {
        "bits_per_byte": bits_per_byte(model.eval(), documents, lengths, tokenizer.end_of_text_id, context),  # type: ignore[arg-type]
        "seconds": took,
        "steps": steps,
        "batch_tokens": config.train.batch_tokens,
        "parameters": sum(p.numel() for p in model.parameters()),
    }


def _timed(step: Step, i: int) -> float:
    start = time.perf_counter()
    step(i)
    return time.perf_counter() - start


def _ours(config: Config, shards: Shards, runtime: Runtime, steps: int, _: float, run: Path) -> tuple[nn.Module, Step]:
    """The trainer of the project, its schedule drawn out or in to `steps`."""
    whole = config.train
    schedule = {"steps": steps, "decay_steps": whole.decay_steps * steps // whole.steps}
    train = whole.model_copy(update={**schedule, "warmup_steps": min(whole.warmup_steps, steps // 4)})
    mixture = PhaseMixture(stable=CORPUS, decay=CORPUS)
    micro = min(config.hardware.micro_batch_size, batch_size(train))
    trainer = make_trainer(config.model, train, mixture, shards, runtime, micro, run)
    return trainer.model, lambda i: trainer.train_step(i, trainer.loader.batch(i)) and None


class _GPT2(nn.Module):
    """transformers' GPT-2 as bits per byte wants a model."""

    def __init__(self, gpt: GPT2LMHeadModel) -> None:
        super().__init__()
        self.gpt = gpt
        self.embed_tokens = gpt.transformer.wte

    def forward(self, ids: Tensor) -> Tensor:
        return self.gpt.transformer(ids).last_hidden_state

    def logits(self, hidden: Tensor) -> Tensor:
        return self.gpt.lm_head(hidden)


def _peer(config: Config, shards: Shards, runtime: Runtime, steps: int, lr: float, _: Path) -> tuple[nn.Module, Step]:
    """GPT-2 by the recipe of nanoGPT's train_shakespeare_char, of our shape."""
    torch.manual_seed(config.train.seed)
    shape, context, rows = config.model, config.train.seq_len, batch_size(config.train)
    gpt = GPT2LMHeadModel(
        GPT2Config(
            vocab_size=shards.manifest.vocab_size,
            n_positions=context,
            n_embd=shape.d_model,
            n_layer=shape.n_layers,
            n_head=shape.n_heads,
            activation_function="gelu",
            embd_pdrop=0.0,
            attn_pdrop=0.0,
            resid_pdrop=0.0,
            use_cache=False,
            bos_token_id=None,
            eos_token_id=None,
        )
    )
    matrices = [p for p in gpt.parameters() if p.ndim >= 2]
    vectors = [p for p in gpt.parameters() if p.ndim < 2]
    groups = [{"params": matrices, "weight_decay": PEER_DECAY}, {"params": vectors, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=lr, betas=PEER_BETAS, fused=True)
    windows = corpus_rows(shards, "train", context)
    tokens = torch.cat([torch.from_numpy(array.astype("int64")) for array in windows.arrays])

    def step(i: int) -> None:
        for group in optimizer.param_groups:
            group["lr"] = lr * _cosine(i, steps)
        starts = torch.randint(0, len(tokens) - context - 1, (rows,))
        ids = torch.stack([tokens[start : start + context + 1] for start in starts])
        with runtime.compute():
            logits = gpt(ids[:, :-1]).logits
            loss = nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(gpt.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return _GPT2(gpt), step


def _cosine(step: int, steps: int) -> float:
    if step < PEER_WARMUP:
        return (step + 1) / (PEER_WARMUP + 1)
    done = (step - PEER_WARMUP) / max(1, steps - PEER_WARMUP)
    return PEER_FLOOR + (1 - PEER_FLOOR) * 0.5 * (1 + math.cos(math.pi * done))


if __name__ == "__main__":
    run_main(main)
