"""Words for the person while the harness works."""

from __future__ import annotations


def tell(message: str) -> None:
    """Print a line."""
    from enlace.console import say  # rich takes a while to import, and most uses of this package say nothing

    say(message)


def named(error: Exception) -> str:
    """A failure that nobody foresaw, for a message."""
    return f"{type(error).__name__}: {error}"[:500]
