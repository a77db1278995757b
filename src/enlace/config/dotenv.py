"""Secrets and machine settings out of `.env`, by hand: a few lines that bash reads the same way.

`scripts/remote.sh` reads the same file with bash, so a line that bash and this reader would understand differently is
refused. Values never reach a message, a log or a return value.
"""

from __future__ import annotations

import os
import re
import sys
from contextlib import suppress
from pathlib import Path

from enlace import EnlaceError
from enlace.config.paths import main_checkout

_ASSIGNMENT = re.compile(r"(?:export[ \t]+)?([A-Za-z_][A-Za-z0-9_]*)=(.*)", re.DOTALL)
# What bash takes as it stands, after `export` too: no quotes, expansions, escapes or braces. A comment follows white
# space; a # inside a word is part of it.
_PLAIN = re.compile(r"([A-Za-z0-9_./:@%+,=^?*\[\]#\x80-\U0010ffff-]*)(?:[ \t]+#.*|[ \t]*)")
_SINGLE = re.compile(r"'([^']*)'(?:[ \t]+#.*|[ \t]*)")
_DOUBLE = re.compile(r'"((?:[^"$`\\!]|\\")*)"(?:[ \t]+#.*|[ \t]*)')
# Variables that bash makes by itself, and would not take from a file.
_OF_BASH = re.compile(
    r"_|E?UID|PPID|BASH.*|SHELLOPTS|S?RANDOM|SECONDS|LINENO|GROUPS|FUNCNAME|DIRSTACK|EPOCH.*|HISTCMD|OPTIND|PIPESTATUS"
)
_NOT_UTF8 = re.compile("[\udc80-\udcff]")
_OTHERS = 0o077  # the mode's bits of everybody but the owner


def load_dotenv(path: str | Path = ".env") -> list[str]:
    """Set the variables of the file that the environment does not have yet; no file, nothing to do.

    A relative `path` that is not in the current folder is looked for in the project's: a command may run in a folder
    of it, and DVC runs temporary and queued experiments in a clone, which has no `.env` (``$DVC_ROOT`` says where the
    project is).

    A variable that exists wins, also when it is empty. An empty value in the file is not set: an empty credential
    authenticates worse than an absent one. A repeated key: the last one counts, as in bash. Warns on stderr of a file
    with values in it that other users of the machine can read.

    Returns:
        The names that were set, in the order of the file; never values.

    Raises:
        EnlaceError: a line that is not a plain assignment; the message names file, line and variable, never the value.
    """
    path = Path(path)
    if not os.path.lexists(path):
        with suppress(EnlaceError):  # no project here
            path = main_checkout() / path  # an absolute path stays as it is
    try:
        text = path.read_bytes().decode("utf-8", "surrogateescape")  # strict, its exception would carry the whole file
        mode = path.stat().st_mode
    except FileNotFoundError:
        return []
    except OSError:
        raise EnlaceError(f"{path}: no se puede leer: mira que sea un archivo y que tengas permiso.") from None
    if _NOT_UTF8.search(text):
        raise EnlaceError(f"{path}: no es UTF-8; guarda el archivo en UTF-8.")
    values: dict[str, str] = {}
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip(" \t") and not line.lstrip(" \t").startswith("#"):
            name, value = _parse(line.lstrip(" \t"), f"{path}:{number}")
            values[name] = value
    if any(values.values()) and mode & _OTHERS:
        print(f"aviso: {path} lo pueden leer otros usuarios; ciérralo con: chmod 600 {path}", file=sys.stderr)
    names = [name for name, value in values.items() if value and name not in os.environ]
    os.environ.update({name: values[name] for name in names})
    return names


def _parse(line: str, where: str) -> tuple[str, str]:
    if line.startswith("\ufeff"):
        raise EnlaceError(f"{where}: empieza con una marca BOM; guarda el archivo en UTF-8 sin BOM.")
    assignment = _ASSIGNMENT.fullmatch(line)
    if not assignment:
        raise EnlaceError(f"{where}: no es VARIABLE=valor, sin espacios junto al igual.")
    name, text = assignment.groups()
    if _OF_BASH.fullmatch(name):
        raise EnlaceError(f"{where}: {name} es una variable propia de bash; quítala o dale otro nombre.")
    if text.endswith("\r"):
        raise EnlaceError(
            f"{where}: la línea de {name} acaba como en Windows; conviértelas con: sed -i 's/\\r$//' .env"
        )
    for form in (_PLAIN, _SINGLE, _DOUBLE):
        if (value := form.fullmatch(text)) and "\0" not in text:
            return name, value[1].replace('\\"', '"') if form is _DOUBLE else value[1]
    raise EnlaceError(
        f"{where}: el valor de {name} lleva signos que bash leería de otra manera; ponlo entre comillas simples, en "
        f"una sola línea y sin comillas simples dentro."
    )
