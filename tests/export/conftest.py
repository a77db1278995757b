"""A small trained model on disk, whose every part matters: no gain is 1 and no two rows are alike."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from enlace.config.load import load_config
from enlace.config.schema import AgentConfig, ModelConfig
from enlace.data.documents import Document
from enlace.data.shards import Shards
from enlace.export.trained import Trained, load_trained
from enlace.export.weights import save_weights
from enlace.model.transformer import Transformer
from tests.conftest import ROOT, sentences

# What splitters, normalisers and converters get wrong: newline groups after signs, digits, quotes, spaces, emoji.
HARD_TEXTS = [
    "Primera línea.\n\nSegunda línea:\n- uno\n- dos\n\n\n\nFin…\n",
    "«¿Qué?», dijo; ¡y se fue!\r\n\tTabulado\t\tdos",
    "Cuesta 1.234,56 € (un 12 %) el 30-11-2026 a las 09:45.",
    "  dos espacios al principio, y al final  ",
    "l'home d'aquí; it's, we'll, I'M",
    "niño 👩‍🚀 señor ½ ²³ ñandú àèìòù ÑÁÉÍÓÚÜ",
    "def f(x):\n    return x[0] + {'a': 1}\n",
    "https://ejemplo.es/ruta?a=1&b=2#c usuario@ejemplo.es",
    "漢字かな交じり文 Русский текст ελληνικά",
    "...!!!???---___***\n\n===\n",
    "a" * 300 + " " * 40 + "\n" * 7 + ".",
    "\u00a0espacio duro\u200bcero\ufeffmarca",
]


@pytest.fixture(scope="session")
def source(small_shards: Shards, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a model of random weights, with its card beside it."""
    config = ModelConfig(
        d_model=64, n_layers=3, n_heads=4, n_kv_heads=2, intermediate_size=96, rope_theta=10000.0, rms_norm_eps=1e-6
    )
    generator = torch.Generator().manual_seed(5)
    model = Transformer(config, small_shards.manifest.vocab_size).initialise(generator)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name:
                parameter.copy_(0.5 + torch.rand(parameter.shape, generator=generator))
            else:  # what it says must depend on what it read, and not only on the last token
                parameter.mul_(4)
    folder = tmp_path_factory.mktemp("modelo") / "enlace"
    save_weights(folder, model, small_shards.tokenizer_path.read_bytes(), 256, {"run": "abc123", "model": "prueba"})
    (folder.parent / "MODEL_CARD.md").write_text("# ENLACE prueba\nEjecución abc123. Licencia: propia.\n")
    return folder


@pytest.fixture(scope="session")
def card(source: Path) -> Path:
    """The card of `source`."""
    return source.parent / "MODEL_CARD.md"


@pytest.fixture(scope="session")
def trained(source: Path) -> Trained:
    """`source`, loaded."""
    return load_trained(source)


@pytest.fixture(scope="session")
def agent() -> AgentConfig:
    """How the model is talked to."""
    return load_config(ROOT).agent


@pytest.fixture(scope="session")
def texts(documents_of_fixtures: list[Document]) -> list[str]:
    """400 and more texts to tokenise."""
    whole = [document.text for document in documents_of_fixtures]
    lines = [line + "\n" for text in whole for line in text.split("\n") if line]
    return [
        *HARD_TEXTS,
        *whole,
        *lines,
        *sentences(),
        *map(str.upper, sentences()[::3]),
        *(f"{a}\n\n{b}" for a, b in zip(whole, reversed(whole))),
    ]


@pytest.fixture(scope="session")
def documents_of_fixtures() -> list[Document]:
    """The documents of tests/fixtures/textos."""
    from enlace.config.schema import FolderSource
    from enlace.data.corpus import documents_of

    source = FolderSource(
        kind="folder", name="casa", path="textos", text_field="text", license="x", attribution="x", weight=1.0
    )
    return list(documents_of(source, ROOT / "tests" / "fixtures"))
