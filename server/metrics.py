"""Every metric, declared and recorded here. Base units; labels with few values.

prometheus_client runs in multiprocess mode: `PROMETHEUS_MULTIPROC_DIR` is set (by `runtime`) before
this module is imported. The API processes record requests and what the worker says of its models,
the worker records batches and its device. What a dead process counted stays counted; its gauges
vanish. Label values that can be foreseen start at 0, so that a rate sees the first event.
Knows no HTTP and no torch.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from typing import get_args

from prometheus_client import Counter, Gauge, Histogram, values
from prometheus_client.multiprocess import mark_process_dead

from server.errors import OUTCOMES, Outcome
from server.types import (
    BatchRecord,
    BucketStatus,
    DeviceRecord,
    Fallback,
    Mode,
    ModelStatus,
    Reply,
)

MODES: tuple[Mode, ...] = get_args(Mode)
FALLBACK_REASONS: tuple[Fallback, ...] = get_args(Fallback)

if "PROMETHEUS_MULTIPROC_DIR" in os.environ:
    # Files are named by process name, not by process id: a process that replaces another counts on
    # where that one was, and the files do not become more with every restart.
    values.ValueClass = values.MultiProcessValue(  # type: ignore[no-untyped-call]
        lambda: multiprocessing.current_process().name
    )

# Fine where compiled models live (below 10 ms), then doubling to half a minute.
DURATION_BOUNDARIES_S = (
    *(0.00025, 0.0005, 0.00075, 0.001, 0.0015, 0.002, 0.003, 0.004, 0.005, 0.006, 0.008, 0.01),
    *(0.015, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1, 2.5, 5, 10, 30),
)
BATCH_BOUNDARIES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
RATIO_BOUNDARIES = (0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)

REQUESTS = Counter(
    "gearshift_requests_total",
    "Requests by how they ended; each is counted once, when its answer is ready or its client "
    "gone. mode is the one that ran it, or the server's own for one that did not run.",
    ["model", "mode", "outcome"],
)
REQUEST_DURATION = Histogram(
    "gearshift_request_duration_seconds",
    "From the request's headers to its encoded answer, reading and decoding the body included, "
    "sending the answer not; requests with outcome ok.",
    ["model", "mode"],
    buckets=DURATION_BOUNDARIES_S,
)
QUEUE_DURATION = Histogram(
    "gearshift_queue_duration_seconds",
    "From a sample's arrival in the worker's queue to the start of its batch.",
    ["model", "mode"],
    buckets=DURATION_BOUNDARIES_S,
)
INFERENCE_DURATION = Histogram(
    "gearshift_inference_duration_seconds",
    "One batch: padding, copies to the device and back, the model, cutting the padding off; until "
    "the outputs are on the host. bucket is the one the batch belongs to, in either mode.",
    ["model", "mode", "bucket"],
    buckets=DURATION_BOUNDARIES_S,
)
BATCH_SIZE = Histogram(
    "gearshift_batch_size",
    "Samples that ran together, padding rows not counted.",
    ["model", "mode"],
    buckets=BATCH_BOUNDARIES,
)
PADDING_RATIO = Histogram(
    "gearshift_padding_ratio",
    "Share of a batch that was padding, in elements of batch times sequence.",
    ["model", "mode"],
    buckets=RATIO_BOUNDARIES,
)
QUEUE_DEPTH = Gauge(
    "gearshift_queue_depth",
    "Samples that waited in the workers' queues when their last batches were done.",
    ["model"],
    multiprocess_mode="livesum",
)
LONGEST_WAIT = Gauge(
    "gearshift_queue_longest_wait_seconds",
    "How long the oldest sample of the last batch had waited in the worker; the longest of all.",
    ["model", "mode"],
    multiprocess_mode="livemax",
)
WORKER_RESTARTS = Counter(
    "gearshift_worker_restarts_total", "Times that a worker ended and was started again."
)
API_RESTARTS = Counter(
    "gearshift_api_restarts_total", "Times that an API process ended and was started again."
)
INFLIGHT = Gauge(
    "gearshift_inflight_requests",
    "Requests admitted and not yet answered.",
    ["model"],
    multiprocess_mode="livesum",
)
DEVICE_MEMORY = Gauge(
    "gearshift_device_memory_bytes",
    "Memory of a worker that was started for mode, by kind: weights (parameters and buffers of "
    "all models); and on CUDA allocated, reserved, graph_pool (part of reserved, held by CUDA "
    "graphs), peak_warmup and peak_serving (most allocated until ready and since), process (the "
    "worker's share as the driver sees it), free and total (the whole device).",
    ["device", "mode", "kind"],
    multiprocess_mode="livemostrecent",
)
RESIDENT_MEMORY = Gauge(
    "gearshift_worker_resident_memory_bytes",
    "Resident host memory of the worker processes that were started for mode.",
    ["mode"],
    multiprocess_mode="livesum",
)
COMPILE_SECONDS = Gauge(
    "gearshift_compile_seconds",
    "First call of a bucket at warm-up: compiling, or taking compiled code from the cache.",
    ["model", "mode", "bucket"],
    multiprocess_mode="livemostrecent",
)
WARMUP_SECONDS = Gauge(
    "gearshift_warmup_seconds",
    "Warm-up of a model, all buckets, loading not included: one run when eager; compile, run, "
    "prove and compare when compiled.",
    ["model", "mode"],
    multiprocess_mode="livemostrecent",
)
PARITY_ERROR = Gauge(
    "gearshift_parity_max_abs_error",
    "Largest absolute difference between compiled and eager outputs, seen at warm-up.",
    ["model", "mode", "bucket"],
    multiprocess_mode="livemostrecent",
)
PARITY_COSINE = Gauge(
    "gearshift_parity_cosine_similarity",
    "Smallest cosine similarity of compiled and eager outputs, seen at warm-up.",
    ["model", "mode", "bucket"],
    multiprocess_mode="livemostrecent",
)
BUCKET_COMPILED = Gauge(
    "gearshift_bucket_compiled",
    "1 when a bucket is proven and served compiled, 0 when it is served eager.",
    ["model", "mode", "bucket"],
    multiprocess_mode="livemostrecent",
)
GRAPHS = Gauge(
    "gearshift_compiled_graphs",
    "Compiled graphs that one batch of a bucket runs; more than 1 is a model compiled in parts.",
    ["model", "mode", "bucket"],
    multiprocess_mode="livemostrecent",
)
GRAPH_BREAKS = Gauge(
    "gearshift_graph_breaks",
    "Where the compiler leaves the model, per bucket.",
    ["model", "mode", "bucket"],
    multiprocess_mode="livemostrecent",
)
CACHE_HIT = Gauge(
    "gearshift_compile_cache_hit",
    "1 when all code of a bucket came from the cache, 0 when some was compiled.",
    ["model", "mode", "bucket"],
    multiprocess_mode="livemostrecent",
)
REPLAYS_PER_BATCH = Gauge(
    "gearshift_graph_replays_per_batch",
    "CUDA graphs that one batch of a bucket replays. CUDA only.",
    ["model", "mode", "bucket"],
    multiprocess_mode="livemostrecent",
)
GRAPH_POOL = Gauge(
    "gearshift_bucket_graph_pool_bytes",
    "Growth of the CUDA graphs' memory pool when a bucket was recorded. CUDA only.",
    ["model", "mode", "bucket"],
    multiprocess_mode="livemostrecent",
)
COMPILES = Counter(
    "gearshift_compiles_total",
    "Compiles and CUDA-graph recordings of the worker that was started for mode; any in phase "
    "serving is an incident.",
    ["mode", "phase"],
)
GRAPH_REPLAYS = Counter(
    "gearshift_graph_replays_total",
    "CUDA graphs replayed by the worker, warm-up included.",
    ["mode"],
)
RECOMPILES_PREVENTED = Counter(
    "gearshift_recompiles_prevented_total",
    "Batches that would have compiled while serving and ran eager instead.",
    ["model", "mode"],
)
FALLBACKS = Counter(
    "gearshift_eager_fallbacks_total",
    "Batches that were to run compiled, or together, and ran eager or alone, by reason.",
    ["model", "mode", "reason"],
)
MODE_ACTIVE = Gauge(
    "gearshift_mode_active",
    "1 for the mode a model is served in, 0 for the other.",
    ["model", "mode"],
    multiprocess_mode="livemostrecent",
)
READY = Gauge(
    "gearshift_ready",
    "1 when a model is warmed up in a worker that is connected, in the eyes of every API process.",
    ["model"],
    multiprocess_mode="livemin",
)
BUILD_INFO = Gauge(
    "gearshift_build_info", "Always 1.", ["version"], multiprocess_mode="livemostrecent"
)


def record_request(model: str, mode: str, outcome: Outcome, seconds: float) -> None:
    """One request that ended, however."""
    _requests(model, mode, outcome).inc()
    if outcome == "ok":
        _request_duration(model, mode).observe(seconds)


def record_reply(model: str, reply: Reply) -> None:
    """One sample that was answered."""
    _queue_duration(model, reply.mode).observe(reply.timings.queue_s)


def record_batch(batch: BatchRecord) -> None:
    """One batch that ran."""
    series = _series_of(batch.model, batch.mode, batch.bucket)
    series.inference_duration.observe(batch.inference_s)
    series.batch_size.observe(batch.size)
    series.padding_ratio.observe(batch.padding_ratio)
    series.queue_depth.set(batch.queue_depth)
    series.longest_wait.set(batch.longest_wait_s)
    if batch.fallback is not None:
        FALLBACKS.labels(batch.model, batch.mode, batch.fallback).inc()
    if batch.fallback == "recompile_prevented":
        RECOMPILES_PREVENTED.labels(batch.model, batch.mode).inc()


# Looked up once: finding a series by its labels costs as much as counting in it.


@cache
def _requests(model: str, mode: str, outcome: Outcome) -> Counter:
    return REQUESTS.labels(model, mode, outcome)


@cache
def _request_duration(model: str, mode: str) -> Histogram:
    return REQUEST_DURATION.labels(model, mode)


@cache
def _queue_duration(model: str, mode: str) -> Histogram:
    return QUEUE_DURATION.labels(model, mode)


@dataclass(frozen=True, slots=True)
class BatchSeries:
    """What a batch of one bucket is counted in."""

    inference_duration: Histogram
    batch_size: Histogram
    padding_ratio: Histogram
    queue_depth: Gauge
    longest_wait: Gauge


@cache
def _series_of(model: str, mode: str, bucket: str) -> BatchSeries:
    return BatchSeries(
        INFERENCE_DURATION.labels(model, mode, bucket),
        BATCH_SIZE.labels(model, mode),
        PADDING_RATIO.labels(model, mode),
        QUEUE_DEPTH.labels(model),
        LONGEST_WAIT.labels(model, mode),
    )


def record_end(process: str) -> None:
    """A process ended: what it showed of the moment is no longer so; what it counted stays."""
    mark_process_dead(process)  # type: ignore[no-untyped-call]


class DeviceRecorder:
    """Records what the device side says; counters by what was added since the last record."""

    def __init__(self) -> None:
        self._last = DeviceRecord("", "eager", {}, {}, 0, 0, 0, 0)

    def record(self, now: DeviceRecord) -> None:
        """Memory as it is, counts as they grew."""
        kinds = {"weights": sum(now.weights.values()), **now.device_bytes}
        for kind, size in kinds.items():
            DEVICE_MEMORY.labels(now.device, now.mode, kind).set(size)
        RESIDENT_MEMORY.labels(now.mode).set(now.resident_bytes)
        last, self._last = self._last, now
        serving = now.compiles_serving - last.compiles_serving
        COMPILES.labels(now.mode, "serving").inc(serving)
        COMPILES.labels(now.mode, "warmup").inc(now.compiles - last.compiles - serving)
        GRAPH_REPLAYS.labels(now.mode).inc(now.graph_replays - last.graph_replays)


def record_status(status: ModelStatus) -> None:
    """What the worker says of a model."""
    name = status.name
    READY.labels(name).set(status.state == "ready")
    if status.state == "loading":
        return  # the mode is not known yet
    for mode in MODES:
        MODE_ACTIVE.labels(name, mode).set(mode == status.mode)
    for outcome in OUTCOMES:
        REQUESTS.labels(name, status.mode, outcome)
    # Only what compiles has buckets, and keeps them when it serves eager for a while.
    warmed = "compiled" if status.buckets else status.mode
    if status.warmup_s is not None:
        WARMUP_SECONDS.labels(name, warmed).set(status.warmup_s)
    for bucket in status.buckets:
        for gauge, value in _evidence(bucket):
            if value is not None:
                gauge.labels(name, warmed, bucket.bucket).set(value)
    if status.buckets:
        RECOMPILES_PREVENTED.labels(name, "eager")
        for reason in FALLBACK_REASONS:
            FALLBACKS.labels(name, "eager", reason)


def _evidence(bucket: BucketStatus) -> Iterable[tuple[Gauge, float | None]]:
    is_done = bucket.state in ("compiled", "eager")
    yield BUCKET_COMPILED, bucket.state == "compiled" if is_done else None
    yield COMPILE_SECONDS, bucket.compile_s
    yield CACHE_HIT, None if bucket.cache is None else bucket.cache == "hit"
    yield GRAPHS, bucket.graphs
    yield GRAPH_BREAKS, bucket.graph_breaks
    yield REPLAYS_PER_BATCH, bucket.replays_per_call
    yield GRAPH_POOL, bucket.graph_pool_bytes
    yield PARITY_ERROR, bucket.parity_max_abs_error
    yield PARITY_COSINE, bucket.parity_cosine
