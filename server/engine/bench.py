"""What compiling buys, without HTTP: both runners on the same inputs, in turn, bucket by bucket.

Drives the runners that serve. The clock stops after the outputs are on the host, so the device is
done; warm-up is reported apart. Knows nothing of how the figures are shown.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from models.base import ServedModel
from server.config import Settings
from server.engine.buckets import Grid
from server.engine.capture import Evidence
from server.engine.contract import Loaded, Runner
from server.engine.devices import pick_device, pick_dtype
from server.engine.environment import configure_thread
from server.engine.loading import layout_of, load_module
from server.engine.runner import make_runner
from server.engine.tensors import rows_of
from server.types import Arrays, Bucket, BucketStatus

CALLS_A_ROUND = 5
LEAST_ROUNDS = 5


@dataclass(frozen=True, slots=True)
class Latencies:
    """Seconds a call, each call of one mode."""

    seconds: np.ndarray[tuple[int], np.dtype[np.float64]]

    def quantile(self, q: float) -> float:
        """Seconds a call at quantile `q`."""
        return float(np.quantile(self.seconds, q))


@dataclass(frozen=True, slots=True)
class Comparison:
    """One bucket of one model in both modes. `speedup` is the median ratio of paired rounds."""

    model: str
    bucket: Bucket
    eager: Latencies
    compiled: Latencies
    speedup: float
    status: BucketStatus


def compare(
    model: ServedModel,
    settings: Settings,
    batches: Sequence[int],
    seqs: Sequence[int],
    seconds: float,
) -> Iterator[Comparison]:
    """Measure `model` in every bucket of `batches` times `seqs`, each for about `seconds`.

    `seqs` beyond the model's limits are cut to them; none are used by a model without `seq`.
    """
    configure_thread(settings)
    with torch.inference_mode():
        loaded = _load(model, settings, batches, seqs)
        evidence = Evidence()
        runners = [
            make_runner(mode, loaded, settings.compile, evidence) for mode in ("eager", "compiled")
        ]
        statuses: dict[str, BucketStatus] = {}
        for runner in runners:
            runner.warm_up(lambda status: statuses.update({status.bucket: status}))
        for bucket in reversed(loaded.grid.largest_first()):
            rows = rows_of(model.example(bucket.batch, bucket.seq))
            eager, compiled = _in_turn(runners, rows, seconds)
            ratios = np.median(eager, axis=1) / np.median(compiled, axis=1)
            yield Comparison(
                model=model.name,
                bucket=bucket,
                eager=Latencies(eager.ravel()),
                compiled=Latencies(compiled.ravel()),
                speedup=float(np.median(ratios)),
                status=statuses[str(bucket)],
            )


def _load(
    model: ServedModel, settings: Settings, batches: Sequence[int], seqs: Sequence[int]
) -> Loaded:
    device, dtype = pick_device(settings.device), pick_dtype(settings.dtype)
    module = load_module(model, device, dtype)
    if model.max_seq is None:
        cut = [0]
    else:
        cut = sorted({min(max(seq, model.min_seq), model.max_seq) for seq in seqs})
    grid = Grid(tuple(sorted(set(batches))), tuple(cut))
    return Loaded(model, module, device, dtype, layout_of(module), grid)


def _in_turn(
    runners: Sequence[Runner], rows: Sequence[Arrays], seconds: float
) -> list[np.ndarray[tuple[int, int], np.dtype[np.float64]]]:
    """Rounds of calls, the runners in turn within each: [rounds, calls] seconds per runner."""
    rounds: list[list[list[float]]] = [[] for _ in runners]
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(rounds[0]) < LEAST_ROUNDS:
        for runner, kept in zip(runners, rounds, strict=True):
            kept.append([_seconds(runner, rows) for _ in range(CALLS_A_ROUND)])
    return [np.array(kept) for kept in rounds]


def _seconds(runner: Runner, rows: Sequence[Arrays]) -> float:
    started = time.perf_counter()
    runner.run(rows)
    return time.perf_counter() - started
