"""More answers than memory."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import re, sys
from pathlib import Path
from enlace.config.schema import DistillConfig
from enlace.data.distill import Peticion, Trabajo, collect, resumen_de_uso, submit
from enlace.data.distill.exporting import export

N, SIZE = int(sys.argv[2]), int(sys.argv[3])
USAGE = {"input_tokens": 1, "output_tokens": 1}

class Grande:
    def __init__(self): self.lotes = {}
    def construir_params(self, peticion): return {"user": peticion.user}
    def crear(self, pedidos):
        id = f"lote_{len(self.lotes)}"
        self.lotes[id] = [pedido["custom_id"] for pedido in pedidos]
        return id
    def estado(self, id): return {"processing_status": "ended"}
    def resultados(self, id):
        for custom_id in reversed(self.lotes[id]):
            yield {"custom_id": custom_id, "type": "succeeded", "text": "ñ" * (SIZE // 2), "stop_reason": "end_turn",
                   "usage": USAGE}
    def cancelar(self, id): pass

trabajo, cliente, config = Trabajo("t", Path(sys.argv[1])), Grande(), DistillConfig()
submit(trabajo, [Peticion("s", str(i)) for i in range(N)], cliente, config)
assert collect(trabajo, cliente, config)["ok"] == N
assert resumen_de_uso(trabajo, config)["resultados"] == N
export(trabajo, trabajo.recorrer_peticiones(), Path(sys.argv[1]) / "out.jsonl", None)
# Not ru_maxrss: a process that is started inherits that of the one that started it.
print(int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) // 1024)
"""


def peak_mb(folder: Path, n: int, size: int) -> int:
    command = [sys.executable, "-c", PROGRAM, str(folder), str(n), str(size)]
    out = subprocess.run(command, capture_output=True, text=True, check=True)
    assert (folder / "out.jsonl").stat().st_size > n * size
    return int(out.stdout.split()[-1])


def test_memory_does_not_grow_with_the_size_of_the_answers(tmp_path: Path) -> None:
    for name in ("small", "large"):
        (tmp_path / name).mkdir()
    small, large = peak_mb(tmp_path / "small", 300, 1000), peak_mb(tmp_path / "large", 300, 100_000)  # 30 MB
    assert large < small + 10


@pytest.mark.slow
def test_500_mb_of_answers_in_150_mb(tmp_path: Path) -> None:
    assert peak_mb(tmp_path, 20_000, 25_000) < 150
