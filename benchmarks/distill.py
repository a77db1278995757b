"""What the batch harness costs: `python -m benchmarks.distill [REQUESTS] [BYTES]`.

Sends and collects REQUESTS requests (100,000) over the real SDK, against the server of the tests in a process of its
own, each with an answer of BYTES bytes (500); and a tenth of them first, to see that it grows no faster. Prints seconds
of CPU, peak memory and fsyncs of the harness alone, each step in a process of its own, and what importing it takes.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from enlace.console import run_main, say

ROOT = Path(__file__).parents[1]
STEPS = ("submit", "collect", "usage")


def main() -> None:
    """Measure each step at both sizes."""
    requests = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000
    answer_bytes = int(sys.argv[2]) if len(sys.argv) > 2 else 500
    sys.path.insert(0, str(ROOT / "tests" / "data" / "distill"))
    from servidor import Servidor

    say(f"import enlace.data.distill: {import_seconds():.2f} s of CPU, with the SDK not imported")
    say(f"{'requests':>9} {'step':8} {'CPU s':>7} {'wall s':>7} {'peak MB':>8} {'fsyncs':>7} {'µs CPU/request':>15}")
    for n in (requests // 10, requests):
        servidor = Servidor()
        try:
            with tempfile.TemporaryDirectory() as folder:
                for step in STEPS:
                    row = measured(step, n, answer_bytes, Path(folder), servidor.url)
                    per = 1e6 * row["cpu"] / n
                    say(
                        f"{n:9} {step:8} {row['cpu']:7.1f} {row['wall']:7.1f} {row['peak_mb']:8.0f} {row['fsyncs']:7} "
                        f"{per:15.0f}"
                    )
        finally:
            servidor.stop()


def import_seconds() -> float:
    """The best of three; raises if the SDK comes along."""
    program = (
        "import sys, time; t = time.process_time(); import enlace.data.distill; t = time.process_time() - t\n"
        "assert 'anthropic' not in sys.modules; print(t)"
    )
    runs = [subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True) for _ in "123"]
    return min(float(run.stdout) for run in runs)


def measured(step: str, n: int, answer_bytes: int, folder: Path, url: str) -> dict[str, float]:
    """One step in a process of its own."""
    environment = os.environ | {
        "ANTHROPIC_API_KEY": "prueba",
        "ANTHROPIC_BASE_URL": url,
        "NO_PROXY": "127.0.0.1",
        "HOME": str(folder),
    }
    command = [sys.executable, "-m", "benchmarks.distill", "--step", step, str(n), str(answer_bytes), str(folder)]
    out = subprocess.run(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True, check=True).stdout
    row: dict[str, float] = json.loads(out.splitlines()[-1])
    return row


def one_step(step: str, n: int, answer_bytes: int, folder: Path) -> None:
    """Do a step and print what it took."""
    fsyncs = 0
    fsync = os.fsync

    def counted(descriptor: int) -> None:
        nonlocal fsyncs
        fsyncs += 1
        fsync(descriptor)

    os.fsync = counted
    from enlace.config.schema import DistillConfig
    from enlace.data.distill import ClienteAnthropic, Peticion, Trabajo, collect, resumen_de_uso, submit

    def asked() -> Iterator[Peticion]:
        for i in range(n):
            yield Peticion("Eres de ayuda en casa. Sé breve.", f"[[big:{answer_bytes}]] pregunta {i}", {"n": i})

    config = DistillConfig()
    trabajo, cliente = Trabajo("banco", folder), ClienteAnthropic(config)
    start = time.perf_counter()
    if step == "submit":
        submit(trabajo, asked(), cliente, config)
    elif step == "collect":
        assert collect(trabajo, cliente, config)["ok"] == n
    else:
        assert resumen_de_uso(trabajo, config)["resultados"] == n
    used = resource.getrusage(resource.RUSAGE_SELF)
    row = {
        "cpu": used.ru_utime + used.ru_stime,
        "wall": time.perf_counter() - start,
        "peak_mb": used.ru_maxrss / 1024,
        "fsyncs": fsyncs,
    }
    print(json.dumps(row))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--step"]:
        one_step(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), Path(sys.argv[5]))
    else:
        run_main(main)
