"""The whole configuration: one frozen tree, complete before anything starts.

Every key with its type, default and meaning; unknown keys, wrong types and impossible combinations
are refused. Made by `sources.load`; knows nothing of torch, models or HTTP.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SecretStr,
    field_validator,
    model_validator,
)
from pydantic.fields import FieldInfo
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
)

ENV_PREFIX = "GEARSHIFT_"
MAX_BATCH_SIZE = 1024

PositiveInt = Annotated[int, Field(ge=1)]
Key = Annotated[SecretStr, Field(min_length=16)]
PositiveFloat = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class ConfigError(Exception):
    """The configuration cannot be used; one problem a line: key, value, remedy."""


def _from_environment(value: Any) -> Any:
    """A boolean in a place that takes other words too: the environment has texts only."""
    return {"true": True, "false": False}.get(value, value) if isinstance(value, str) else value


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
    client_timeout_s: PositiveFloat = 10.0
    """How long a client may take to send a request's head, to send its body, and to take its
    answer, in seconds. One that takes longer is cut off."""
    drain_timeout_s: PositiveFloat = 30.0
    """At shutdown, how long admitted requests may take to finish, in seconds."""
    max_restarts: Annotated[int, Field(ge=0)] = 5
    """Restarts of a process in a row, none of which comes up, before the server ends (code 3)."""
    max_body_bytes: PositiveInt = 8 * 2**20
    """Largest request body, in bytes; larger ones get 413."""
    max_pixels: PositiveInt = 50_000_000
    """Largest image, width times height, looked up before it is decoded; larger ones get 413."""
    api_key: Key | None = None
    """Key that every request but `/livez` and `/readyz` has to bring, 16 characters or more:
    `Authorization: Bearer KEY`. Never shown."""
    admin_key: Key | None = None
    """Key for `POST /admin/mode`, in the same header. Without it there are no admin routes."""


class LogSection(Section):
    """What is written to standard error."""

    format: Literal["auto", "text", "json"] = "auto"
    """`auto`: a live display on a terminal, plain lines elsewhere; `json`: one object a line."""
    level: Literal["debug", "info", "warning", "error"] = "info"
    """Least severe level that is written."""


class BatchingSection(Section):
    """How samples become batches."""

    max_batch_size: Annotated[int, Field(ge=1, le=MAX_BATCH_SIZE)] = 8
    """Most samples run together."""
    batch_timeout_ms: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    """How long the oldest sample may wait for others when the device is free. 0: not at all."""
    max_queue: PositiveInt = 256
    """Most samples of one model waiting or running; beyond that requests get 429. Each HTTP
    process has an equal share, so it may refuse sooner where connections fall unevenly."""
    inference_timeout_s: PositiveFloat = 60.0
    """Longest that a batch may run, in seconds. One that takes longer gets 503, and the worker is
    started again: its device is stuck. An idle worker that shows no sign of life for so long, and
    10 s at least, is started again, too."""


class CompileSection(Section):
    """How `--mode compiled` compiles. Nothing here matters to eager."""

    torch_mode: Literal[
        "default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"
    ] = "reduce-overhead"
    """torch.compile's own `mode`. CUDA graphs need `reduce-overhead` or `max-autotune`."""
    dynamic: Annotated[
        Literal["auto", True, False, "batch"], BeforeValidator(_from_environment)
    ] = "auto"
    """`true`: compile once for all shapes, a quicker start. `false`: once a bucket, the best
    kernels. `batch`: once for all batch sizes of a sequence length. `auto`: `true` for models with
    a sequence on a CPU, where that is as fast, else `false`."""
    freezing: bool = True
    """CPU only: makes the weights constants, laid out for oneDNN, with batch norm folded in. The
    fastest answers; torch caches less, so later starts gain less."""
    batch_buckets: tuple[PositiveInt, ...] = ()
    """Batch sizes to compile; the largest must be `batching.max_batch_size`. Empty: powers of 2."""
    seq_buckets: tuple[PositiveInt, ...] = ()
    """Sequence lengths to compile; the largest must be the model's limit. Empty: powers of 2
    from 16, and one between every two where one compile serves all lengths."""
    timeout_s: PositiveFloat = 600.0
    """Longest that one bucket may take to compile and prove, in seconds. One that takes longer is
    served eager, after a restart of the worker."""
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
    matmul_precision: Literal["highest", "high", "medium"] = "highest"
    """Least that float32 matrix products are computed in, in either mode: `highest` float32, `high`
    TF32, `medium` bfloat16, where the hardware has them."""
    threads: Annotated[int, Field(ge=0)] = 0
    """torch's CPU threads in each worker. 0: the CPUs this process may use, divided among the
    workers."""
    workers: PositiveInt = 1
    """Worker processes, each with all models in its own memory. On CUDA they take the GPUs in turn,
    unless `device` names one; on a CPU they share its cores."""
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

    @model_validator(mode="after")
    def _every_process_has_room(self) -> Settings:
        processes, limit = self.server.api_processes, self.batching.max_queue
        if limit < processes:
            raise ValueError(
                f"batching.max_queue = {limit}: at least 1 for each of server.api_processes = "
                f"{processes}; raise it or lower api_processes"
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


SECRETS = ("server.api_key", "server.admin_key")


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


def is_secret(key: str) -> bool:
    """Whether the value of a dotted key, or one below it, must not be shown."""
    return any(secret == key or secret.startswith(f"{key}.") for secret in SECRETS)


def env_name(key: str) -> str:
    """The environment variable that sets a dotted key."""
    return ENV_PREFIX + key.replace(".", "__").upper()
