"""The whole configuration: one frozen tree, complete before anything starts.

Flags win over the environment (`GEARSHIFT_SERVER__PORT=9000`), that over `config.toml`, that over
the defaults here. Unknown keys, wrong types and impossible combinations are refused with the key,
the value and a remedy. Reads nothing after `load`; knows nothing of torch, models or HTTP.
"""

from __future__ import annotations

import difflib
import json
import os
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from functools import reduce
from pathlib import Path
from typing import Annotated, Any, Literal, get_origin

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator
from pydantic.fields import FieldInfo
from pydantic_settings import (
    BaseSettings,
    EnvSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
)

ENV_PREFIX = "GEARSHIFT_"
ENV_CONFIG = "GEARSHIFT_CONFIG"
DEFAULT_PATH = Path("config.toml")

PositiveInt = Annotated[int, Field(ge=1)]
PositiveFloat = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class ConfigError(Exception):
    """The configuration cannot be used; one problem a line: key, value, remedy."""


class Section(BaseModel):
    """A frozen table of the configuration that refuses keys it does not know."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class ServerSection(Section):
    """The HTTP side."""

    host: Literal["127.0.0.1", "0.0.0.0", "::"] = "127.0.0.1"
    """Address to listen on. Loopback unless told otherwise; `0.0.0.0` or `::` for all."""
    port: Annotated[int, Field(ge=1024, le=65535)] = 8000
    """Port to listen on, 1024 to 65535."""
    api_processes: PositiveInt = 1
    """HTTP processes. One serves several thousand small requests a second."""
    preprocess_threads: PositiveInt = 4
    """Threads of each HTTP process that decode images and tokenise."""
    request_timeout_s: PositiveFloat = 30.0
    """Deadline of a request that does not bring its own `X-Request-Timeout`, in seconds."""
    drain_timeout_s: PositiveFloat = 30.0
    """At shutdown, how long admitted requests may take to finish, in seconds."""
    max_body_bytes: PositiveInt = 8 * 2**20
    """Largest request body, in bytes; larger ones get 413."""
    max_pixels: PositiveInt = 50_000_000
    """Largest image, width times height, looked up before it is decoded; larger ones get 413."""


class LogSection(Section):
    """What is written to standard error."""

    format: Literal["auto", "text", "json"] = "auto"
    """`auto`: a live display on a terminal, plain lines elsewhere; `json`: one object a line."""
    level: Literal["debug", "info", "warning", "error"] = "info"
    """Least severe level that is written."""


class BatchingSection(Section):
    """How samples become batches."""

    max_batch_size: Annotated[int, Field(ge=1, le=1024)] = 8
    """Most samples run together."""
    batch_timeout_ms: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    """How long the oldest sample may wait for others when the device is free. 0: not at all."""
    max_queue: PositiveInt = 256
    """Most samples of one model waiting or running; beyond that requests get 429."""


class CompileSection(Section):
    """How `--mode compiled` compiles. Nothing here matters to eager."""

    torch_mode: Literal[
        "default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"
    ] = "reduce-overhead"
    """torch.compile's own `mode`. CUDA graphs need `reduce-overhead` or `max-autotune`."""
    dynamic: bool = False
    """One kernel set for all shapes (quicker start) instead of one a bucket (faster kernels)."""
    batch_buckets: tuple[PositiveInt, ...] = ()
    """Batch sizes to compile; the largest must be `batching.max_batch_size`. Empty: powers of 2."""
    seq_buckets: tuple[PositiveInt, ...] = ()
    """Sequence lengths to compile; the largest must be the model's limit. Empty: powers of 2
    from 16."""
    on_failure: Literal["eager", "refuse"] = "eager"
    """A bucket that cannot be compiled or gives other answers: serve it eager, or refuse to
    start."""
    cache_dir: Path = Path("~/.cache/gearshift")
    """Private directory for compiled code, made with mode 0700. Trusted: it holds native code."""


class ModelSection(Section):
    """One served model: `model` says which, the rest how."""

    model: Annotated[str, Field(min_length=1)]
    """A built-in name, `kind:reference` or `package.module:ClassName`; see `serve models`."""
    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")] | None = None
    """Name in URLs and metrics. Default: the last part of `model`."""
    weights: str = "default"
    """`default`, `random` (speed tests only: every answer says so), or a path to a file."""
    task: str | None = None
    """transformers only: `embedding`, `sequence-classification`, `token-classification`,
    `fill-mask` or `image-classification`. Default: what the model's config says."""
    revision: str | None = None
    """transformers from the hub only: commit, branch or tag."""
    labels: str | None = None
    """Image classifiers only: path to a text file, one class name a line."""
    max_seq: PositiveInt | None = None
    """Longest sequence to accept, up to the model's own limit. Default: the model's own."""

    @property
    def served_name(self) -> str:
        """`name`, or what is left of `model` after kinds, folders and file endings."""
        if self.name is not None:
            return self.name
        last = self.model.rstrip("/").rsplit("/", 1)[-1].rsplit(":", 1)[-1]
        stem = last.rsplit(".", 1)[0] if last.endswith((".pt", ".pt2", ".ts")) else last
        return "".join(c if c.isalnum() or c in "._-" else "-" for c in stem).lstrip("._-")


class Settings(BaseSettings):
    """The configuration of a server, all of it. Made by `load`."""

    model_config = SettingsConfigDict(
        frozen=True,
        extra="forbid",
        use_attribute_docstrings=True,
        env_prefix=ENV_PREFIX,
        env_nested_delimiter="__",
    )

    mode: Literal["eager", "compiled", "auto"] = "eager"
    """`eager`, `compiled`, or `auto` (eager at once, compiled when it is ready)."""
    device: Annotated[str, Field(pattern=r"^(auto|cpu|cuda|cuda:\d+)$")] = "auto"
    """`auto` (CUDA where there is one), `cpu`, `cuda` or `cuda:N`."""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """Type the weights are cast to. `auto` is float32: nothing gets less precise unasked."""
    threads: Annotated[int, Field(ge=0)] = 0
    """torch's CPU threads in the worker. 0: one for each CPU this process may use."""
    server: ServerSection = ServerSection()
    log: LogSection = LogSection()
    batching: BatchingSection = BatchingSection()
    compile: CompileSection = CompileSection()
    models: tuple[ModelSection, ...] = (ModelSection(model="efficientnet-lite0"),)
    """What is served, in order; `/predict` goes to the first."""

    @field_validator("mode")
    @classmethod
    def _mode_is_there(cls, mode: str) -> str:
        if mode == "auto":
            raise ValueError("not available yet; use 'eager' or 'compiled'")
        return mode

    @field_validator("models")
    @classmethod
    def _names_are_distinct(cls, models: tuple[ModelSection, ...]) -> tuple[ModelSection, ...]:
        if not models:
            raise ValueError("nothing to serve; add a [[models]] table or leave `models` out")
        names = [model.served_name for model in models]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"served twice: {', '.join(twice)}; give each its own `name`")
        return models

    @model_validator(mode="after")
    def _largest_bucket_is_the_limit(self) -> Settings:
        buckets, limit = self.compile.batch_buckets, self.batching.max_batch_size
        if buckets and max(buckets) != limit:
            raise ValueError(
                f"compile.batch_buckets = {list(buckets)}: the largest must be "
                f"batching.max_batch_size = {limit}; add {limit} or change max_batch_size"
            )
        return self

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """What `load` passes alone: it reads the sources itself, to name the one that is wrong."""
        return (init_settings,)


SECTIONS: Mapping[str, type[BaseModel]] = {
    "": Settings,
    "server": ServerSection,
    "log": LogSection,
    "batching": BatchingSection,
    "compile": CompileSection,
    "models": ModelSection,
}


def dotted_keys() -> list[str]:
    """Every dotted key that has a value: `mode`, `server.host`, `models`, `models.model`, ..."""
    return [
        f"{table}.{name}".lstrip(".")
        for table, section in SECTIONS.items()
        for name in section.model_fields
        if name not in SECTIONS or name == "models"
    ]


def field(key: str) -> FieldInfo:
    """Type, default and meaning of a dotted key."""
    table, _, name = key.rpartition(".")
    return SECTIONS[table].model_fields[name]


def env_name(key: str) -> str:
    """The environment variable that sets a dotted key."""
    return ENV_PREFIX + key.replace(".", "__").upper()


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
    """The settings as a config file that `load` reads back as the same."""
    tables = settings.model_dump(mode="json", exclude_none=True)
    models = tables.pop("models")
    top = {key: tables.pop(key) for key in list(tables) if not isinstance(tables[key], dict)}
    blocks = [_block(top)]
    blocks += [f"[{name}]\n{_block(table)}" for name, table in tables.items()]
    blocks += [f"[[models]]\n{_block(model)}" for model in models]
    return "\n\n".join(blocks) + "\n"


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
            yield f"{key} = {problem['input']!r}: {message} (from {_origin(loc, layers)})"


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
