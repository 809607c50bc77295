"""Proves one bucket: compile, run, show that one more run compiles nothing, compare with eager.

A bucket counts as compiled when (1) it ran at least three times, (2) a run after that triggered no
compile and no recording, (3) on CUDA that run replayed at least one graph, (4) its answers are the
eager answers, also for a batch that is not full, and the same again after another batch ran.
Knows nothing of how a batch is run: it is given two functions that do.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from server.engine.capture import Evidence
from server.engine.contract import BatchResult, Loaded
from server.engine.parity import compare
from server.engine.tensors import rows_of
from server.types import Arrays, Bucket, BucketStatus

log = logging.getLogger(__name__)

RUNS_BEFORE_PROOF = 3  # CUDA-graph trees: compile and warm up, record, replay


class NotProven(Exception):
    """The bucket is served eager; the text says why."""


class Proof:
    """Proves the buckets of one model, driving the same code path that serves."""

    def __init__(
        self,
        loaded: Loaded,
        run_compiled: Callable[[Bucket, Sequence[Arrays]], BatchResult],
        run_eager: Callable[[Sequence[Arrays]], BatchResult],
        evidence: Evidence,
    ) -> None:
        self._loaded = loaded
        self._run_compiled = run_compiled
        self._run_eager = run_eager
        self._evidence = evidence
        self._graphs_before = evidence.graphs

    def of(self, bucket: Bucket) -> BucketStatus:
        """What came of warming up `bucket`: state "compiled", or "eager" with the reason."""
        samples = rows_of(self._loaded.model.example(bucket.batch, bucket.seq))
        status = BucketStatus(str(bucket), "compiling")
        try:
            status = self._compile(bucket, samples, status)
            status = self._prove_still(bucket, samples, status)
            worst = max(self._check_parity(bucket, part) for part in (samples, samples[-1:]))
            self._check_isolation(bucket, samples)
        except NotProven as reason:
            return replace(status, state="eager", reason=str(reason))
        return replace(status, state="compiled", parity_max_abs_error=worst)

    def _compile(
        self, bucket: Bucket, samples: Sequence[Arrays], status: BucketStatus
    ) -> BucketStatus:
        started = time.perf_counter()
        try:
            self._run_compiled(bucket, samples)
        except Exception as error:  # whatever a compiler raises: the bucket is served eager
            log.debug("bucket %s cannot be compiled", bucket, exc_info=True)
            reason = f"{type(error).__name__}: {_first_line(error)}"
            raise NotProven(f"cannot be compiled: {reason}") from error
        if self._evidence.graphs == self._graphs_before:
            raise NotProven("0 graphs: Dynamo took no part of the model")
        return replace(status, compile_s=time.perf_counter() - started)

    def _prove_still(
        self, bucket: Bucket, samples: Sequence[Arrays], status: BucketStatus
    ) -> BucketStatus:
        started = time.perf_counter()
        for _ in range(RUNS_BEFORE_PROOF - 1):
            self._run_compiled(bucket, samples)
        compiles, replays = self._evidence.compiles, self._evidence.replays
        self._run_compiled(bucket, samples)
        if self._evidence.compiles != compiles:
            raise NotProven(f"still compiling at run {RUNS_BEFORE_PROOF + 1}")
        replayed = self._evidence.replays - replays if self._loaded.device.type == "cuda" else None
        if replayed == 0:
            reasons = "; ".join(sorted(set(self._evidence.skip_reasons))) or "no reason logged"
            raise NotProven(f"no CUDA graph was replayed: {reasons}")
        warmup_s = time.perf_counter() - started
        return replace(status, warmup_s=warmup_s, replays_per_call=replayed)

    def _check_parity(self, bucket: Bucket, samples: Sequence[Arrays]) -> float:
        eager, compiled = self._run_eager(samples), self._run_compiled(bucket, samples)
        dtype = str(self._loaded.dtype).removeprefix("torch.")
        parities = [
            compare(expected, actual, dtype)
            for expected, actual in zip(eager.outputs, compiled.outputs, strict=True)
        ]
        for parity in parities:
            if parity.problem is not None:
                raise NotProven(f"parity: {parity.problem}")
        return max(parity.max_abs_error for parity in parities)

    def _check_isolation(self, bucket: Bucket, samples: Sequence[Arrays]) -> None:
        others = rows_of(self._loaded.model.example(bucket.batch + 1, bucket.seq))[1:]
        first = self._run_compiled(bucket, samples).outputs
        self._run_compiled(bucket, others)
        again = self._run_compiled(bucket, samples).outputs
        for one, two in zip(first, again, strict=True):
            if any(not np.array_equal(one[name], two[name]) for name in one):
                raise NotProven("isolation: the same batch gave other answers after another batch")


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else "no message"
