"""Merge params.yaml and the layer files that it names into one validated, frozen `Config`.

All problems of all files are collected and reported in one error, so that nobody fixes a configuration one run at a
time.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar, cast

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from enlace import EnlaceError
from enlace.config import rules, yaml12
from enlace.config.paths import project_root
from enlace.config.schema import Config, DistillConfig, HardwareConfig, LayerNames, ModelConfig

NAMED = ("hardware", "model", "corpus", "teacher", "agent")
VALUES = ("data", "train", "eval")
_Layer = TypeVar("_Layer", bound=BaseModel)


class ConfigError(EnlaceError):
    """A configuration that cannot be used; the message lists every problem."""


def load_config(
    root: Path | None = None,
    *,
    params: Path | None = None,
    hardware: str | None = None,
    changes: Mapping[str, Any] | None = None,
    consistent: bool = True,
) -> Config:
    """The configuration of the project at `root` (default: the one around the current folder).

    Args:
        root: the project folder.
        params: another file in place of `params.yaml`, such as a preset.
        hardware: another hardware profile in place of the one that `params.yaml` names.
        changes: other values of `params.yaml`, by dotted key ("train.lr").
        consistent: whether the layers must go together (`rules.problems`); not for who only asks one of them.

    Raises:
        ConfigError: a file is missing or malformed, a key is unknown or missing, a value or a combination is wrong.
    """
    root = root or project_root()
    params = params or root / "params.yaml"
    values = _mapping(params, root)
    if hardware is not None:
        values["hardware"] = hardware
    for key, value in (changes or {}).items():
        _change(values, key, value)
    if unknown := [key for key in values if key not in (*NAMED, *VALUES)]:
        raise ConfigError("\n".join(f"{_shown(params, root)}: {_unknown(key, [*NAMED, *VALUES])}" for key in unknown))
    layers = _layer_names(values, params, root)

    merged: dict[str, Any] = {"layers": layers}
    files: dict[str, str] = {}
    for layer in NAMED:
        path = root / layers.path(cast(Any, layer))
        section = "distill" if layer == "teacher" else layer
        merged[section] = _teacher(path, root) if layer == "teacher" else _mapping(path, root, names=layer)
        files[section] = _shown(path, root)
    merged |= {section: values[section] for section in VALUES if section in values}
    try:
        config = Config.model_validate(merged)
    except ValidationError as error:
        raise _config_error(error, files, _shown(params, root)) from None
    if consistent and (broken := list(rules.problems(config))):
        raise ConfigError("\n".join(broken))
    return config


def _change(values: dict[str, Any], dotted: str, value: Any) -> None:
    *sections, last = dotted.split(".")
    for section in sections:
        values = values[section] if isinstance(values.get(section), dict) else {}
    if last not in values:
        raise ConfigError(f"params.yaml: no hay ninguna clave «{dotted}»{similar(last, list(values))}.")
    values[last] = value


def load_distill_config(root: Path | None = None, teacher: str | None = None) -> DistillConfig:
    """The layer of the teacher that `params.yaml` names (or of another, `teacher`), alone.

    Raises `ConfigError` as `load_config` does.
    """
    root = root or project_root()
    params = root / "params.yaml"
    values = _mapping(params, root)
    if teacher is not None:
        values["teacher"] = teacher
    path = root / _layer_names(values, params, root).path("teacher")
    try:
        return DistillConfig.model_validate(_teacher(path, root))
    except ValidationError as error:
        raise _config_error(error, {}, _shown(path, root)) from None


def _teacher(path: Path, root: Path) -> dict[str, Any]:
    """The layer of a teacher; without prices of its own it takes those of its model, if the table has them."""
    values = _mapping(path, root, names="teacher")
    table = path.parent / "prices" / f"{values.get('teacher', 'anthropic')}.yaml"
    if "prices" not in values and table.is_file():
        listed = _mapping(table, root)
        models = listed.get("models")
        if not isinstance(models, dict) or not all(isinstance(row, dict) for row in models.values()):
            raise ConfigError(f"{_shown(table, root)}: models tiene que ser una lista de modelos con sus precios.")
        row = models.get(values.get("model", DistillConfig().model))
        values["prices"] = None if row is None else {"taken": listed.get("taken", ""), **row}
    return values


def hardware_profiles(root: Path) -> dict[str, HardwareConfig]:
    """Every profile of configs/hardware by name, those that do not validate left out."""
    return _every(root, "hardware", HardwareConfig)


def model_shapes(root: Path) -> dict[str, ModelConfig]:
    """Every shape of configs/model by name, those that do not validate left out."""
    return _every(root, "model", ModelConfig)


def _every(root: Path, layer: str, schema: type[_Layer]) -> dict[str, _Layer]:
    found = {}
    for path in sorted((root / "configs" / layer).glob("*.yaml")):
        try:
            found[path.stem] = schema.model_validate(_mapping(path, root))
        except (ValidationError, ConfigError):
            continue  # it is reported when somebody chooses it
    return found


def choose_hardware(root: Path, name: str) -> None:
    """Write `hardware: <name>` into params.yaml, leaving every other line (comments too) as it is.

    Raises:
        ConfigError: no such profile, or the configuration does not work with it. params.yaml is not touched then.
    """
    load_config(root, hardware=name)
    path = root / "params.yaml"
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    for i, line in enumerate(lines):
        if re.match(r"""(["']?)hardware\1[ \t]*:""", line):
            _, hash_sign, comment = line.rstrip("\n").partition("#")
            lines[i] = f"hardware: {name}" + (f"  {hash_sign}{comment}" if hash_sign else "") + "\n"
    _write(path, "".join(lines).encode())


def presets(root: Path) -> list[str]:
    """Names of the presets of the project."""
    return sorted(path.stem for path in (root / "configs" / "presets").glob("*.yaml"))


def preset_path(root: Path, name: str) -> Path:
    """The file of the preset `name`; raises `ConfigError` when there is none."""
    have = presets(root)
    if name not in have:
        raise ConfigError(f"No hay preset «{name}»{similar(name, have)}. Hay: {', '.join(have)}.")
    return root / "configs" / "presets" / f"{name}.yaml"


def choose_preset(root: Path, name: str) -> None:
    """Make the preset `name` the project's params.yaml; what was there is kept as params.anterior.yaml.

    Raises:
        ConfigError: no such preset, or it does not validate. params.yaml is not touched then.
    """
    preset = preset_path(root, name)
    load_config(root, params=preset)
    params = root / "params.yaml"
    _write(root / "params.anterior.yaml", params.read_bytes())
    _write(params, preset.read_bytes())


def flatten(config: BaseModel, prefix: str = "") -> dict[str, Any]:
    """Leaves of a configuration by dotted key: ``{"train.lr": 0.003, ...}``."""
    flat: dict[str, Any] = {}
    for key in type(config).model_fields:
        value = getattr(config, key)
        if isinstance(value, BaseModel):
            flat |= flatten(value, f"{prefix}{key}.")
        elif isinstance(value, tuple) and value and isinstance(value[0], BaseModel):
            for i, item in enumerate(value):
                flat |= flatten(item, f"{prefix}{key}.{i}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def similar(name: str, have: list[str]) -> str:
    """Which of `have` was probably meant by `name`, in brackets after a space; nothing when none comes close."""
    close = difflib.get_close_matches(name, have, n=1)
    return f" (¿querías decir «{close[0]}»?)" if close else ""


def wrong(detail: ErrorDetails) -> str:
    """What pydantic found wrong with a value, in Spanish: "tiene que ser un número"."""
    context = {name: str(value).replace(" or ", " o ") for name, value in detail.get("ctx", {}).items()}
    return _WRONG.get(detail["type"], detail["msg"]).format(**context)


def _write(path: Path, data: bytes) -> None:
    """Put `data` in `path` at once: after a kill, too, the file is the old one or the new one, whole."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def _layer_names(values: dict[str, Any], params: Path, root: Path) -> LayerNames:
    try:
        return LayerNames.model_validate({key: values[key] for key in NAMED if key in values})
    except ValidationError as error:
        raise _config_error(error, {}, _shown(params, root)) from None


def _mapping(path: Path, root: Path, names: str | None = None) -> dict[str, Any]:
    """The YAML mapping at `path`; `names` is the key of params.yaml that led here, for the message."""
    shown = _shown(path, root)
    if names and not path.is_file():
        have = sorted(other.stem for other in path.parent.glob("*.yaml"))
        raise ConfigError(
            f"params.yaml: {names}={path.stem}: no existe {shown}{similar(path.stem, have)}. Hay: {', '.join(have)}."
        )
    try:
        content = yaml12.load(path)
    except EnlaceError as error:
        raise ConfigError(str(error).replace(str(path), shown)) from error
    if not isinstance(content, dict):
        raise ConfigError(f"{shown}: tiene que ser una lista de claves y valores (clave: valor).")
    return content


def _shown(path: Path, root: Path) -> str:
    return str(path.relative_to(root)) if path.is_relative_to(root) else str(path)


def _unknown(key: str, have: list[str]) -> str:
    return f"clave desconocida: {key}{similar(key, have)}. Quítala o corrígela; las que hay: {', '.join(have)}."


# What pydantic found, in Spanish. The keys are pydantic's error types; the values use its context.
_WRONG = {
    "int_type": "tiene que ser un número entero",
    "int_from_float": "tiene que ser un número entero",
    "int_parsing": "tiene que ser un número entero",
    "int_parsing_size": "es un número demasiado grande",
    "float_type": "tiene que ser un número",
    "float_parsing": "tiene que ser un número",
    "finite_number": "tiene que ser un número finito",
    "string_type": "tiene que ser un texto",
    "bool_type": "tiene que ser true o false",
    "tuple_type": "tiene que ser una lista",
    "model_type": "tiene que ser un grupo de claves y valores",
    "model_attributes_type": "tiene que ser un grupo de claves y valores",
    "too_short": "faltan elementos (al menos {min_length})",
    "too_long": "sobran elementos (como mucho {max_length})",
    "string_too_short": "no puede estar vacío",
    "string_pattern_mismatch": "tiene que cumplir {pattern}",
    "literal_error": "tiene que ser {expected}",
    "greater_than": "tiene que ser mayor que {gt}",
    "greater_than_equal": "tiene que ser al menos {ge}",
    "less_than": "tiene que ser menor que {lt}",
    "less_than_equal": "tiene que ser como mucho {le}",
    "union_tag_invalid": "kind tiene que ser {expected_tags}",
    "union_tag_not_found": "falta kind, que dice de qué clase es la fuente",
    "value_error": "{error}",
}


def _config_error(error: ValidationError, files: dict[str, str], default_file: str) -> ConfigError:
    details = error.errors()
    # A list with a bad element also counts as too short: the element is enough.
    under = {detail["loc"][:n] for detail in details for n in range(len(detail["loc"]))}
    told = [detail for detail in details if not (detail["type"] == "too_short" and detail["loc"] in under)]
    return ConfigError("\n".join(_explain(detail, files, default_file) for detail in told))


def _explain(detail: ErrorDetails, files: dict[str, str], default_file: str) -> str:
    """One sentence: file, key, value, and what would be right."""
    location = list(detail["loc"])
    file = default_file
    if location and (named := files.get(str(location[0]))):
        file = named
        location = location[1:]
    model = _model_at(list(detail["loc"])) if files else None
    key = ".".join(str(part) for part in location if part not in ("wheel", "folder"))
    if detail["type"] == "missing":
        return f"{file}: falta la clave {key}."
    if detail["type"] == "extra_forbidden":
        have = list(model.model_fields) if model else []
        return f"{file}: clave desconocida: {key}{similar(key.rsplit('.', 1)[-1], have)}. Quítala o corrígela."
    value = detail["input"]
    shown = "" if isinstance(value, dict | BaseModel) else f"={value!r}"
    return f"{file}: {key}{shown}: {wrong(detail)}."


def _model_at(location: list[int | str]) -> type[BaseModel] | None:
    """The schema that holds the last key of `location`, for suggesting the right spelling; None when unclear."""
    model: Any = Config
    for part in location[:-1]:
        if not (isinstance(model, type) and issubclass(model, BaseModel)) or part not in model.model_fields:
            return None
        model = model.model_fields[str(part)].annotation
    return model if isinstance(model, type) and issubclass(model, BaseModel) else None
