"""What a file may be, and what becomes of a damaged one (nothing of it is taken, and its name is told)."""

import gzip
import json
import sys
from pathlib import Path

import pytest

from enlace import EnlaceError
from enlace.config.schema import DebianSource, FolderSource, StdinSource
from enlace.data import corpus, jsonl
from enlace.data.corpus import documents_of, listing, unread_files
from enlace.data.documents import Document
from enlace.data.faults import Faults
from enlace.data.files import html_text, zstd

parquet = pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed")
import pyarrow as arrow  # noqa: E402

LINES = b"".join(json.dumps({"text": f"Texto {i}", "title": f"T{i}"}).encode() + b"\n" for i in range(1000))


def _source(path: str = ".") -> FolderSource:
    return FolderSource(
        kind="folder", name="casa", path=path, text_field="text", license="propia", attribution="yo", weight=1.0
    )


def _read(folder: Path, path: str = ".", max_share: float = 0.9) -> tuple[list[Document], Faults]:
    faults = Faults(max_share)
    return list(documents_of(_source(path), folder, faults)), faults


def _table(texts: list[object]) -> bytes:
    sink = arrow.BufferOutputStream()
    parquet.write_table(arrow.table({"text": texts, "title": ["t"] * len(texts), "n": range(len(texts))}), sink)
    return sink.getvalue().to_pybytes()


def test_every_format_plain_or_packed_gives_the_same_documents(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(LINES)
    (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress(LINES))
    (tmp_path / "c.JSONL.ZST").write_bytes(zstd.compress(LINES))
    (tmp_path / "d.parquet").write_bytes(_table([f"Texto {i}" for i in range(1000)]))
    documents, faults = _read(tmp_path)
    assert [len(documents), faults.found] == [4000, []]
    assert len({document.text for document in documents}) == 1000
    assert {document.id for document in documents} >= {"casa:b.jsonl.gz:1000", "casa:d.parquet:1"}
    assert documents[0].meta == {"title": "T0"} and documents[-1].meta == {"title": "t"}
    for name, data in {"e.txt": b"uno\n", "f.txt.gz": gzip.compress(b"dos"), "g.html": b"<p>tres"}.items():
        (tmp_path / name).write_bytes(data)
    assert [d.text for d in _read(tmp_path)[0] if not d.text.startswith("Texto")] == ["uno\n", "dos", "tres"]


def test_an_archive_of_two_members_is_whole(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(LINES) * 2)
    (tmp_path / "b.jsonl.zst").write_bytes(zstd.compress(LINES) * 2)
    assert len(_read(tmp_path)[0]) == 4000


@pytest.mark.parametrize(
    ("name", "data", "reason"),
    [
        ("a.jsonl.gz", gzip.compress(LINES)[:-20], "cortado"),
        ("a.jsonl.gz", gzip.compress(LINES) + b"basura", "dañado"),
        ("a.jsonl.gz", gzip.compress(LINES)[:-8] + b"\0" * 8, "dañado"),
        ("a.jsonl.gz", gzip.compress(LINES)[:20] + b"\xff" * 9 + gzip.compress(LINES)[29:], "dañado"),
        ("a.jsonl.zst", zstd.compress(LINES)[:-8], "cortado"),
        ("a.jsonl.zst", b"no es zstd", "dañado"),
        ("a.txt.gz", gzip.compress(b"bien " * 1000)[:-9], "cortado"),
        ("a.parquet", _table(["bien"] * 100)[:-10], "dañado"),
        ("a.parquet", b"", "dañado"),
        ("a.parquet", b"PAR1" + b"\xff" * 60 + _table(["bien"] * 100)[64:], "dañado"),
        ("a.html", b"<p>ma\xf1ana", "UTF-8"),
        ("a.txt", b"bien\nma\xf1ana\n", "UTF-8"),
    ],
)
def test_nothing_is_taken_from_a_damaged_file_and_its_name_is_told(
    tmp_path: Path, name: str, data: bytes, reason: str
) -> None:
    """SuperCowPowers/zat#143: a cut archive was accepted in part; and zstd readers say nothing at all."""
    (tmp_path / name).write_bytes(data)
    (tmp_path / "z.txt").write_bytes(b"sano")
    documents, faults = _read(tmp_path)
    assert [document.text for document in documents] == ["sano"]
    (fault,) = faults.found
    assert fault.whole_file and name in fault.where and reason in fault.reason
    faults.check("casa", documents=1)
    faults.max_share = 0.4
    with pytest.raises(EnlaceError, match=rf"1 de 2 archivos, más del 40 %.*{name}"):
        faults.check("casa", documents=1)
    with pytest.raises(EnlaceError, match=name):
        list(documents_of(_source(), tmp_path))


def test_bad_lines_are_told_one_by_one_and_the_rest_is_read(tmp_path: Path) -> None:
    lines = [
        b'{"text": "uno\xe2\x80\xa8dos\xc2\x85tres"}',
        b'{"text": null}',
        b'{"texto": "otra clave"}',
        b'{"text": "ma\xf1ana"}',
        b"{",
        b"[1]",
        b'{"text": "a", "text": "b", "n": NaN}',
        b'{"text": "medio \\ud83d"}',
    ]
    (tmp_path / "a.jsonl").write_bytes(b"\n".join(lines))
    (tmp_path / "b.parquet").write_bytes(_table(["bien", None]))
    (tmp_path / "c.parquet").write_bytes(_table([b"bien", b"ma\xf1ana"]))
    documents, faults = _read(tmp_path)
    texts = [document.text for document in documents]
    assert texts == ["uno\u2028dos\x85tres", "b", "medio \ud83d", "bien", "bien"]
    places = [fault.where.removeprefix(str(tmp_path)) for fault in faults.found]
    assert places == [
        "/a.jsonl:2",
        "/a.jsonl:3",
        "/a.jsonl:4",
        "/a.jsonl:5",
        "/a.jsonl:6",
        "/b.parquet:2",
        "/c.parquet:2",
    ]
    faults.max_share = 0.5
    with pytest.raises(EnlaceError, match=r"7 de 12 registros, más del 50 % que permite max_bad_share.*a\.jsonl:2"):
        faults.check("casa", documents=5)


def test_a_line_that_never_ends_is_passed_over_without_holding_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jsonl, "MAX_LINE", 1000)
    long = b'{"text": "' + b"a" * 5000 + b'"}\n'
    (tmp_path / "a.jsonl").write_bytes(b'{"text": "uno"}\n' + long + b'{"text": "dos"}\n' + long.rstrip())
    documents, faults = _read(tmp_path)
    assert [document.text for document in documents] == ["uno", "dos"]
    assert [fault.where.rpartition(":")[2] for fault in faults.found] == ["2", "4"]


def test_a_column_that_is_not_there_is_told_with_those_that_are(tmp_path: Path) -> None:
    sink = tmp_path / "a.parquet"
    parquet.write_table(arrow.table({"cuerpo": ["x"], "titulo": ["y"]}), sink)
    with pytest.raises(EnlaceError, match="falta la columna «text»; hay: cuerpo, titulo"):
        list(documents_of(_source(), tmp_path))


def test_a_source_may_be_a_file_or_a_pattern(tmp_path: Path) -> None:
    for name in ("a/uno.txt", "a/b/dos.txt", "a/b/tres.md", "c/cuatro.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name, encoding="utf-8")
    assert [d.id for d in _read(tmp_path, "a/uno.txt")[0]] == ["casa:uno.txt"]
    assert [d.id for d in _read(tmp_path, "a/**/*.txt")[0]] == ["casa:b/dos.txt", "casa:uno.txt"]
    assert [d.id for d in _read(tmp_path, str(tmp_path / "?" / "*.txt"))[0]] == ["casa:a/uno.txt", "casa:c/cuatro.txt"]
    assert unread_files(_source("a/**/*"), tmp_path) == ["b/tres.md"]
    assert listing(_source("a"), tmp_path) != listing(_source("c"), tmp_path)
    with pytest.raises(EnlaceError, match=r"«casa»: no hay textos con path=a/\*\.jsonl; se leen .*basta su nombre"):
        _read(tmp_path, "a/*.jsonl")
    with pytest.raises(EnlaceError, match="pon ahí archivos"):
        _read(tmp_path, "d")


def test_signs_in_the_name_of_a_folder_are_no_pattern(tmp_path: Path) -> None:
    home = tmp_path / "proyecto [1]"
    (home / "textos [2024]").mkdir(parents=True)
    (home / "textos [2024]/uno.txt").write_text("uno", encoding="utf-8")
    assert [d.id for d in _read(home, "textos [2024]")[0]] == ["casa:uno.txt"]
    assert [d.id for d in _read(home, "*/*.txt")[0]] == ["casa:textos [2024]/uno.txt"]


def test_hidden_files_are_not_read(tmp_path: Path) -> None:
    """macOS leaves "._uno.txt" beside each file on a stick, and it is no text."""
    (tmp_path / ".cache").mkdir()
    for name in ("uno.txt", "._uno.txt", ".cache/dos.txt"):
        (tmp_path / name).write_bytes(b"uno" if name == "uno.txt" else b"\xff")
    for path in (".", "**/*.txt"):
        assert [d.id for d in _read(tmp_path, path)[0]] == ["casa:uno.txt"]


def test_faults_are_all_counted_and_the_first_are_kept() -> None:
    faults = Faults(0.5)
    for number in range(3000):
        faults.add(f"a.jsonl:{number}", "mal")
    assert (faults.records, len(faults.found)) == (3000, 1000)
    with pytest.raises(EnlaceError, match=r"3000 de 3010 registros.*a\.jsonl:0"):
        faults.check("casa", documents=10)


def test_a_package_is_judged_by_all_its_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(200):
        (tmp_path / f"{number}.html").write_bytes(b"<p>bien</p>" if number else b"<p>ma\xf1ana</p>")
    monkeypatch.setattr(corpus, "unpacked_debian", lambda source, folder: tmp_path)
    source = DebianSource(
        kind="debian", name="ayuda", package="ayuda-es", files="*.html", optional=False, text_field="text",
        license="x", attribution="y", weight=1.0,
    )  # fmt: skip
    faults = Faults(0.01)
    assert len(list(documents_of(source, tmp_path, faults))) == 199
    faults.check("ayuda", 199)
    assert [fault.where for fault in faults.found] == ["ayuda-es/0.html:1"]


def test_documents_come_through_the_standard_input(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    source = StdinSource(kind="stdin", name="tubo", text_field="text", license="x", attribution="y", weight=1.0)
    with (tmp_path / "in").open("w+b") as file:
        file.write(b'{"text": "uno"}\n{"text": 3}\n')
        file.seek(0)
        monkeypatch.setattr(sys, "stdin", type("Stdin", (), {"buffer": file}))
        faults = Faults(0.5)
        assert list(documents_of(source, tmp_path, faults)) == [Document("tubo:1", "uno", "tubo", {})]
    assert [fault.where for fault in faults.found] == ["stdin:2"]


def test_a_page_gives_its_text_without_what_is_around_it() -> None:
    page = """<html><head><title>No</title></head><body><nav>Menú</nav><h1>El
      mate</h1><p>Se ceba  con <b>agua</b> caliente.<br>Nunca hirviendo.</p><script>x()</script>
      <ul><li>Uno</li><li>Dos</li></ul><footer>Pie</footer></body></html>"""
    assert html_text(page.encode()) == "El mate\nSe ceba con agua caliente.\nNunca hirviendo.\nUno\nDos"
    assert html_text(b"") == ""
