from __future__ import annotations

import errno
import json
import re
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch

from enlace import console
from enlace.config.schema import ModelConfig
from enlace.data.shards import Shards
from enlace.export.weights import save_weights
from enlace.model.transformer import Transformer
from tests.conftest import ROOT


@pytest.fixture
def project(tmp_path: Path) -> Path:
    shutil.copytree(ROOT / "configs", tmp_path / "configs")
    shutil.copy(ROOT / "params.yaml", tmp_path)
    return tmp_path


@pytest.fixture
def with_model(project: Path, model_config: ModelConfig, small_shards: Shards) -> Path:
    model = Transformer(model_config, small_shards.manifest.vocab_size).initialise(torch.Generator().manual_seed(0))
    save_weights(project / "models/enlace", model, small_shards.tokenizer_path.read_bytes(), 128, {})
    return project


def _enlace(cwd: Path, *arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "enlace.cli", *arguments]
    return subprocess.run(command, cwd=cwd, input=stdin, capture_output=True, text=True, timeout=120, check=False)


def _fails(result: subprocess.CompletedProcess[str], *says: str, status: int = 1) -> None:
    assert result.returncode == status, result.stdout
    assert "Traceback" not in result.stderr
    assert all(text in result.stderr for text in says), result.stderr


def test_help_is_in_spanish_and_lists_the_commands(project: Path) -> None:
    out = _enlace(project, "--help").stdout
    assert "modelo de lenguaje propio" in out
    assert all(command in out for command in ("chat", "ask", "serve", "config", "summary"))
    bare = _enlace(project)
    assert (bare.returncode, bare.stdout) == (2, out), "no command is a mistake, but one that the help puts right"
    ask = " ".join(_enlace(project, "ask", "--help").stdout.split())
    assert all(text in ask for text in ("PREGUNTA", "--seed ENTERO", "[por defecto: 0]", "Enseña esta ayuda."))
    for page in (out, ask, _enlace(project, "config", "--help").stdout):
        assert not re.search("Usage|Options|OPTIONS|Commands|COMMAND|Arguments|Show|default|required|range", page), page


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ("nada", "No hay orden «nada». Cómo se usa: enlace --help"),
        ("config chek", "No hay orden «chek» (¿querías decir «check»?). Cómo se usa: enlace config --help"),
        ("ask", "Falta PREGUNTA. Cómo se usa: enlace ask --help"),
        ("ask qué es", "Sobran argumentos"),
        ("chat --temp 1", "No hay opción --temp (¿querías decir «--temperature»?). Cómo se usa: enlace chat --help"),
        ("chat --temperature x", "--temperature=x: tiene que ser un número. Cómo se usa: enlace chat --help"),
        ("chat --top-p 2", "--top-p=2: tiene que ser como mucho 1"),
        ("chat --top-k -1", "--top-k=-1: tiene que ser al menos 0"),
        ("chat --min-p 2", "--min-p=2: tiene que ser como mucho 1"),
        ("export gguf x --dtype q4", "--dtype=q4: tiene que ser uno de f32, f16, q8_0."),
        ("chat --max-new-tokens 0", "--max-new-tokens=0: tiene que ser al menos 1"),
        ("chat --seed 9223372036854775808", "tiene que ser como mucho 9223372036854775807"),
        pytest.param(f"chat --seed {'9' * 5000}", "--seed=9", id="5000 digits"),
        ("chat --seed", "--seed necesita un valor. Cómo se usa: enlace chat --help"),
        ("chat --help=1", "--help no lleva valor"),
    ],
)
def test_a_command_line_that_makes_no_sense_is_one_spanish_message_and_status_2(
    project: Path, arguments: str, says: str
) -> None:
    result = _enlace(project, *arguments.split())
    _fails(result, f"error: {says}" if says.startswith(("-", "No", "F", "S")) else says, status=2)
    assert result.stderr.count("\n") == 1 and not re.search("Input|Invalid|Missing|Try|Usage", result.stderr)


def test_config_check_show_and_diff(project: Path) -> None:
    check = _enlace(project, "config", "check")
    assert check.returncode == 0 and "modelo mini" in check.stdout
    assert "train.z_loss = 0.0001" in _enlace(project, "config", "show").stdout
    assert "Igual que el preset «demo»" in _enlace(project, "config", "diff").stdout
    diff = _enlace(project, "config", "diff", "hogar-100m").stdout
    assert "model.d_model: 768 -> 256" in diff and "layers.hardware: rtx2060 -> cpu" in diff
    _fails(_enlace(project, "config", "diff", "hogar"), "No hay preset «hogar» (¿querías decir «hogar-100m»?)")


def test_other_values_are_checked_before_anything_is_touched(project: Path) -> None:
    check = _enlace(project, "config", "check", "train.lr=1e-3", "model=base", "train.steps=2000")
    assert check.returncode == 0 and "modelo base" in check.stdout and "2000 pasos" in check.stdout
    _fails(_enlace(project, "config", "check", "train.steps=20"), "train.decay_steps", "train.steps=20")
    _fails(_enlace(project, "config", "check", "train.stepz=20"), "«train.stepz» (¿querías decir «steps»?)")
    _fails(_enlace(project, "config", "check", "trian.steps.x=20"), "no hay ninguna clave «trian.steps.x»")
    _fails(_enlace(project, "config", "check", "train.steps"), "CLAVE=VALOR")


@pytest.mark.parametrize("content", ["{}", "[]", "no", '{"bits_per_byte": {}}'])
def test_a_report_that_is_none_says_how_to_make_it_again(project: Path, content: str) -> None:
    (project / "reports").mkdir(exist_ok=True)
    for name in ("metrics.json", "samples.json"):
        (project / "reports" / name).write_text(content, encoding="utf-8")
    _fails(_enlace(project, "summary"), "metrics.json", "dvc repro -f -s eval")


def test_a_bad_configuration_is_one_message_and_status_1(project: Path) -> None:
    with (project / "params.yaml").open("a") as file:
        file.write("\nnada: 1\n")
    _fails(_enlace(project, "config", "check"), "params.yaml", "clave desconocida: nada")


def test_outside_a_project_it_says_where_to_go(tmp_path: Path) -> None:
    _fails(_enlace(tmp_path, "config", "check"), "params.yaml", "carpeta del proyecto")


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine may suit a GPU profile")
def test_hardware_that_is_not_there_is_refused_and_params_stays(project: Path) -> None:
    before = (project / "params.yaml").read_bytes()
    _fails(_enlace(project, "config", "hardware", "h200"), "«h200»", "HW=cpu")
    _fails(_enlace(project, "config", "hardware", "h20"), "¿querías decir «h200»?")
    assert (project / "params.yaml").read_bytes() == before
    assert _enlace(project, "config", "hardware", "cpu").returncode == 0


def test_preset_is_written_and_the_old_one_kept(project: Path) -> None:
    assert "params.anterior.yaml" in _enlace(project, "config", "preset", "base-25m").stdout
    assert "modelo base" in _enlace(project, "config", "check").stdout
    _fails(_enlace(project, "config", "preset"), "Hay: base-25m")


def test_ask_answers_from_argument_and_standard_input(with_model: Path) -> None:
    once = _enlace(with_model, "ask", "¿Qué come el perro?", "--max-new-tokens", "8")
    assert once.returncode == 0
    assert once.stdout == _enlace(with_model, "ask", "-", "--max-new-tokens", "8", stdin="¿Qué come el perro?").stdout


def test_chat_goes_on_until_the_input_ends(with_model: Path) -> None:
    result = _enlace(with_model, "chat", "--max-new-tokens", "8", stdin="¿Qué come el perro?\n/nuevo\n\nhola\n")
    assert result.returncode == 0
    assert "Conversación nueva." in result.stdout
    result = _enlace(with_model, "chat", stdin="perro " * 400 + "\n/salir\n")
    assert result.returncode == 0 and "demasiado largo" in result.stdout


def test_a_chat_is_saved_gone_on_with_and_left(with_model: Path) -> None:
    said = _enlace(
        with_model,
        "chat",
        "--max-new-tokens",
        "8",
        stdin="/guardar\n¿Qué come el perro?\n/guardar\n/guardar otra.jsonl\n",
    ).stdout
    assert "nada que guardar" in said and said.count("Guardada en ") == 2
    saved = json.loads((with_model / "conversaciones.jsonl").read_bytes())
    assert [turn["role"] for turn in saved["messages"]] == ["system", "user", "assistant"]
    assert saved["messages"][1]["content"] == "¿Qué come el perro?"
    assert (with_model / "otra.jsonl").read_bytes() == (with_model / "conversaciones.jsonl").read_bytes()
    lines = "/cargar\n/guarda\n¿Y el gato?\n/guardar\n/cargar nada.jsonl\n/nuevo\n/guardar\n/salir\n"
    result = _enlace(with_model, "chat", "--max-new-tokens", "8", stdin=lines)
    assert result.returncode == 0
    assert "2 mensajes" in result.stdout and "No hay /guarda." in result.stdout and "nada.jsonl: no se" in result.stdout
    assert "nada que guardar" in result.stdout, "a new conversation is empty"
    (saved,) = map(json.loads, (with_model / "conversaciones.jsonl").read_text(encoding="utf-8").splitlines())
    assert [turn["role"] for turn in saved["messages"]] == ["system", *["user", "assistant"] * 2]


def test_ctrl_c_stops_the_answer_and_not_the_program(
    project: Path, model_config: ModelConfig, small_shards: Shards
) -> None:
    model = Transformer(model_config, small_shards.manifest.vocab_size).initialise(torch.Generator().manual_seed(0))
    with torch.no_grad():
        model.embed_tokens.weight[[0, 2]] = 0  # never as likely as the others: the answer does not end by itself
    flags = ("--max-new-tokens", "150000", "--temperature", "0", "--repetition-penalty", "50")  # nor is it one letter
    save_weights(project / "models/enlace", model, small_shards.tokenizer_path.read_bytes(), 200_000, {})
    command = [sys.executable, "-m", "enlace.cli", "chat", *flags]
    with subprocess.Popen(command, cwd=project, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin and process.stdout
        process.stdin.write("¿Qué come el perro?\n".encode())
        process.stdin.flush()
        said = b""
        hung = threading.Timer(60, process.kill)
        hung.start()
        while not said.partition(b"> ")[2].strip() and process.poll() is None:  # until the answer begins
            said += process.stdout.read1()  # type: ignore[attr-defined]
        process.send_signal(signal.SIGINT)
        while b"(cortada)" not in said and process.poll() is None:
            said += process.stdout.read1()  # type: ignore[attr-defined]
        rest, _ = process.communicate(b"/guardar\n/salir\n", timeout=60)
        hung.cancel()
    assert process.returncode == 0, said[-500:]
    assert b"Guardada en " in rest, "what was said before the cut is kept"


def test_the_ways_of_choosing_reach_the_model(with_model: Path) -> None:
    def answer(*flags: str) -> str:
        return _enlace(with_model, "ask", "¿Qué come el perro?", "--max-new-tokens", "30", *flags).stdout

    greedy = answer()
    hot = ("--temperature", "5", "--seed", "1")
    assert answer(*hot) != greedy
    assert answer(*hot, "--top-k", "1") == answer(*hot, "--min-p", "1") == greedy
    assert answer(*hot, "--top-p", "0.01") != answer(*hot)
    assert answer("--repetition-penalty", "50") != greedy


def test_exports_are_made_and_said(with_model: Path) -> None:
    (with_model / "models/MODEL_CARD.md").write_text("Ejecución None")
    out = _enlace(with_model, "export", "hf", "salida/hf")
    assert out.returncode == 0 and "AutoModelForCausalLM" in out.stdout, out.stderr
    assert (with_model / "salida/hf/README.md").is_file()
    out = _enlace(with_model, "export", "gguf", "salida/m.gguf", "--dtype", "q8_0")
    assert out.returncode == 0 and "q8_0" in out.stdout, out.stderr
    assert (with_model / "salida/m.gguf").read_bytes()[:4] == b"GGUF"
    _fails(_enlace(with_model, "export", "gguf", "salida/m.gguf"), "ya existe", "--force")
    _fails(_enlace(with_model, "export", "hf", "otra", "--model", "nada"), "nada: no hay ningún modelo", "make repro")
    assert not (with_model / "otra").exists()
    assert "hf" in _enlace(with_model, "export").stdout


def test_what_is_not_a_question_is_refused_before_the_model_is_read(project: Path) -> None:
    _fails(_enlace(project, "ask", " "), "La pregunta está vacía", 'enlace ask "')
    _fails(_enlace(project, "ask", "-", stdin=""), "La pregunta está vacía")
    latin = "¿Qué?".encode("latin-1")
    for question in ("-", latin):
        command = [sys.executable, "-m", "enlace.cli", "ask", question]
        result = subprocess.run(command, cwd=project, input=latin, capture_output=True, check=False)
        said = result.stderr.decode()
        assert result.returncode == 1 and "no está en UTF-8" in said and "iconv" in said and "Traceback" not in said


def test_chat_refuses_what_is_not_utf_8_and_tells_what_it_dropped_once(with_model: Path) -> None:
    command = [sys.executable, "-m", "enlace.cli", "chat", "--max-new-tokens", "4"]
    latin = subprocess.run(command, cwd=with_model, input="qué\n".encode("latin-1"), capture_output=True, check=False)
    assert latin.returncode == 0 and "UTF-8" in latin.stdout.decode()
    lines = [*["¿Qué come el perro?"] * 6, "perro " * 400, "/nuevo", "perro " * 400]
    said = _enlace(with_model, "chat", "--max-new-tokens", "16", stdin="\n".join(lines) + "\n").stdout
    assert "(No caben los " in said
    assert "(No caben los " not in said[said.index("demasiado largo") :], "nothing was answered there"


def test_what_the_model_reads_can_be_seen_and_stays_out_of_the_answer(with_model: Path) -> None:
    shown = _enlace(with_model, "ask", "¿Qué come el perro?", "--ver-contexto")
    assert shown.returncode == 0
    plain = _enlace(with_model, "ask", "¿Qué come el perro?")
    assert shown.stdout == plain.stdout and "Contexto" not in plain.stderr
    assert "user: ¿Qué come el perro?" in shown.stderr and "Contexto: " in shown.stderr
    assert all(part in shown.stderr for part in ("sistema", "mensaje nuevo", "búsquedas", "recuerdos", "historia"))


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_is_a_message_and_a_closed_pipe_is_not(project: Path) -> None:
    command = [sys.executable, "-m", "enlace.cli", "config", "show"]
    with Path("/dev/full").open("w") as full:
        result = subprocess.run(command, cwd=project, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert (result.returncode, result.stderr) == (1, "error: disco lleno.\n")
    piped = subprocess.run(
        f"{sys.executable} -m enlace.cli config show | true", cwd=project, shell=True, capture_output=True, check=False
    )
    assert piped.stderr == b""


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (PermissionError(errno.EACCES, "Permission denied", "params.yaml"), "error: params.yaml: sin permiso.\n"),
        (OSError(errno.ENOSPC, "No space left on device"), "error: disco lleno.\n"),
        (BrokenPipeError(errno.EPIPE, "Broken pipe"), ""),
    ],
)
def test_the_system_saying_no_is_not_a_traceback(
    error: OSError, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def main() -> None:
        raise error

    with pytest.raises(SystemExit) as stop:
        console.run_main(main)
    assert (stop.value.code, capsys.readouterr().err) == (1, message)


def test_what_is_said_is_text_and_not_emoji_or_markup(capsys: pytest.CaptureFixture[str]) -> None:
    console.say("[b]:heart:[/b]")
    assert capsys.readouterr().out == "[b]:heart:[/b]\n"


def test_without_a_model_or_a_report_it_says_how_to_make_one(project: Path) -> None:
    _fails(_enlace(project, "ask", "hola"), "models/enlace", "make repro")
    _fails(_enlace(project, "summary"), "metrics.json", "make repro")


def test_comparing_asks_for_a_model_in_the_format_of_hugging_face(project: Path) -> None:
    (project / "vacía").mkdir()
    _fails(_enlace(project, "eval", "lm", "vacía"), "vacía", "config.json", "enlace export hf")


def test_summary_shows_figures_beside_chance_and_samples(project: Path) -> None:
    reports = project / "reports"
    reports.mkdir()
    grounded = {
        "questions": 200,
        "choice_accuracy": 0.61,
        "choice_accuracy_low": 0.54,
        "choice_accuracy_high": 0.68,
        "choice_chance": 0.25,
        "f1": 0.31,
        "f1_chance": 0.12,
    }
    metrics = {"bits_per_byte": {"wiki": 1.5}, "grounded": grounded, "pairs": {"accuracy": 0.607}}
    (reports / "metrics.json").write_text(json.dumps(metrics))
    sample = {"question": "¿Qué [es] esto?", "answer": "pan", "right": "pan"}
    continued = {"prompt": "El arroz", "text": " es blanco"}
    (reports / "samples.json").write_text(json.dumps({"answers": [sample], "continuations": [continued]}))
    out = _enlace(project, "summary").stdout
    assert "1.500" in out and "61 % (intervalo 54 a 68; azar 25 %), F1 0.31" in out and "61 % de los pares" in out
    assert "¿Qué [es] esto?" in out and "make chat" in out
