"""The same bytes however the work is shared, ordered, cut or killed."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import CancelledError
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from enlace import EnlaceError
from enlace.config.schema import ShardsConfig
from enlace.data import build, units
from enlace.data.build import build_shards
from enlace.data.chat import Message
from enlace.data.conversations import Conversation
from enlace.data.decontaminate import EvalSet
from enlace.data.dedup import document_hash, is_held_out
from enlace.data.documents import Document, write_documents
from enlace.data.executors import Work, WorkersLost, results
from enlace.data.shards import SPLITS, open_shards
from enlace.data.tokenizer import Tokenizer
from enlace.data.units import split_in_units
from enlace.durable import locked, write_atomic
from tests.conftest import NO_RULES, ROOT, sentences
from tests.data import mortal

Configure = Callable[..., ShardsConfig]
UNIT = 6000
ALL_RULES = NO_RULES.model_copy(
    update={
        "boilerplate": True,
        "spanish": 0.1,
        "symbols": 0.3,
        "repetition": 0.6,
        "personal_data": True,
        "near_duplicates": 0.7,
    }
)


def _documents() -> list[Document]:
    """Two sources: stories, some of them copied and nearly copied, some with a mail; and what is no Spanish."""
    drawn = random.Random(5)
    stories = [" ".join(drawn.sample(sentences(), 6)) for _ in range(60)]
    texts = [
        *stories,
        *(story.upper() for story in stories[:5]),
        *(story + " Y colorín colorado, este cuento se ha acabado." for story in stories[5:10]),
        *(f"{story} Escribe a cuento{i}@casa.es." for i, story in enumerate(stories[:3])),
        *(f"The story number {i} is the best of all the stories in the book of the house." for i in range(5)),
    ]
    return [Document(f"{('a', 'b')[i % 2]}:{i}", text, ("a", "b")[i % 2], {}) for i, text in enumerate(texts)]


def _raw(folder: Path, documents: list[Document]) -> list[Path]:
    folder.mkdir(parents=True)
    for source in ("a", "b"):
        write_documents(folder / f"{source}.jsonl", (d for d in documents if d.source == source))
    return sorted(folder.iterdir())


@pytest.fixture
def config(shards_config: Configure) -> ShardsConfig:
    return shards_config(clean=ALL_RULES)


@pytest.fixture
def raw(tmp_path: Path) -> list[Path]:
    return _raw(tmp_path / "raw", _documents())


def _files(folder: Path) -> dict[str, str]:
    paths = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): sha256(path.read_bytes()).hexdigest() for path in paths}


def _texts(out: Path, split: str) -> list[str]:
    shards = open_shards(out)
    tokenizer = Tokenizer.load(shards.tokenizer_path)
    return [tokenizer.decode(ids) for name in shards.names(split) for ids, _ in shards.stream(split, name).documents()]


def test_units_share_out_every_line_once(tmp_path: Path) -> None:
    """Lines end at the byte 0x0A only, as in wbolster/jsonlines#53."""
    (tmp_path / "a.jsonl").write_bytes(b"".join(f"{'x' * (i % 37)}\u2028\x85\r\n".encode() for i in range(500)))
    from enlace.data.units import _lines

    for size in (1, 7, 100, 10**6):
        units = list(split_in_units([tmp_path / "a.jsonl"], size))
        lines = [line for _, path, start, end in units for line in _lines(path, start, end)]
        assert b"".join(lines) == (tmp_path / "a.jsonl").read_bytes() and len(lines) == 500


def test_the_bytes_do_not_depend_on_workers_order_or_size_of_units(
    config: ShardsConfig, raw: list[Path], tmp_path: Path
) -> None:
    """mlfoundations/open_clip#734: an order that depends on the process cannot be repeated."""
    config = config.model_copy(update={"tokenizer_bytes": 12_000})  # a part of them: which one must not depend either
    build_shards(raw, [], config, tmp_path / "one", unit_bytes=UNIT)
    expected = _files(tmp_path / "one")
    assert len(list(split_in_units(raw, UNIT))) >= 6
    for workers in (2, 3):
        shuffled = _documents()
        random.Random(workers).shuffle(shuffled)
        paths = _raw(tmp_path / f"raw{workers}", shuffled)[::-1]
        build_shards(paths, [], config, tmp_path / str(workers), work=Work(workers=workers), unit_bytes=UNIT + workers)
        assert _files(tmp_path / str(workers)) == expected


def test_all_rules_at_once_count_what_they_drop(config: ShardsConfig, raw: list[Path], tmp_path: Path) -> None:
    manifest = build_shards(raw, [], config, tmp_path / "out", unit_bytes=UNIT).manifest
    dropped = {reason: count for reason, count in manifest.dropped.items() if count}
    assert dropped == {"language": 5, "duplicate": 5, "near_duplicate": 8}
    kept = [*_texts(tmp_path / "out", "train"), *_texts(tmp_path / "out", "val")]
    assert len(kept) == 60 and not any("@" in text or "The" in text for text in kept)


def test_nothing_held_out_has_a_copy_or_near_copy_in_training(
    config: ShardsConfig, raw: list[Path], tmp_path: Path
) -> None:
    """js0nwu/webui#1: copies of held-out text in the training text. Of those that are alike, the one that stays is held
    out as soon as any of them is, and conversations about the others are not trained."""
    documents = _documents()
    chats = [
        Conversation((Message("user", f"¿{i}?"), Message("assistant", "Sí.")), document_hash(document.text))
        for i, document in enumerate(documents)
    ]
    build_shards(raw, chats, config, tmp_path / "out", unit_bytes=UNIT)
    held_out = {document.text for document in documents if is_held_out(document_hash(document.text), 0.25)}
    train = " ".join(_texts(tmp_path / "out", "train")).lower()
    assert not [text for text in held_out if text.lower() in train]
    shards = open_shards(tmp_path / "out")
    assert shards.manifest.dropped["held_out_conversation"] > 0
    split_of = {text: split for split in SPLITS for text in _texts(tmp_path / "out", split)}
    tokenizer = Tokenizer.load(shards.tokenizer_path)
    trained = {
        tokenizer.decode(ids).split("¿")[1].split("?")[0] for ids, _ in shards.stream("train", "chat").documents()
    }
    for i in trained:
        words = documents[int(i)].text.lower()
        assert not [text for text, split in split_of.items() if split == "val" and text.lower()[:80] == words[:80]]


def test_a_weight_repeats_or_thins_what_is_trained_and_nothing_else(
    config: ShardsConfig, raw: list[Path], tmp_path: Path
) -> None:
    sources = b'[{"name": "a", "weight": 2.5}, {"name": "b", "weight": 0.5}]'
    build_shards(raw, [], config, tmp_path / "even", unit_bytes=UNIT)
    build_shards(raw, [], config, tmp_path / "out", sources, unit_bytes=UNIT)
    even, out = open_shards(tmp_path / "even"), open_shards(tmp_path / "out")
    for name, weight in (("a", 2.5), ("b", 0.5)):
        once, often = even.stream("train", name).n_documents, out.stream("train", name).n_documents
        assert abs(often - weight * once) <= 0.4 * once and often != once
        assert out.stream("val", name).n_documents == even.stream("val", name).n_documents
    decoded = _texts(tmp_path / "out", "train")
    assert {decoded.count(text) for text in decoded} == {1, 2, 3}
    assert set(decoded) <= set(_texts(tmp_path / "even", "train"))


def test_a_weight_that_leaves_nothing_is_refused(config: ShardsConfig, raw: list[Path], tmp_path: Path) -> None:
    with pytest.raises(EnlaceError, match=r"«a»: con weight 1e-09 no queda ninguno de sus \d+ documentos; súbelo"):
        build_shards(raw, [], config, tmp_path / "out", b'[{"name": "a", "weight": 1e-9}]')


def test_of_a_conversation_about_two_documents_the_held_out_one_stays_in_any_order(
    config: ShardsConfig, raw: list[Path], tmp_path: Path
) -> None:
    """Searches that find nothing: the same question and answer, about several documents."""
    said = (Message("user", "¿Quién fue Lucas?"), Message("assistant", "No lo he encontrado."))
    chats = [Conversation(said, digest) for digest in ("f" * 16, "0" * 16)]
    for name, order in (("one", chats), ("other", chats[::-1])):
        build_shards(raw, order, config, tmp_path / name)
        opened = open_shards(tmp_path / name)
        assert [split for split in SPLITS if "chat" in opened.names(split)] == ["val"]


def test_evaluation_sets_are_kept_out_of_conversations_too(
    config: ShardsConfig, raw: list[Path], tmp_path: Path
) -> None:
    item = "¿Cuál de estos dos animales domésticos duerme más horas al día, el gato o el perro?"
    chats = [
        Conversation((Message("user", text), Message("assistant", "El gato.")), "f" * 16) for text in (item, "¿Quién?")
    ]
    manifest = build_shards(raw, chats, config, tmp_path / "out", evals=EvalSet.of([item])).manifest
    assert manifest.dropped["contaminated_conversation"] == 1
    report = (tmp_path / "out" / "report.json").read_text(encoding="utf-8")
    assert '"found_in_text": 1' in report


# ── Killed, shared, refused ──────────────────────────────────────────────────────────────────────────────────────────


def _child(config: ShardsConfig, raw: Path, out: Path, when: int) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.data.child", config.model_dump_json(), raw, out, str(UNIT), str(when)]
    return subprocess.run([*map(str, command)], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)


def test_a_killed_build_goes_on_from_its_finished_units_to_the_same_bytes(
    config: ShardsConfig, raw: list[Path], tmp_path: Path
) -> None:
    """Lightning-AI/litData#137, marin-community/marin#2725: all progress lost, or half an output taken as finished."""
    whole = _child(config, tmp_path / "raw", tmp_path / "whole", 0)
    steps = int(whole.stdout)
    expected = _files(tmp_path / "whole")
    for when in (*random.Random(3).sample(range(2, steps), 3), steps):
        out = tmp_path / str(when) / "out"
        died = _child(config, tmp_path / "raw", out, when)
        assert died.returncode == -signal.SIGKILL and not out.exists()
        work = out.with_name("out.units.tmp")
        finished = len(list(work.glob("?-*.json"))) + len(list(work.glob("*.lengths.npy")))
        built = build_shards(raw, [], config, out, unit_bytes=UNIT)
        assert built.again == finished and _files(out) == expected
        assert {path.name for path in out.parent.iterdir()} == {"out", "out.lock.tmp", "out.units.lock.tmp"}


def test_what_was_left_by_another_recipe_or_other_text_is_not_used(
    config: ShardsConfig, raw: list[Path], tmp_path: Path
) -> None:
    _child(config, tmp_path / "raw", tmp_path / "out", 14)
    before = tmp_path / "out.units.tmp"
    assert list(before.glob("*.json"))
    other = config.model_copy(update={"min_chars": 30})
    assert build_shards(raw, [], other, tmp_path / "out", unit_bytes=UNIT).again == 0
    _child(config, tmp_path / "raw", tmp_path / "out2", 14)
    raw[0].write_bytes(raw[0].read_bytes().replace(b"perro", b"lobo "))
    assert build_shards(raw, [], config, tmp_path / "out2", unit_bytes=UNIT).again == 0


def test_files_of_one_recipe_are_not_vouched_for_by_the_report_of_another(
    config: ShardsConfig, raw: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Built with one, killed while building with another, and then back with the first."""
    expected = _files(build_out(raw, config, tmp_path / "whole"))
    with monkeypatch.context() as stopped:
        stopped.setattr(build.Table, "load", lambda bases: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            build_out(raw, config, tmp_path / "out")
    written = iter(range(100))

    def write(path: Path, data: bytes) -> None:
        if next(written) == 3:  # the texts, the table and the bands of one unit, and not its report
            raise KeyboardInterrupt
        write_atomic(path, data)

    with monkeypatch.context() as stopped:
        stopped.setattr(units, "write_atomic", write)
        with pytest.raises(KeyboardInterrupt):
            build_out(raw, config.model_copy(update={"min_chars": 10_000}), tmp_path / "out")
    assert _files(build_out(raw, config, tmp_path / "out")) == expected


def test_what_was_finished_before_a_refusal_or_a_full_disk_is_not_done_again(
    config: ShardsConfig, raw: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = _files(build_out(raw, config, tmp_path / "whole"))
    with pytest.raises(EnlaceError, match="vocab_size: los textos solo dan para"):
        build_out(raw, config.model_copy(update={"vocab_size": 60_000}), tmp_path / "out")
    finished = len(list((tmp_path / "out.units.tmp").glob("*.json")))

    def full(path: Path, data: bytes) -> None:
        raise EnlaceError(f"{path}: no se puede escribir (disco lleno)")

    with monkeypatch.context() as disk:
        disk.setattr(build, "write_atomic", full)
        with pytest.raises(EnlaceError, match=r"tokenizer\.json: no se puede escribir \(disco lleno\)"):
            build_out(raw, config, tmp_path / "out")
    built = build_shards(raw, [], config, tmp_path / "out", unit_bytes=UNIT)
    assert built.again == finished > 1 and _files(tmp_path / "out") == expected


def build_out(raw: list[Path], config: ShardsConfig, out: Path) -> Path:
    """Build the shards `out` in units of this test's size."""
    build_shards(raw, [], config, out, unit_bytes=UNIT)
    return out


def test_a_second_writer_stops(config: ShardsConfig, raw: list[Path], tmp_path: Path) -> None:
    """Lightning-AI/litData#866: several writers merged one index."""
    with (
        locked(tmp_path / "out.units.lock.tmp", ""),
        pytest.raises(EnlaceError, match="out: otro proceso lo está escribiendo"),
    ):
        build_shards(raw, [], config, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_worker_that_dies_is_told_and_what_was_finished_stays(
    config: ShardsConfig, raw: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build_shards(raw, [], config, tmp_path / "whole", unit_bytes=UNIT)
    monkeypatch.setattr(build, "clean_unit", mortal.clean_unit)
    with pytest.raises(WorkersLost, match=r"Un proceso de trabajo murió.*sigue donde estaba"):
        build_shards(raw, [], config, tmp_path / "out", work=Work(workers=2), unit_bytes=UNIT)
    finished = len(list((tmp_path / "out.units.tmp").glob("*.json")))
    built = build_shards(raw, [], config, tmp_path / "out", work=Work(workers=2), unit_bytes=UNIT)
    assert built.again == finished and _files(tmp_path / "out") == _files(tmp_path / "whole")


def test_workers_that_die_while_work_is_handed_out_are_told() -> None:
    with pytest.raises(WorkersLost, match="Un proceso de trabajo murió"), Work(workers=2).started(2) as pool:
        list(results(pool, os._exit, [1] * 20_000))


def test_without_processes_each_result_comes_when_it_is_there() -> None:
    asked: list[int] = []
    with Work(workers=1).started(3) as pool:
        done = results(pool, asked.append, [1, 2, 3])
        next(done)
        assert asked == [1]


def test_workers_end_with_the_main_process(tmp_path: Path) -> None:
    """Killed, it cannot tell them; they would wait for work for ever, and hold their memory."""
    psutil = pytest.importorskip("psutil", reason="psutil is not installed")
    script = tmp_path / "program.py"
    script.write_text(
        "import time\nfrom enlace.data.executors import Work, results\n"
        "if __name__ == '__main__':\n"
        "    with Work(workers=2).started(4) as pool:\n"
        "        for _ in results(pool, time.sleep, [0, 0, 100, 100]):\n"
        "            print('done', flush=True)\n",
        encoding="utf-8",
    )
    main = psutil.Popen([sys.executable, str(script)], stdout=subprocess.PIPE)
    assert main.stdout.readline() == main.stdout.readline() == b"done\n"
    workers = main.children(recursive=True)
    main.kill()
    main.wait()
    _, alive = psutil.wait_procs(workers, timeout=30)
    for process in alive:
        process.kill()
    assert len(workers) >= 2 and not alive


def test_ids_past_65535_are_refused_before_any_output(
    config: ShardsConfig, raw: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """allenai/dolma#142: ids over 65,535 wrap around in uint16, in silence."""
    monkeypatch.setattr(Tokenizer, "encode", lambda self, text: [65_536])
    with pytest.raises(EnlaceError, match="65536 o más, que no caben en uint16"):
        build_shards(raw, [], config, tmp_path / "out", unit_bytes=UNIT)
    assert not (tmp_path / "out").exists() and not list(tmp_path.rglob("*.ids"))


def test_a_document_across_two_shards_has_one_end(shards_config: Configure, raw: list[Path], tmp_path: Path) -> None:
    """NVIDIA/Megatron-LM#1774: the end of a document missing, or invented where a shard ends."""
    build_shards(raw, [], shards_config(shard_tokens=200), tmp_path / "out", unit_bytes=UNIT)
    shards = open_shards(tmp_path / "out")
    for stream in shards.streams:
        for ids, ends in zip(stream.tokens, stream.doc_ends, strict=True):
            assert (np.flatnonzero(ids == 0) + 1).tolist() == ends.tolist()
    assert len(shards.stream("train", "a").tokens) > 2


# ── A cluster ────────────────────────────────────────────────────────────────────────────────────────────────────────


def _cluster() -> Any:
    distributed = pytest.importorskip("distributed", reason="distributed is not installed: pip install -e '.[cluster]'")
    return distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None, silence_logs=50
    )


def test_a_cluster_writes_the_same_bytes_although_a_worker_is_killed(
    config: ShardsConfig, raw: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build_shards(raw, [], config, tmp_path / "here", unit_bytes=UNIT)
    monkeypatch.setattr(build, "clean_unit", mortal.clean_unit)
    with _cluster() as cluster:
        work = Work("dask", scheduler=cluster.scheduler_address)
        monkeypatch.chdir(tmp_path)  # the workers were started in another folder
        paths = [path.relative_to(tmp_path) for path in raw]
        build_shards(paths, [], config, Path("there"), work=work, unit_bytes=UNIT)
        assert (tmp_path / "died").exists()
        assert _files(tmp_path / "there") == _files(tmp_path / "here")
        # What is wrong with the data is said as it is said here.
        with pytest.raises(EnlaceError, match="los textos solo dan para"):
            build_shards(raw, [], config.model_copy(update={"vocab_size": 60_000}), tmp_path / "x", work=work)
        # What its futures raise when the scheduler goes.
        with pytest.raises(WorkersLost, match="dejó de responder a la mitad"), work.started(1):
            raise CancelledError


def test_a_cluster_that_is_not_there_is_told(config: ShardsConfig, raw: list[Path], tmp_path: Path) -> None:
    pytest.importorskip("distributed", reason="distributed is not installed")
    from enlace.data import executors

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(executors, "_PATIENCE", 1)
        with pytest.raises(WorkersLost, match=r"data\.scheduler: no responde nadie en tcp://127\.0\.0\.1:9"):
            build_shards(raw, [], config, tmp_path / "out", work=Work("dask", scheduler="tcp://127.0.0.1:9"))


@pytest.mark.slow
def test_memory_is_bounded_by_the_units_and_not_by_the_corpus(config: ShardsConfig, tmp_path: Path) -> None:
    """EleutherAI/gpt-neox#298: a reader that outran the tokenizer filled 250 GB."""
    psutil = pytest.importorskip("psutil", reason="psutil is not installed")
    drawn = random.Random(1)
    texts = (" ".join(f"{word}{drawn.randrange(10**6)}" for word in sentences()[0].split() * 60) for _ in range(20_000))
    (tmp_path / "raw").mkdir()
    _, size = write_documents(tmp_path / "raw/a.jsonl", (Document(f"a:{i}", t, "a", {}) for i, t in enumerate(texts)))
    assert size > 100e6
    rules = NO_RULES.model_copy(update={"personal_data": True, "near_duplicates": 0.7})
    settings = config.model_copy(
        update={"val_fraction": 0.01, "shard_tokens": 5_000_000, "vocab_size": 300, "clean": rules}
    )
    program = (
        "import sys; from pathlib import Path; from enlace.config.schema import ShardsConfig;"
        "from enlace.data.build import build_shards; from enlace.data.executors import Work;"
        "build_shards([Path(sys.argv[2])], [], ShardsConfig.model_validate_json(sys.argv[1]), Path(sys.argv[3]),"
        " work=Work(workers=2))"
    )
    script = tmp_path / "program.py"
    script.write_text(f"if __name__ == '__main__':\n    {program}\n", encoding="utf-8")
    arguments = [settings.model_dump_json(), str(tmp_path / "raw/a.jsonl"), str(tmp_path / "out")]
    build = psutil.Popen([sys.executable, str(script), *arguments])
    peak = 0
    while build.poll() is None:
        with suppress(psutil.NoSuchProcess, psutil.TimeoutExpired):
            peak = max(peak, sum(p.memory_info().rss for p in (build, *build.children(recursive=True))))
            build.wait(0.1)
    assert build.returncode == 0 and peak < 600e6, peak
