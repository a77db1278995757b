"""`enlace data …` on real shards, as a person runs it."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from enlace.data.shards import Shards


@pytest.fixture
def project(tmp_path: Path, small_shards: Shards) -> Path:
    (tmp_path / "params.yaml").touch()
    shutil.copytree(small_shards.folder, tmp_path / "data/shards")
    return tmp_path


def _data(cwd: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "enlace.cli", "data", *arguments]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=120, check=False)


def test_inspect_count_decode_and_verify(project: Path) -> None:
    counted = _data(project, "count").stdout
    assert counted.startswith("train/cuentos: ") and "bytes por token" in counted and counted.count("\n") == 4
    inspected = _data(project, "inspect").stdout
    assert inspected.startswith(counted)
    assert "por longitud en bytes" in inspected and "█" in inspected and "Muestra de val/chat" in inspected
    chat = _data(project, "decode", "train/chat-00000", "2").stdout
    assert chat.startswith("<|im_start|>user\n¿Quién ") and "<|im_start|>assistant\n«" in chat
    assert chat.endswith("<|im_end|>»\n<|endoftext|>\n")
    text = _data(project / "data", "decode", "train/cuentos-00000.bin", "0").stdout
    assert text.endswith("a casa.<|endoftext|>\n") and "«" not in text
    verified = _data(project, "verify")
    assert verified.returncode == 0 and "250 documentos distintos, ninguno a los dos lados" in verified.stdout


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("decode", "train/nada-00000", "0"), "no hay shard «train/nada-00000»; hay: train/cuentos-00000"),
        (("decode", "val/chat-00000", "9999"), "no hay un 9999"),
        (("count", "--shards", "otra"), "otra/manifest.json: no se puede leer (no existe)"),
    ],
)
def test_what_is_not_there_is_told(project: Path, arguments: tuple[str, ...], says: str) -> None:
    result = _data(project, *arguments)
    assert result.returncode == 1 and says in result.stderr and "Traceback" not in result.stderr


@pytest.mark.parametrize("damage", ["byte", "both sides", "report"])
def test_damage_is_found(project: Path, damage: str) -> None:
    shards = project / "data/shards"
    command = "verify"
    if damage == "byte":
        path = shards / "train/chat-00000.mask"
        data = bytearray(path.read_bytes())
        data[7] ^= 1
        path.write_bytes(data)
        says = "train/chat-00000.mask: su sha256"
    elif damage == "report":
        (shards / "report.json").unlink()
        command, says = "inspect", "report.json: no se puede leer"
    else:
        from enlace.data.shards import Encoded, open_shards, write_manifest, write_stream

        opened = open_shards(shards)
        ids, _ = next(opened.stream("train", "cuentos").documents())
        copied = [Encoded(np.array(ids), None, 1)]
        record = write_stream(shards, "val", "cuentos", "corpus", copied, vocab_size=320, shard_tokens=10)
        streams = [s for s in opened.manifest.streams if (s.split, s.name) != ("val", "cuentos")]
        write_manifest(shards, opened.manifest.model_copy(update={"streams": (*streams, record)}))
        says = "1 documentos están a los dos lados"
    result = _data(project, command)
    assert result.returncode == 1 and says in result.stderr, result
