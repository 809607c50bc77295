"""The engine: samples in, replies out, and the one thread that touches torch's compiler or CUDA.

Owns the batcher, the runners, their warm-up and the executor thread. Knows nothing of HTTP,
sockets or LitServe; tests and other hosts drive it directly.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

import torch

from models.base import ModelError, ServedModel
from server.config import Settings
from server.engine import memory
from server.engine.batching import Batcher, Pending
from server.engine.blocked import BlockedRunner
from server.engine.buckets import Grid, make_grid
from server.engine.capture import Evidence
from server.engine.contract import BatchResult, Loaded, Runner
from server.engine.devices import StartFailed, pick_device, pick_dtype, require_alive
from server.engine.environment import configure_thread
from server.engine.loading import layout_of, load_module
from server.engine.preflight import blocking_reason
from server.engine.runner import make_runners
from server.engine.tensors import seq_length
from server.errors import InferenceFailed, NotReady, UnknownModel
from server.types import (
    BatchRecord,
    BucketStatus,
    DeviceRecord,
    Mode,
    ModelStatus,
    Reply,
    Sample,
    Timings,
)

log = logging.getLogger(__name__)

DEVICE_EVERY_S = 1.0
NOTHING_SKIPPED: Mapping[tuple[str, str], str] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Listener:
    """Who is told: of each change of a model's status, of each batch, of the device, of the end.
    `device_takes` is told which samples go to the device, before; `device_free` when none is there
    and the futures of those that were are done.

    Called on the executor thread; must not block.
    """

    status: Callable[[ModelStatus], None]
    batch: Callable[[BatchRecord], None]
    device: Callable[[DeviceRecord], None]
    failed: Callable[[Exception], None]
    device_takes: Callable[[Sequence[int]], None]
    device_free: Callable[[], None]


@dataclass(slots=True)
class Lane:
    """One model in the engine: what it is, what runs it, what is said of it."""

    model: ServedModel
    status: ModelStatus
    grid: Grid | None = None
    runners: dict[Mode, Runner] = field(default_factory=dict)
    weight_bytes: int = 0

    @property
    def runner(self) -> Runner:
        """That of the mode it is in; a model that is not loaded has none."""
        return self.runners[self.status.mode]


class Engine:
    """Serves several models from one executor thread on one device."""

    def __init__(
        self,
        models: Sequence[ServedModel],
        settings: Settings,
        listener: Listener,
        skipped: Mapping[tuple[str, str], str] = NOTHING_SKIPPED,
        shifted: Mode | None = None,
    ) -> None:
        """`skipped` (model, bucket) are served eager without a try, for the reason given.

        `shifted` is the mode to serve in, where it is not the one to start in.
        """
        assert settings.mode != "auto", "auto is resolved by whoever starts engines"
        self._mode: Mode = settings.mode
        self._settings = settings
        self._listener = listener
        self._skipped = skipped
        self._shifted = shifted or self._mode
        self._device = torch.device("cpu")
        self._dtype = pick_dtype(settings.dtype)
        self._lanes = {
            model.name: Lane(model, ModelStatus(model.name, mode=self._mode)) for model in models
        }
        self._batcher = Batcher(
            list(self._lanes),
            settings.batching.max_batch_size,
            settings.batching.batch_timeout_ms / 1000,
        )
        self._device_told_at = 0.0
        self._thread = threading.Thread(target=self._main, name="executor", daemon=True)

    def start(self) -> None:
        """Load, warm up, then serve, all on the executor thread; returns at once."""
        self._thread.start()

    def close(self, timeout_s: float) -> bool:
        """Finish what is queued and stop. False when that takes longer than `timeout_s`."""
        self._batcher.close()
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def statuses(self) -> list[ModelStatus]:
        """What is known of each model now."""
        return [lane.status for lane in self._lanes.values()]

    def set_mode(self, mode: Mode) -> None:
        """Run what is taken from the queues from now on in `mode`, one of each model's `modes`.

        Only while every model is ready: then nothing but this changes a status.
        """
        for lane in self._lanes.values():
            assert lane.status.state == "ready", "whoever asks has seen that it is"
            assert mode in lane.status.modes, "whoever asks has seen that it can be had"
            self._tell(lane, mode=mode)

    def submit(self, model: str, samples: Sequence[Sample]) -> list[Future[Reply]]:
        """Queue samples together. Raises UnknownModel or NotReady; futures raise GearshiftError."""
        lane = self._lanes.get(model)
        if lane is None:
            raise UnknownModel(f"no model {model!r}; served: {', '.join(self._lanes)}")
        if lane.status.state != "ready" or lane.grid is None:
            raise NotReady(f"{model} is {lane.status.state}", retry_after_s=1)
        pending = [
            Pending(sample, lane.grid.seq_of(seq_length(lane.model, sample.inputs)))
            for sample in samples
        ]
        self._batcher.put(model, pending)
        return [one.future for one in pending]

    # The executor thread, from here on.

    def _main(self) -> None:
        try:
            configure_thread(self._settings)
            with torch.inference_mode():
                self._bring_up()
                self._serve()
        except (StartFailed, ModelError) as error:
            self._listener.failed(error)
        except Exception as error:  # the last edge: whoever started the engine must hear of it
            log.exception("the executor stopped")
            self._listener.failed(error)
        finally:
            torch.compiler.set_stance("default")  # whatever compiles in this process next

    def _bring_up(self) -> None:
        self._device = pick_device(self._settings.device)
        evidence = self._evidence = Evidence()
        self._memory = memory.DeviceMemory(self._device)
        lanes = list(self._lanes.values())
        for lane in lanes:
            self._load(lane, evidence)
        self._preflight([lane for lane in lanes if lane.runner.buckets])
        for lane in lanes:
            self._warm_up(lane)
        if evidence.compiles:
            # Process-wide: from here on a guard failure raises, it never compiles.
            torch.compiler.set_stance("fail_on_recompile")
        self._compiles_at_ready = evidence.compiles
        self._memory.warmed_up()
        for lane in lanes:
            self._tell(lane, state="ready", mode=self._shifted)
        self._tell_device()

    def _load(self, lane: Lane, evidence: Evidence) -> None:
        started = time.perf_counter()
        dtype = str(self._dtype).removeprefix("torch.")
        self._tell(lane, device=str(self._device), dtype=dtype)
        module = load_module(lane.model, self._device, self._dtype)
        lane.grid = make_grid(self._settings, lane.model, self._device.type)
        layout = layout_of(module)
        loaded = Loaded(lane.model, module, self._device, self._dtype, layout, lane.grid)
        skipped = {
            bucket: reason
            for (model, bucket), reason in self._skipped.items()
            if model == lane.model.name
        }
        lane.runners = make_runners(self._mode, loaded, self._settings.compile, evidence, skipped)
        lane.weight_bytes = memory.weight_bytes(module)
        self._tell(
            lane,
            load_s=time.perf_counter() - started,
            facts=lane.model.describe(),
            modes=tuple(lane.runners),
            buckets=tuple(BucketStatus(str(bucket)) for bucket in lane.runner.buckets),
        )

    def _preflight(self, compiling: Sequence[Lane]) -> None:
        reason = blocking_reason(self._settings, self._device) if compiling else None
        for lane in compiling:
            if reason is not None:
                lane.runners[self._mode] = BlockedRunner(lane.runner, lane.model, reason)

    def _warm_up(self, lane: Lane) -> None:
        self._tell(lane, state="warming")
        started = time.perf_counter()
        lane.runner.warm_up(lambda bucket: self._tell_bucket(lane, bucket))
        self._tell(lane, warmup_s=time.perf_counter() - started)

    def _tell_bucket(self, lane: Lane, bucket: BucketStatus) -> None:
        if bucket.state == "eager" and self._settings.compile.on_failure == "refuse":
            raise StartFailed(f"{lane.model.name}: bucket {bucket.bucket}: {bucket.reason}")
        buckets = tuple(bucket if b.bucket == bucket.bucket else b for b in lane.status.buckets)
        self._tell(lane, buckets=buckets)

    def _tell(self, lane: Lane, **changes: Any) -> None:
        lane.status = replace(lane.status, **changes)
        self._listener.status(lane.status)

    def _serve(self) -> None:
        while True:
            while self._batcher.is_idle(DEVICE_EVERY_S):
                self._tell_device()
            work = self._batcher.next()
            if work is None:
                return
            name, batch = work
            lane = self._lanes[name]
            for size in lane.runner.parts(len(batch), batch[0].length):
                self._step(lane, batch[:size])
                batch = batch[size:]

    def _step(self, lane: Lane, batch: Sequence[Pending]) -> None:
        """Run one batch; every sample of it gets its reply or its error."""
        name = lane.model.name
        started = time.monotonic()
        self._listener.device_takes([pending.sample.id for pending in batch])
        try:
            result = lane.runner.run([pending.sample.inputs for pending in batch])
        except Exception:  # the batch edge: whatever a model raises is answered, not passed on
            require_alive(self._device)
            log.exception("%s: a batch of %d failed; running each sample alone", name, len(batch))
            for pending in batch:
                self._run_alone(lane, lane.runner, pending, started)
        else:
            self._finish(lane, batch, result, started)

    def _run_alone(self, lane: Lane, runner: Runner, pending: Pending, started: float) -> None:
        self._listener.device_takes([pending.sample.id])
        try:
            result = runner.run_eager([pending.sample.inputs], "batch_failed")
        except Exception:  # the batch edge
            require_alive(self._device)
            log.exception("%s: a sample failed, alone and eager", lane.model.name)
            pending.future.set_exception(InferenceFailed("the model could not process this input"))
            self._listener.device_free()
        else:
            self._finish(lane, [pending], result, started)

    def _finish(
        self, lane: Lane, batch: Sequence[Pending], result: BatchResult, started: float
    ) -> None:
        bucket = str(result.bucket)
        for pending, outputs in zip(batch, result.outputs, strict=True):
            timings = Timings(started - pending.enqueued_at, result.inference_s)
            pending.future.set_result(Reply(outputs, result.mode, bucket, timings, result.fallback))
        self._listener.device_free()  # before what follows: somebody waits for the answers
        self._listener.batch(
            BatchRecord(
                model=lane.model.name,
                mode=result.mode,
                bucket=bucket,
                size=len(batch),
                padding_ratio=_padding_ratio(lane.model, batch, result),
                inference_s=result.inference_s,
                queue_depth=self._batcher.depth(lane.model.name),
                longest_wait_s=started - batch[0].enqueued_at,
                fallback=result.fallback,
            )
        )
        if time.monotonic() - self._device_told_at > DEVICE_EVERY_S:
            self._tell_device()

    def _tell_device(self) -> None:
        self._device_told_at = time.monotonic()
        self._listener.device(
            DeviceRecord(
                device=str(self._device),
                mode=self._mode,
                weights={lane.model.name: lane.weight_bytes for lane in self._lanes.values()},
                device_bytes=self._memory.by_kind(),
                resident_bytes=memory.resident_bytes(),
                compiles=self._evidence.compiles,
                compiles_serving=self._evidence.compiles - self._compiles_at_ready,
                graph_replays=self._evidence.replays,
            )
        )


def _padding_ratio(model: ServedModel, batch: Sequence[Pending], result: BatchResult) -> float:
    """Share of what ran that was padding: 0 to 1, in elements of batch times `seq`."""
    ran = result.padded_size * max(1, result.padded_seq)
    real = sum(max(1, seq_length(model, pending.sample.inputs)) for pending in batch)
    return 1 - real / ran
