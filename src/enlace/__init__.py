"""ENLACE: train your own Spanish language model at home, from scratch, on one GPU."""

__version__ = "0.1.0"


class EnlaceError(Exception):
    """A failure with a way out: the base class of every error that a person can act on.

    The message is in Spanish, names the file, line or key at fault and says what to do. Commands and stages
    print it without a traceback and exit with `exit_status`.
    """

    exit_status = 1
