"""What the tests of the data share: the texts of tests/fixtures, and a tokenizer and a configuration of their size."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from enlace.config.schema import FolderSource, ShardsConfig
from enlace.data.corpus import documents_of
from enlace.data.documents import Document
from enlace.data.tokenizer import Tokenizer, train_tokenizer
from tests.conftest import NO_RULES

settings.register_profile("enlace", deadline=None)  # a busy machine is not a bug
settings.load_profile("enlace")

FIXTURES = Path(__file__).parent.parent / "fixtures"


@pytest.fixture(scope="session")
def documents() -> list[Document]:
    """The 24 documents of tests/fixtures/textos."""
    source = FolderSource(
        kind="folder", name="casa", path="textos", text_field="text", license="propia", attribution="ENLACE", weight=1.0
    )
    return list(documents_of(source, FIXTURES))


@pytest.fixture(scope="session")
def tokenizer_path(documents: list[Document], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tokenizer.json of 400 entries trained on the documents."""
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    train_tokenizer((document.text for document in documents), 400).save(str(path))
    return path


@pytest.fixture(scope="session")
def tokenizer(tokenizer_path: Path) -> Tokenizer:
    """That tokenizer, loaded."""
    return Tokenizer.load(tokenizer_path)


@pytest.fixture
def shards_config() -> Callable[..., ShardsConfig]:
    """A `ShardsConfig` that suits the documents, with what the test changes."""

    def make(**changed: Any) -> ShardsConfig:
        values = {"vocab_size": 400, "tokenizer_bytes": 10**6, "val_fraction": 0.25, "min_chars": 20}
        values |= {"shard_tokens": 1000, "clean": NO_RULES}
        return ShardsConfig.model_validate(values | changed)

    return make
