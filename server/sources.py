"""Where the configuration comes from: flags over the environment over the file over defaults.

Reads each source once, merges them, and names the source of whatever is refused. What the keys are
is in `config`.
"""

from __future__ import annotations

import difflib
import json
import os
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from functools import reduce
from pathlib import Path
from typing import Any, get_origin

from pydantic import ValidationError
from pydantic_settings import EnvSettingsSource

from server.config import (
    ENV_PREFIX,
    SECRETS,
    SECTIONS,
    ConfigError,
    Settings,
    dotted_keys,
    env_name,
    field,
    is_secret,
)

ENV_CONFIG = "GEARSHIFT_CONFIG"
DEFAULT_PATH = Path("config.toml")


def load(path: Path | None = None, flags: Mapping[str, Any] | None = None) -> Settings:
    """The settings from `flags` over the environment over the file at `path` over the defaults.

    Without `path` the file is `$GEARSHIFT_CONFIG`, or `config.toml` where there is one. A model
    that `flags` names again keeps the options it had below. Raises ConfigError naming every wrong
    key.
    """
    file = path or Path(os.environ.get(ENV_CONFIG) or DEFAULT_PATH)
    optional = path is None and not os.environ.get(ENV_CONFIG)
    below = {} if optional and not file.is_file() else _read_file(file)
    environment = _read_environment()
    flags = _keep_options(flags or {}, (below | environment).get("models"))
    layers = {str(file): below, "the environment": environment, "the command line": flags}
    try:
        return Settings(**reduce(_merge, layers.values()))
    except ValidationError as error:
        raise ConfigError("\n".join(_explain(error, layers))) from None


def to_toml(settings: Settings) -> str:
    """The settings as a config file that `load` reads back as the same, but for secrets."""
    tables = settings.model_dump(mode="json", exclude_none=True)
    models = tables.pop("models")
    top = {key: tables.pop(key) for key in list(tables) if not isinstance(tables[key], dict)}
    hidden = [key for key in SECRETS if _take(tables, key) is not None]
    blocks = [f"# Set, and not shown: {', '.join(hidden)}"] if hidden else []
    blocks += [_block(top)]
    blocks += [f"[{name}]\n{_block(table)}" for name, table in tables.items()]
    blocks += [f"[[models]]\n{_block(model)}" for model in models]
    return "\n\n".join(blocks) + "\n"


def _take(tables: Mapping[str, Any], key: str) -> Any:
    table, _, name = key.partition(".")
    return tables[table].pop(name, None)


def _block(table: Mapping[str, Any]) -> str:
    # JSON and TOML write strings, numbers, booleans and lists of them alike.
    return "\n".join(f"{key} = {json.dumps(v, ensure_ascii=False)}" for key, v in table.items())


def _read_file(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{file}: cannot be read ({error.strerror})") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file}: not valid TOML: {error}") from None


def _read_environment() -> dict[str, Any]:
    # A model is one of a list, which a variable of its own cannot name: `models` is one, as JSON.
    known = {env_name(key): key for key in dotted_keys() if not key.startswith("models.")}
    given = [name for name in os.environ if name.startswith(ENV_PREFIX) and name != ENV_CONFIG]
    unknown = [name for name in given if name not in known]
    if unknown:
        raise ConfigError("\n".join(f"{name}: unknown key{_hint(name, known)}" for name in unknown))
    for name in given:
        if get_origin(field(known[name]).annotation) is tuple:
            _check_json(name)
    return EnvSettingsSource(Settings)()


def _check_json(name: str) -> None:
    try:
        json.loads(os.environ[name])
    except json.JSONDecodeError:
        text = os.environ[name]
        raise ConfigError(f"{name} = {text!r}: write it as JSON, for example [1, 2]") from None


def _merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for key, value in over.items():
        below = merged.get(key)
        if isinstance(below, Mapping) and isinstance(value, Mapping):
            value = _merge(below, value)
        merged[key] = value
    return merged


def _keep_options(flags: Mapping[str, Any], below: Any) -> Mapping[str, Any]:
    if "models" not in flags or not isinstance(below, list):
        return flags
    tables = [table for table in below if isinstance(table, dict)]
    models = [
        next((table for table in tables if table.get("model") == model["model"]), {}) | model
        for model in flags["models"]
    ]
    return {**flags, "models": models}


def _explain(error: ValidationError, layers: Mapping[str, Any]) -> Iterator[str]:
    known = [*SECTIONS, *dotted_keys()]
    for problem in error.errors():
        loc, message = problem["loc"], problem["msg"].removeprefix("Value error, ")
        key = ".".join(str(part) for part in loc)
        if not loc:
            yield message
        elif problem["type"] == "extra_forbidden":
            hint = _hint(".".join(part for part in loc if isinstance(part, str)), known)
            yield f"{key}: unknown key{hint} (from {_origin(loc, layers)})"
        elif problem["type"] == "missing":
            yield f"{key}: has to be given (from {_origin(loc[:-1], layers)})"
        else:
            message = f"{message[0].lower()}{message[1:]}"
            shown = "..." if is_secret(key) else repr(problem["input"])
            yield f"{key} = {shown}: {message} (from {_origin(loc, layers)})"


def _origin(loc: tuple[int | str, ...], layers: Mapping[str, Any]) -> str:
    """The topmost layer that has something at `loc`."""
    return [name for name, layer in layers.items() if _has(layer, loc)][-1]


def _has(value: Any, loc: tuple[int | str, ...]) -> bool:
    for part in loc:
        try:
            value = value[part]
        except (KeyError, IndexError, TypeError):
            return False
    return True


def _hint(name: str, known: Iterable[str]) -> str:
    elsewhere = [key for key in known if key.endswith(f".{name}")]
    close = difflib.get_close_matches(name, known, n=1) or elsewhere
    return f"; did you mean {close[0]}?" if close else ""
