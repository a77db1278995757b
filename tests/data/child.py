"""A build that dies: `python -m tests.data.child CONFIG RAW OUT UNIT_BYTES N` kills itself at its Nth file."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from enlace.config.schema import ShardsConfig
from enlace.data import build, shards, units


def main() -> None:
    config, raw, out, unit_bytes, when = sys.argv[1:]
    count = 0

    def counted(function):
        def call(*arguments, **named):
            nonlocal count
            count += 1
            if count == int(when):
                os.kill(os.getpid(), signal.SIGKILL)
            return function(*arguments, **named)

        return call

    units.write_atomic = counted(units.write_atomic)
    shards._write = counted(shards._write)
    build.write_manifest = counted(build.write_manifest)
    settings = ShardsConfig.model_validate_json(config)
    build.build_shards(sorted(Path(raw).iterdir()), [], settings, Path(out), unit_bytes=int(unit_bytes))
    print(count)


if __name__ == "__main__":
    main()
