"""A process that writes episodes until it is killed: `python -m tests.agent.memory_child FILE NAME [COUNT]`.

It says the number of each episode once the memory has it.
"""

from __future__ import annotations

import itertools
import sys
from pathlib import Path

from enlace.agent.memory import Episode, Memory

if __name__ == "__main__":
    memory = Memory(Path(sys.argv[1]), 30)
    count = int(sys.argv[3]) if len(sys.argv) > 3 else None
    for i in itertools.islice(itertools.count(), count):
        memory.write(Episode(float(i), sys.argv[2], f"{sys.argv[2]} dice la frase {i} " + "larga " * 400, "prueba"))
        print(i, flush=True)
