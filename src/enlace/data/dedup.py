"""One hash of what a document says, which tells exact duplicates and decides the split.

The split depends on nothing but the text: a copy of a held-out document can never be trained on, whatever source it
comes from and in whatever order it is read, and adding documents never moves old ones across.
"""

from __future__ import annotations

from hashlib import blake2b

from enlace.data.clean import normalise

_BITS = 64  # enough: among ten million documents a chance collision has odds of three in a million


def document_hash(text: str) -> str:
    """Hash (16 hexadecimal digits) of the text normalised, case-folded and with its white space squeezed.

    Raw and normalised text have the same hash, so a passage taken from data/raw finds its document in the shards.
    """
    return folded_digest(normalise(text)).hex()


def folded_digest(normal: str) -> bytes:
    """The eight bytes of that hash, for a text that is normalised already."""
    # As " ".join(normal.casefold().split()), four times sooner: normal text has no other white space than these three.
    folded = normal.casefold().replace("\n", " ").replace("\t", " ")
    while "  " in folded:
        folded = folded.replace("  ", " ")
    folded = folded.strip(" ")
    return blake2b(folded.encode("utf-8"), digest_size=_BITS // 8).digest()


def is_held_out(document_hash: str, val_fraction: float) -> bool:
    """Whether the document with this hash belongs to validation: true for `val_fraction` of all hashes."""
    return int(document_hash, 16) / (1 << _BITS) < val_fraction
