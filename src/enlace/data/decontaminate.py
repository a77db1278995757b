"""Evaluation sets kept out of the training text: whoever shares a run of 13 words with one of their items is dropped.

As GPT-3's appendix C does it (Brown et al., 2020). Items of 8 to 12 words are looked for whole; shorter ones are left
alone, since everybody says "¿qué hora es?".
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from enlace import EnlaceError
from enlace.data.jsonl import json_lines
from enlace.data.words import Numbers, Words, words_of
from enlace.durable import reason

LONGEST, SHORTEST = 13, 8


@dataclass(frozen=True)
class EvalSet:
    """What to look for: for each length of run, the sorted numbers of the runs and the item that each is of."""

    items: tuple[str, ...]
    runs: tuple[tuple[int, Numbers, npt.NDArray[np.int64]], ...]

    @classmethod
    def of(cls, items: Sequence[str]) -> EvalSet:
        """Of these items, each a text."""
        lengths = np.minimum(words_of(items).counts(), LONGEST) if items else np.zeros(0, np.int64)
        runs = []
        for n in range(SHORTEST, LONGEST + 1):
            chosen = np.flatnonzero(lengths == n)
            if not len(chosen):
                continue
            grams, starts = words_of([items[i] for i in map(int, chosen)]).grams(n)
            numbers, first = np.unique(grams, return_index=True)
            runs.append((n, numbers, np.repeat(chosen, np.diff(starts))[first]))
        return cls(tuple(items), tuple(runs))

    @property
    def digest(self) -> str:
        """Of what is looked for."""
        return hashlib.sha256(json.dumps(self.items).encode()).hexdigest()

    def too_short(self) -> int:
        """Items of fewer than 8 words, which are not looked for."""
        return int((words_of(self.items).counts() < SHORTEST).sum()) if self.items else 0

    def overlaps(self, words: Words) -> tuple[npt.NDArray[np.bool_], set[int]]:
        """Which texts share a run with an item, and the items that are shared."""
        texts = np.zeros(len(words.starts) - 1, dtype=np.bool_)
        items: set[int] = set()
        for n, numbers, owners in self.runs:
            grams, starts = words.grams(n)
            at = np.minimum(np.searchsorted(numbers, grams), len(numbers) - 1)
            hits = np.flatnonzero(numbers[at] == grams)
            texts[np.searchsorted(starts, hits, side="right") - 1] = True
            items.update(map(int, owners[at[hits]]))
        return texts, items


def read_eval_sets(folder: Path) -> EvalSet:
    """The items of the files under `folder`: the lines of a .txt, all texts in each record of a .jsonl.

    Raises EnlaceError for what cannot be read; hidden files are passed over.
    """
    paths = sorted(path for path in folder.rglob("[!.]*") if path.is_file())
    return EvalSet.of(list(dict.fromkeys(item for path in paths for item in _items(path))))


def _items(path: Path) -> Iterator[str]:
    if path.suffix == ".jsonl":
        for _, record in json_lines(path):
            yield from _texts(record)
        return
    if path.suffix != ".txt":
        raise EnlaceError(f"{path}: no es .txt ni .jsonl, lo que se lee de los conjuntos de evaluación; quítalo de ahí")
    try:
        yield from (line for line in path.read_text(encoding="utf-8").split("\n") if line.strip())
    except OSError as error:
        raise EnlaceError(f"{path}: no se puede leer ({reason(error)})") from error
    except UnicodeDecodeError:
        raise EnlaceError(f"{path}: no es UTF-8; guarda el archivo en UTF-8") from None


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _texts(inner)
