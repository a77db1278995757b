"""The two distillation stages, from corpus to conversations, with the embedded teacher."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from enlace.data.distill import DistillError
from enlace.data.documents import Document, write_documents
from enlace.stages import distill_collect, distill_submit

ROOT = Path(__file__).parents[2]
TEXT = "Gambia es un país de África occidental. Su capital es Banjul."


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    shutil.copytree(ROOT / "configs", tmp_path / "configs")
    shutil.copy(ROOT / "params.yaml", tmp_path)
    for folder in ("raw", "specs"):
        (tmp_path / "data" / folder).mkdir(parents=True)
    for name in ("DVC_ROOT", "LEDGER_DIR", "DISTILL_BUDGET_USD", "ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    document = Document("wiki:Gambia", TEXT, "wiki", {"title": "Gambia", "topic": "Geografía"})
    write_documents(Path("data/raw/wiki.jsonl"), [document])
    Path("data/specs/casa.jsonl").write_text('{"system": "s", "user": "Cuéntame algo."}\n', encoding="utf-8")
    return tmp_path


def outputs(project: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (project / "data" / "distill").iterdir()}


def run() -> None:
    distill_submit.main()
    distill_collect.main()


def test_from_corpus_to_conversations(project: Path) -> None:
    run()
    first = outputs(project)
    conversations = [json.loads(line) for line in first["conversations.jsonl"].splitlines()]
    assert len(conversations) == 2
    assert all(row["assistant"] in TEXT and row["meta"]["document"] == "wiki:Gambia" for row in conversations)
    assert set(conversations[0]) == {"custom_id", "system", "user", "assistant", "meta"}
    (error,) = [json.loads(line) for line in first["errors.jsonl"].splitlines()]
    assert (error["class"], error["user"]) == ("sin_pasaje", "Cuéntame algo.")
    assert json.loads(first["usage.json"])["resultados"] == 2
    assert json.loads(first["receipt.json"])["requests"] == 3

    shutil.rmtree(project / "data" / "distill")
    run()
    assert outputs(project) == first


def test_a_new_request_alone_is_sent(project: Path) -> None:
    run()
    with Path("data/specs/casa.jsonl").open("a", encoding="utf-8") as file:
        file.write('{"system": "s", "user": "Otra cosa."}\n')
    run()
    batches = json.loads((project / "data/distill/receipt.json").read_bytes())["batches"]
    assert len(batches) == 2
    assert len((project / "data/distill/errors.jsonl").read_bytes().splitlines()) == 2


def test_without_its_ledger_the_receipt_is_not_believed(project: Path) -> None:
    run()
    shutil.rmtree(project / "data" / "ledger")
    with pytest.raises(DistillError, match=r"traer data/ledger.*distill-submit"):
        distill_collect.main()


@pytest.mark.parametrize("content", [None, b'{"job": ', b"\xff", b"[]", b'{"job": 3}', b"{}"])
def test_a_damaged_receipt_says_how_to_get_another(project: Path, content: bytes | None) -> None:
    run()
    receipt = project / "data/distill/receipt.json"
    receipt.unlink()
    if content is not None:
        receipt.write_bytes(content)
    with pytest.raises(DistillError, match=r"receipt\.json: .*dvc repro -f -s distill-submit"):
        distill_collect.main()


def test_a_batch_of_other_requests_may_be_lost(project: Path) -> None:
    run()
    (lost,) = json.loads((project / "data/distill/receipt.json").read_bytes())["batches"]
    Path("data/specs/casa.jsonl").write_text('{"system": "s", "user": "Otra cosa."}\n', encoding="utf-8")
    Path("data/raw/wiki.jsonl").write_bytes(b"")
    distill_submit.main()
    (job,) = (project / "data/ledger").iterdir()
    shutil.rmtree(job / "raw")
    (job / "extractivo" / f"{lost}.jsonl").unlink()
    distill_collect.main()
    assert len((project / "data/distill/errors.jsonl").read_bytes().splitlines()) == 1


def test_nothing_is_bought_without_a_budget(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    params = project / "params.yaml"
    params.write_text(params.read_text(encoding="utf-8").replace("teacher: extractive", "teacher: anthropic"), "utf-8")
    with pytest.raises(DistillError, match=r"3 peticiones.*DISTILL_BUDGET_USD"):
        distill_submit.main()
    assert not (project / "data/distill").exists()
    monkeypatch.setenv("DISTILL_BUDGET_USD", "5")
    with pytest.raises(DistillError, match="ANTHROPIC_API_KEY"):  # past the budget, up to the credential
        distill_submit.main()


def test_a_receipt_of_another_teacher_is_told_apart_from_a_lost_ledger(project: Path) -> None:
    run()
    before = outputs(project)
    params = project / "params.yaml"
    params.write_text(params.read_text(encoding="utf-8").replace("teacher: extractive", "teacher: compatible"), "utf-8")
    with pytest.raises(DistillError, match=r"es del trabajo extractive-\w+, .*compatible-.*dvc repro"):
        distill_collect.main()
    assert outputs(project) == before
