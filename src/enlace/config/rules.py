"""Rules that span layers, checked before anything runs: a bad configuration fails in the first second.

Each rule yields a sentence in Spanish that names file, key and value and says what would be right.
"""

from __future__ import annotations

from collections.abc import Iterator

from enlace.config.schema import Config, HardwareConfig, ModelConfig, TrainConfig

MAX_VOCAB_SIZE = 65_536  # shards are uint16
SPECIAL_TOKENS, BYTE_ALPHABET = 4, 256
GIB = 2**30
LONGEST_BY_PRODUCTS = 1024  # that of `model.attention`, which decides weights; here it only estimates memory
# On a CPU, Python and torch before anything is trained, and what the heap holds on to between the tensors: against the
# peak of 12 shapes and types, the estimate is then from 0.94 to 1.33 of what was used.
CPU_PROCESS, CPU_HEAP = 0.3 * GIB, 1.25


def problems(config: Config) -> Iterator[str]:
    """Every broken rule of `config`, as a message; nothing when all is well."""
    yield from _model(config)
    yield from _data(config)
    yield from _schedule(config)
    yield from _mixture(config)
    yield from _precision(config)
    yield from _memory(config)
    yield from _evaluation(config)


def _model(config: Config) -> Iterator[str]:
    model, where = config.model, config.layers.path("model")
    if model.d_model % model.n_heads:
        yield f"{where}: n_heads={model.n_heads} no divide a d_model={model.d_model}; usa un divisor suyo."
    elif model.head_dim % 2:
        yield (
            f"{where}: d_model / n_heads = {model.head_dim} es impar y RoPE gira pares; "
            f"elige n_heads para que d_model / n_heads sea par."
        )
    if model.n_heads % model.n_kv_heads:
        yield (
            f"{where}: n_kv_heads={model.n_kv_heads} no divide a n_heads={model.n_heads}; "
            f"usa uno de {_divisors(model.n_heads)}."
        )


def _data(config: Config) -> Iterator[str]:
    vocab_size, where = config.data.shards.vocab_size, "params.yaml: data.shards.vocab_size"
    if vocab_size > MAX_VOCAB_SIZE:
        yield f"{where}={vocab_size}; como mucho {MAX_VOCAB_SIZE}, porque los shards son uint16."
    if vocab_size < (smallest := SPECIAL_TOKENS + BYTE_ALPHABET):
        yield f"{where}={vocab_size}; al menos {smallest} (256 bytes y las marcas especiales)."


def _schedule(config: Config) -> Iterator[str]:
    train, hardware = config.train, config.hardware
    if train.warmup_steps + train.decay_steps > train.steps:
        yield (
            f"params.yaml: train.warmup_steps={train.warmup_steps} + train.decay_steps={train.decay_steps} pasan de "
            f"train.steps={train.steps}; baja alguno de los dos."
        )
    if train.batch_tokens % train.seq_len:
        yield (
            f"params.yaml: train.batch_tokens={train.batch_tokens} no es múltiplo de train.seq_len={train.seq_len}; "
            f"usa, por ejemplo, {max(1, round(train.batch_tokens / train.seq_len)) * train.seq_len}."
        )
    elif (rows := train.batch_tokens // train.seq_len) % micro_batch_size(config.hardware, config.train):
        yield (
            f"{config.layers.path('hardware')}: micro_batch_size={hardware.micro_batch_size} no divide a las "
            f"{rows} secuencias por paso (train.batch_tokens / train.seq_len); "
            f"usa uno de {_divisors(rows)}."
        )


def _evaluation(config: Config) -> Iterator[str]:
    if config.eval.max_new_tokens >= config.train.seq_len:
        yield (
            f"params.yaml: eval.max_new_tokens={config.eval.max_new_tokens} no deja sitio para la pregunta en "
            f"train.seq_len={config.train.seq_len}; bájalo."
        )


def _mixture(config: Config) -> Iterator[str]:
    rows = config.train.batch_tokens // config.train.seq_len
    for phase in ("stable", "decay"):
        shares = getattr(config.data.mixture, phase).model_dump()
        for name, share in shares.items():
            if 0 < share * rows <= 0.5:  # a half is rounded up or down by the name of the source
                yield (
                    f"params.yaml: data.mixture.{phase}.{name}={share:g} no llega a una de las {rows} secuencias de "
                    f"cada paso; usa 0, o {1 / rows:.3g} o más."
                )


def _precision(config: Config) -> Iterator[str]:
    hardware, where = config.hardware, config.layers.path("hardware")
    if hardware.device == "cpu":
        if hardware.compute_capability is not None:
            yield f"{where}: compute_capability={list(hardware.compute_capability)} con device=cpu; pon null."
        if "mem_efficient" in hardware.sdpa_backends:
            yield f"{where}: sdpa_backends lleva mem_efficient, que en CPU no existe; usa flash y math."
        return
    if hardware.compute_capability is None:
        yield f"{where}: falta compute_capability, por ejemplo [7, 5] (RTX 2060) o [12, 0] (RTX 5090)."
        return
    if config.train.document_mask and set(hardware.sdpa_backends) == {"flash"}:
        yield (
            f"{where}: sdpa_backends lleva solo flash, que no admite la máscara de train.document_mask=true "
            f"(params.yaml); añade mem_efficient, o pon document_mask: false."
        )
    before_ampere = hardware.compute_capability < (8, 0)
    if hardware.precision == "auto":
        yield f"{where}: precision=auto es solo para CPU; usa {'float16' if before_ampere else 'bfloat16'}."
    if before_ampere and hardware.precision == "bfloat16":
        # torch.cuda.is_bf16_supported() says yes on Turing: it counts emulation, which is slow.
        yield f"{where}: precision=bfloat16 pide Ampere (8.0) y la tarjeta es {_dotted(config)}; usa float16."
    if before_ampere and "flash" in hardware.sdpa_backends:
        yield (
            f"{where}: sdpa_backends lleva flash, que pide Ampere (8.0) o posterior y la tarjeta es {_dotted(config)}; "
            f"usa mem_efficient."
        )


def _memory(config: Config) -> Iterator[str]:
    model, train, hardware = config.model, config.train, config.hardware
    # Before the start nobody knows among how many cards fsdp will share the model: at most one for each sequence.
    shared = hardware.parallel == "fsdp" and hardware.device == "cuda"
    processes = max(1, train.batch_tokens // train.seq_len) if shared else 1
    if problem := memory_problem(model, config.data.shards.vocab_size, train, hardware, processes):
        yield f"{config.layers.path('hardware')}: {problem}"


def memory_problem(
    model: ModelConfig, vocab_size: int, train: TrainConfig, hardware: HardwareConfig, processes: int
) -> str | None:
    """What to change where training, shared by `processes`, needs more memory than the profile has; None: it fits.

    Each card has that memory; the processes of a CPU share it.
    """

    def need(micro_batch: int | None = None, processes: int = processes) -> float:
        of_one = estimate_memory(model, vocab_size, train, hardware, micro_batch, processes) / GIB
        return of_one * processes if hardware.device == "cpu" else of_one

    if need() <= hardware.memory_gib:
        return None
    rows = max(1, train.batch_tokens // train.seq_len)
    fitting = [n for n in _divisors(max(1, rows // processes)) if need(n) <= hardware.memory_gib]
    if fitting:
        way_out = f"con micro_batch_size={max(fitting)} cabe"
    elif hardware.parallel == "fsdp" and need(1, processes=rows) <= hardware.memory_gib:
        way_out = "reparte entre más tarjetas (GPUS=…), o usa un modelo más pequeño o seq_len más corto"
    elif processes > 1 and hardware.device == "cpu" and need(processes=1) <= hardware.memory_gib:
        way_out = "usa menos procesos (GPUS=…)"
    else:
        way_out = "usa un modelo más pequeño o seq_len más corto"
    return (
        f"con micro_batch_size={hardware.micro_batch_size} el modelo pide unos {need():.1f} GiB y "
        f"memory_gib={hardware.memory_gib:g}; {way_out}."
    )


def micro_batch_size(hardware: HardwareConfig, train: TrainConfig, processes: int = 1) -> int:
    """Sequences per forward pass: the profile's, but never more than a process's part of one optimizer step."""
    return min(hardware.micro_batch_size, max(1, train.batch_tokens // train.seq_len // processes))


def estimate_memory(
    model: ModelConfig,
    vocab_size: int,
    train: TrainConfig,
    hardware: HardwareConfig,
    micro_batch: int | None = None,
    processes: int = 1,
) -> int:
    """Bytes that training needs at its peak on one card, or of one process on a CPU.

    Weights, gradients and moments are float32: 16 bytes per parameter with AdamW, 12 where Muon keeps one moment; with
    fsdp each process holds its part of them, and one layer and the embedding whole. A layer keeps about 14 d_model + 4
    intermediate_size values per token for the backward pass, and for each logit, or each of a chunk, the loss keeps
    itself, its gradient and, on a card all at once, its probability in float32. In 16 bits the residual and the norms
    stay in float32 and the products read copies: 19 d_model instead, measured with saved_tensors_hooks, and a copy of
    the weights. What grows with the square of seq_len: each layer keeps the mask of the documents as numbers to add,
    or, where attention is made by products, the scores of every head.
    """
    rows = micro_batch or micro_batch_size(hardware, train, processes)
    tokens = rows * train.seq_len
    parameters = model.n_parameters(vocab_size)
    width = 4 if hardware.precision in ("float32", "auto") else 2
    kept, copies = (14, 0) if width == 4 else (19, 2)
    state = (16 + copies) * parameters
    if hardware.parallel == "fsdp" and processes > 1:
        embedding = model.d_model * vocab_size
        layer = (parameters - embedding) // model.n_layers
        state = state // processes + (8 + copies) * (embedding + layer)
    activations = tokens * model.n_layers * (kept * model.d_model + 4 * model.intermediate_size) * width
    per_logit = 12 if hardware.device == "cuda" and width == 4 else 8
    logits = per_logit * min(tokens, hardware.loss_chunk_tokens or tokens) * vocab_size
    may_be_bfloat16 = hardware.precision in ("auto", "bfloat16")
    if hardware.device == "cpu" and may_be_bfloat16 and train.seq_len <= LONGEST_BY_PRODUCTS:
        squares = 2 * model.n_heads * (model.n_layers + 2)  # in the backward pass, two more of one layer
    else:
        squares = (width * model.n_layers + 2) if train.document_mask else 0
    tensors = state + activations + logits + rows * train.seq_len**2 * squares
    return int(CPU_PROCESS + CPU_HEAP * tensors) if hardware.device == "cpu" else tensors


def _divisors(n: int) -> list[int]:
    return [d for d in range(1, n + 1) if n % d == 0]


def _dotted(config: Config) -> str:
    return ".".join(map(str, config.hardware.compute_capability or ()))
