"""A trained model ready to use: weights, tokenizer and how much it reads at once."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from enlace import EnlaceError
from enlace.data.tokenizer import Tokenizer
from enlace.export.weights import damaged, load_weights
from enlace.model.transformer import Transformer


@dataclass(frozen=True)
class Trained:
    """What `models/enlace` holds."""

    model: Transformer
    tokenizer: Tokenizer
    context_length: int  # tokens

    @property
    def stop_ids(self) -> frozenset[int]:
        """Tokens that end what the model says."""
        return frozenset({self.tokenizer.im_end_id, self.tokenizer.end_of_text_id})


def load_trained(folder: Path) -> Trained:
    """Read a trained model, onto the CPU; `EnlaceError` when it is not there or damaged."""
    model, context_length = load_weights(folder)
    try:
        tokenizer = Tokenizer.load(folder / "tokenizer.json")
    except EnlaceError:
        raise damaged(folder) from None
    if tokenizer.vocab_size != model.embed_tokens.num_embeddings:
        raise damaged(folder)
    return Trained(model, tokenizer, context_length)
