"""The values that cross a boundary: samples in, replies out, and what a worker says of itself.

Small and frozen. Knows no torch, no HTTP and no sockets.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

Mode = Literal["eager", "compiled"]
Arrays = dict[str, np.ndarray[Any, Any]]
ModelState = Literal["loading", "warming", "ready", "failed"]
BucketState = Literal["pending", "compiling", "compiled", "eager"]
CacheUse = Literal["hit", "miss", "bypass"]
ParityRule = Literal["float64", "eager"]
Fallback = Literal["bucket_not_compiled", "recompile_prevented", "batch_failed"]


@dataclass(frozen=True, slots=True)
class Bucket:
    """One padded static shape. `seq` is 0 for a model without a `seq` dimension."""

    batch: int
    seq: int = 0

    def __str__(self) -> str:
        return f"{self.batch}x{self.seq}" if self.seq else str(self.batch)


@dataclass(frozen=True, slots=True)
class Sample:
    """One preprocessed input of one request: arrays without the batch dimension.

    `deadline` is on the clock of `time.monotonic()`, which all processes of a machine share. `id`
    is its name on the link. One that a worker died of, perhaps, is run `alone` the next time.
    """

    inputs: Arrays
    deadline: float
    id: int = 0
    alone: bool = False


@dataclass(frozen=True, slots=True)
class Timings:
    """Where the time of one sample went, in seconds."""

    queue_s: float
    inference_s: float


@dataclass(frozen=True, slots=True)
class Reply:
    """One sample's outputs (no batch dimension, padding cut off) and how they were made.

    `fallback` says why a compiled server ran this sample eager; None when it did not have to.
    """

    outputs: Arrays
    mode: Mode
    bucket: str
    timings: Timings
    fallback: Fallback | None = None


@dataclass(frozen=True, slots=True)
class BucketStatus:
    """What is known of one bucket; `None` where it was not measured (yet), or there is no CUDA.

    `reason` says why it is served eager, `note` what a compiled one leaves out. `run_s` is what a
    full batch took when it was proven. `graphs` and `replays_per_call` are compiled graphs and CUDA
    graphs that one call runs. `cache` is None when the code of another bucket serves this one too.
    The RMSEs are to what `parity_rule` names.
    """

    bucket: str
    state: BucketState = "pending"
    reason: str | None = None
    note: str | None = None
    compile_s: float | None = None
    warmup_s: float | None = None
    run_s: float | None = None
    cache: CacheUse | None = None
    graphs: int | None = None
    graph_breaks: int | None = None
    replays_per_call: int | None = None
    graph_pool_bytes: int | None = None
    parity_rule: ParityRule | None = None
    parity_max_abs_error: float | None = None
    parity_rmse: float | None = None
    parity_eager_rmse: float | None = None
    parity_cosine: float | None = None


@dataclass(frozen=True, slots=True)
class ModelStatus:
    """What the worker says of one model. `facts` is what ServedModel.describe gave.

    `mode` is what batches run in now, `modes` what they can be shifted between.
    """

    name: str
    state: ModelState = "loading"
    mode: Mode = "eager"
    device: str = ""
    dtype: str = ""
    detail: str = ""
    load_s: float | None = None
    warmup_s: float | None = None
    modes: tuple[Mode, ...] = ()
    buckets: tuple[BucketStatus, ...] = ()
    facts: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class BatchRecord:
    """One batch that ran, for whoever counts. `bucket` is a bucket's name in either mode.

    `longest_wait_s` is how long its oldest sample had waited.
    """

    model: str
    mode: Mode
    bucket: str
    size: int
    padding_ratio: float
    inference_s: float
    queue_depth: int
    longest_wait_s: float
    fallback: Fallback | None


@dataclass(frozen=True, slots=True)
class DeviceRecord:
    """The device side now: memory in bytes, and counts since the worker started.

    `device_bytes` (by kind) is empty on a CPU. `compiles` counts compiles and recordings;
    `compiles_serving` those after every model was ready, which should be none.
    """

    device: str
    mode: Mode
    weights: dict[str, int]
    device_bytes: dict[str, int]
    resident_bytes: int
    compiles: int
    compiles_serving: int
    graph_replays: int
