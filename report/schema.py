"""The format of a report: what was measured, and nothing that can be worked out from it.

Every call and every request is kept, outliers too; quantiles, speed-ups and verdicts are derived
(`figures`, `verdict`). Seconds and bytes throughout; None: not measured, or there is no such thing
on this device.
"""

from __future__ import annotations

from datetime import datetime
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, model_validator


class Part(BaseModel):
    """A frozen piece of a report; unknown keys are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Machine(Part):
    """Where it was measured, and with what."""

    cpu: str
    cpus: int
    """CPUs this process may use."""
    memory_bytes: int
    gpu: str | None = None
    gpu_memory_bytes: int | None = None
    system: str
    versions: dict[str, str]
    """gearshift, python, torch, ..."""


class Variant(Part):
    """One way to run one bucket: eager, or compiled with one of torch's modes."""

    name: str
    """`eager`, or torch's mode: `reduce-overhead`, `default`, ..."""
    rounds: tuple[tuple[float, ...], ...]
    """Seconds of every call, by round; the variants took turns within each round. A bucket that
    stayed eager has none: what would run is eager."""
    reason: str | None = None
    """Why a bucket that was to be compiled stayed eager."""
    note: str | None = None
    """What a compiled bucket leaves out."""
    first_call_s: float | None = None
    """Compiling, or loading compiled code; for eager the first run."""
    warmup_s: float | None = None
    """After the first call, until the bucket was proven."""
    cache: Literal["hit", "miss", "bypass"] | None = None
    """Where the compiled code came from; None: other buckets' code serves this one."""
    graphs: int | None = None
    graph_breaks: int | None = None
    replays_per_call: int | None = None
    """CUDA graphs that one call replays."""
    skips: tuple[str, ...] = ()
    """Why torch left something out of CUDA graphs."""
    peak_bytes: int | None = None
    """Highest that torch's allocator went during one call, above what it held before:
    what CUDA graphs use is in `pool_bytes`."""
    pool_bytes: int | None = None
    """What its CUDA graphs added to their private pools."""
    parity_max_abs_error: float | None = None
    parity_rmse: float | None = None
    parity_eager_rmse: float | None = None
    parity_cosine: float | None = None
    parity_rule: Literal["float64", "eager"] | None = None
    """What the RMSEs are to; the largest difference and the cosine are to eager."""


class BucketBench(Part):
    """One shape of one model; `variants` has eager first."""

    batch: int
    seq: int = 0
    """0: the model has no sequence."""
    variants: tuple[Variant, ...]

    @model_validator(mode="after")
    def _eager_is_first(self) -> Self:
        if not self.variants or self.variants[0].name != "eager":
            raise ValueError("variants: the first must be eager, which the others are held against")
        return self


class Bench(Part):
    """One model without HTTP."""

    model: str
    weights: Literal["real", "random"] = "real"
    device: str
    dtype: str
    threads: int
    weight_bytes: int
    buckets: tuple[BucketBench, ...]


class ServerFigures(Part):
    """What the server's /metrics say of one run: counts, and means in seconds."""

    requests: int
    request_s: float
    """From a request's headers to its encoded answer."""
    queue_s: float
    """A sample's wait in the worker."""
    inference_s: float
    """A batch on the device."""
    batches: int
    batch_size: float
    """Mean, without padding."""
    client_s: float | None = None
    """The client's mean over all that it sent between the scrapes, lead-in and failures too: what
    `request_s` is held against."""


class Run(Part):
    """One stretch of load on one side, warm-up left out. The columns have one entry a request
    that was answered rightly, in the order of their starts."""

    round: int
    """Runs of different sides with the same round and the same load are a pair."""
    offered_rps: float | None = None
    """Arrivals a second of an open loop; None for a closed one."""
    users: int | None = None
    """Most requests at a time of a closed loop; None for an open one."""
    seconds: float
    start_s: tuple[float, ...]
    """When it was to be sent, since the start of the run."""
    latency_s: tuple[float, ...]
    """From then on until its answer: a stall is counted for all who would have come during it."""
    bucket: tuple[str, ...]
    """As the server's headers say: `8`, `1x32`, or `2, 8` for a request in several batches."""
    failures: dict[str, int] = {}
    """How often by reason: a wrong answer is one, a refusal too."""
    server: ServerFigures | None = None

    @model_validator(mode="after")
    def _columns_are_of_a_length(self) -> Self:
        if not len(self.start_s) == len(self.latency_s) == len(self.bucket):
            raise ValueError("start_s, latency_s and bucket: one entry a request in each")
        return self


class Side(Part):
    """One server under load."""

    name: str
    """`eager`, `compiled`, or whatever tells the sides apart."""
    started_with: str
    """Flags of `serve`, or the URL of a server that ran already."""
    live_s: float | None = None
    """From the start of the process until HTTP answered; None for a server that ran already."""
    ready_s: float | None = None
    """From the start of the process until it took requests."""
    memory_bytes: dict[str, int] = {}
    """After the load, by kind: `resident` (the worker process), and on CUDA torch's kinds."""
    runs: tuple[Run, ...]


class Load(Part):
    """One scenario over HTTP, the sides in turn; the first is what the others are held against."""

    scenario: str
    arrivals: str
    """`steady`, `ramp`, `burst` or `open`."""
    sides: tuple[Side, ...]


class Report(Part):
    """Everything that one command measured, or that several joined reports did."""

    version: Literal[1] = 1
    created: datetime
    command: str
    machine: Machine
    benches: tuple[Bench, ...] = ()
    loads: tuple[Load, ...] = ()
    notes: tuple[str, ...] = ()
    """What a reader has to know, a sentence each."""
