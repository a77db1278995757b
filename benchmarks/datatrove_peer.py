"""The same work by datatrove (extra `bench`): `python -m benchmarks.datatrove_peer RAW TOKENIZER FOLDER NEAR`.

Repair, personal data, repetition and length rules, MinHash of 14 x 8 over word 5-grams where NEAR is 1, tokens. Its
language test is left out, since its model has to be downloaded; so it does less than ENLACE does.
"""

from __future__ import annotations

import json
import logging
import sys
from pathlib import Path

from datatrove.executor import LocalPipelineExecutor
from datatrove.pipeline.dedup import (
    MinhashConfig,
    MinhashDedupBuckets,
    MinhashDedupCluster,
    MinhashDedupFilter,
    MinhashDedupSignature,
)
from datatrove.pipeline.filters import GopherQualityFilter, GopherRepetitionFilter, LambdaFilter
from datatrove.pipeline.formatters import FTFYFormatter, PIIFormatter
from datatrove.pipeline.readers import JsonlReader
from datatrove.pipeline.tokens import DocumentTokenizer
from datatrove.pipeline.writers import JsonlWriter
from datatrove.utils.hashing import HashConfig
from datatrove.utils.typeshelper import Languages

_COMMON = ["de", "la", "que", "el", "en", "y", "a", "los"]


def main() -> None:
    """Run the pipeline on one process."""
    raw, tokenizer, folder, near = sys.argv[1:]
    from loguru import logger

    logger.remove()
    logging.disable()
    work = Path(folder) / f"datatrove-{near}"
    clean = [
        JsonlReader(str(Path(raw).parent), glob_pattern=Path(raw).name),
        FTFYFormatter(),
        PIIFormatter(),
        LambdaFilter(lambda document: len(document.text) >= 200),
        GopherRepetitionFilter(language=Languages.spanish),
        GopherQualityFilter(language=Languages.spanish, stop_words=_COMMON),
    ]
    encode = DocumentTokenizer(str(work / "tokens"), tokenizer, eos_token="<|endoftext|>", shuffle_documents=False)
    if near == "0":
        _run(work / "1", [*clean, encode])
    else:
        config = MinhashConfig(n_grams=5, num_buckets=14, hashes_per_bucket=8, hash_config=HashConfig(precision=64))
        paths = {name: str(work / name) for name in ("clean", "signatures", "buckets", "remove")}
        _run(work / "1", [*clean, JsonlWriter(paths["clean"], compression=None)])
        reader = JsonlReader(paths["clean"])
        _run(work / "2", [reader, MinhashDedupSignature(paths["signatures"], config, language=Languages.spanish)])
        _run(work / "3", [MinhashDedupBuckets(paths["signatures"], paths["buckets"], config=config)], tasks=14)
        _run(work / "4", [MinhashDedupCluster(paths["buckets"], paths["remove"], config=config)])
        _run(work / "5", [reader, MinhashDedupFilter(paths["remove"]), encode])
    tokens = sum(path.stat().st_size for path in (work / "tokens").rglob("*.ds")) // 2
    print(json.dumps({"tokens": tokens}))


def _run(logs: Path, pipeline: list[object], tasks: int = 1) -> None:
    LocalPipelineExecutor(pipeline, tasks=tasks, workers=1, logging_dir=str(logs)).run()


if __name__ == "__main__":
    main()
