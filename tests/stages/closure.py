"""Which files of the project a module imports, followed to the end, by reading the source."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
SRC = ROOT / "src"
# These cannot change an output: the values of the configuration are tracked as params, messages are for people, and how
# a file is written durably does not change what is written.
NEUTRAL = ("enlace.config", "enlace.console", "enlace.durable")


def import_closure(module: str) -> set[str]:
    """Paths relative to the project of `module` and all that it imports, without `NEUTRAL` and empty packages."""
    seen: set[str] = set()
    waiting = [module]
    while waiting:
        name = waiting.pop()
        if name in seen or name.startswith(NEUTRAL):
            continue
        seen.add(name)
        waiting += _imports(_path(name))
    return {str(p.relative_to(ROOT)) for name in seen if (p := _path(name)).name != "__init__.py" or _has_code(p)}


def _path(module: str) -> Path:
    base = SRC.joinpath(*module.split("."))
    return base / "__init__.py" if base.is_dir() else base.with_suffix(".py")


def _imports(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        for name in names:
            parts = name.split(".")
            if parts[0] == "enlace":  # importing a.b.c runs the packages a and a.b too
                found |= {prefix for i in range(len(parts)) if _path(prefix := ".".join(parts[: i + 1])).exists()}
    return found


def _has_code(path: Path) -> bool:
    """Whether a package's file does anything: `enlace` itself holds only the base error."""
    return path.parent.name != "enlace" and bool(path.read_text(encoding="utf-8").strip())


def with_deps(pipeline: str) -> str:
    """The text of dvc.yaml with the source files of each stage as they should be."""
    stages = re.split(r"(?m)^(?=  [a-z-]+:\n)", pipeline)
    return "".join(_with_deps(stage) for stage in stages)


def _with_deps(stage: str) -> str:
    command = re.search(r"python -m (enlace\.stages\.\w+)", stage)
    if command is None:
        return stage
    lines = "".join(f"      - {path}\n" for path in sorted(import_closure(command[1])))
    return re.sub(r"(?m)(?:^      - src/.*\.py\n)+", lines, stage, count=1)


if __name__ == "__main__":
    path = ROOT / "dvc.yaml"
    path.write_text(with_deps(path.read_text(encoding="utf-8")), encoding="utf-8")
