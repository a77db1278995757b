"""The page of the sources and the picture of the corpus; and sources that this machine cannot get."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from enlace import EnlaceError
from enlace.config.schema import DebianSource, FolderSource
from enlace.data import fetch
from enlace.data.corpus import documents_of
from enlace.data.describe import REASONS, corpus_picture, sources_page, spanish_count
from enlace.data.fetch import Unavailable
from enlace.data.shards import Shards
from enlace.stages import fetch_corpus

DEBIAN = DebianSource(
    kind="debian",
    name="manual",
    package="manual-es",
    files="usr/**/*.html",
    optional=True,
    text_field="text",
    license="GPL-2",
    attribution="Debian",
    weight=1.0,
)


def test_the_page_says_origin_licence_digest_documents_and_tokens(small_shards: Shards) -> None:
    source = {
        "name": "cuentos",
        "kind": "folder",
        "license": "CC | BY",
        "attribution": "Nadie",
        "weight": 2.0,
        "sha256": "a" * 64,
        "documents": 250,
    }
    page = sources_page([source], small_shards.manifest)
    tokens = sum(small_shards.stream(split, "cuentos").n_tokens for split in ("train", "val"))
    train, val = (small_shards.stream(split, "cuentos").n_documents for split in ("train", "val"))
    assert f"| cuentos | folder | CC \\| BY | 2 | 250 | {train} | {val} | {tokens} | `{'a' * 16}…` |" in page
    assert "**cuentos**: Nadie" in page and "Conversaciones (train)" in page


def test_the_picture_is_the_same_for_the_same_corpus(small_shards: Shards) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is not installed: pip install -e '.[pipeline]'")
    report = json.loads((small_shards.folder / "report.json").read_bytes())
    picture = corpus_picture(small_shards.manifest, report)
    assert picture.startswith(b"\x89PNG") and picture == corpus_picture(small_shards.manifest, report)
    lengths = report["bytes_histogram"]["cuentos"] = {"64": 10, "1024": 3, "128": 5}  # as JSON sorts keys, or not
    unsorted = corpus_picture(small_shards.manifest, report)
    report["bytes_histogram"]["cuentos"] = dict(sorted(lengths.items(), key=lambda item: int(item[0])))
    assert corpus_picture(small_shards.manifest, report) == unsorted
    report["dropped"]["short"] = 50
    assert corpus_picture(small_shards.manifest, report) != picture


def test_every_reason_has_a_name(small_shards: Shards) -> None:
    assert set(small_shards.manifest.dropped) <= set(REASONS)
    assert spanish_count(REASONS, "short", 1) == "1 corto" and spanish_count(REASONS, "short", 3) == "3 cortos"


# ── Debian ───────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def mirror(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An apt-get that knows one package, made by the real dpkg-deb, which unpacks it again."""
    if not fetch.shutil.which("dpkg-deb"):
        pytest.skip("dpkg-deb is not here")
    tree = tmp_path / "tree"
    (tree / "DEBIAN").mkdir(parents=True)
    control = "Package: manual-es\nVersion: 1.0\nArchitecture: all\nMaintainer: N <n@example.org>\nDescription: d\n"
    (tree / "DEBIAN/control").write_text(control)
    (tree / "usr/share").mkdir(parents=True)
    (tree / "usr/share/a.html").write_text("<p>El mate se ceba con agua.</p>", encoding="utf-8")
    (tree / "usr/share/a.png").write_bytes(b"\x89PNG")
    subprocess.run(["dpkg-deb", "--build", tree, tmp_path / "manual-es.deb"], check=True, capture_output=True)
    bin = tmp_path / "bin"
    bin.mkdir()
    script = (
        f'#!/bin/sh\n[ "$5" = manual-es ] || {{ echo "E: no hay $5" >&2; exit 100; }}\ncp {tmp_path}/manual-es.deb .\n'
    )
    (bin / "apt-get").write_text(script)
    (bin / "apt-get").chmod(0o755)
    monkeypatch.setenv("PATH", f"{bin}:/usr/bin:/bin")
    return bin


def test_a_debian_package_is_unpacked_and_never_installed(mirror: Path, tmp_path: Path) -> None:
    (document,) = documents_of(DEBIAN, tmp_path)
    assert (document.id, document.text) == ("manual:usr/share/a.html", "El mate se ceba con agua.")
    with pytest.raises(EnlaceError, match="manual-es no tiene archivos opt"):
        list(documents_of(DEBIAN.model_copy(update={"files": "opt/*.html"}), tmp_path))
    with pytest.raises(Unavailable, match=r"otro-es.*apt dice: no hay otro-es.*apt-get update"):
        list(documents_of(DEBIAN.model_copy(update={"package": "otro-es"}), tmp_path))


def test_without_apt_an_optional_source_is_left_out_and_another_stops(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.txt").write_text("Texto propio.", encoding="utf-8")
    own = FolderSource(
        kind="folder", name="casa", path="a.txt", text_field="text", license="x", attribution="y", weight=1.0
    )

    def run(*sources: Any) -> None:
        config = SimpleNamespace(corpus=SimpleNamespace(sources=sources, max_bad_share=0.0))
        monkeypatch.setattr(fetch_corpus, "load_config", lambda: config)
        fetch_corpus.main()

    run(DEBIAN, own)
    assert "aviso: sin esta fuente: «manual»: aquí no hay apt-get" in capsys.readouterr().out
    assert sorted(path.name for path in (tmp_path / "data/raw").iterdir()) == [
        "casa.jsonl",
        "faults.json",
        "sources.json",
    ]
    with pytest.raises(Unavailable, match="corpus: propio"):
        run(DEBIAN.model_copy(update={"optional": False}), own)
    with pytest.raises(EnlaceError, match="Ninguna fuente"):
        run(DEBIAN)


def test_faults_within_the_share_are_told_and_written_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.jsonl").write_text('{"text": "uno"}\n{"text": null}\n{"text": "dos"}\n', encoding="utf-8")
    own = FolderSource(
        kind="folder", name="casa", path="a.jsonl", text_field="text", license="x", attribution="y", weight=1.0
    )
    for share, works in ((0.5, True), (0.2, False)):
        config = SimpleNamespace(corpus=SimpleNamespace(sources=(own,), max_bad_share=share))
        monkeypatch.setattr(fetch_corpus, "load_config", lambda config=config: config)
        if works:
            fetch_corpus.main()
        else:
            with pytest.raises(EnlaceError, match="1 de 3 registros"):
                fetch_corpus.main()
    said = capsys.readouterr().out
    assert "casa: 1 registros o archivos ilegibles" in said and "a.jsonl:2: falta «text»" in said
    assert json.loads((tmp_path / "data/raw/faults.json").read_bytes())["casa"][0][0].endswith("a.jsonl:2")
    assert "2 documentos" in said
