"""Proves one bucket: compile, run, show that one more run compiles nothing, compare with eager.

A bucket counts as compiled when (1) it ran at least three times, (2) a run after that compiled and
recorded nothing and ran at least one compiled graph, (3) on CUDA it replayed at least one CUDA
graph, (4) its answers are as good as eager's, also for a batch that is not full or padded along
`seq`, and the same again after another batch ran. Knows nothing of how a batch is run: it is given
functions that do.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
from torch._dynamo.exc import BackendCompilerFailed, TorchDynamoException

from server.engine import memory
from server.engine.capture import Evidence
from server.engine.contract import Loaded
from server.engine.judge import Judge, Run, RunCompiled, first_line
from server.engine.tensors import rows_of
from server.types import Arrays, Bucket, BucketState, BucketStatus

log = logging.getLogger(__name__)

RUNS_BEFORE_PROOF = 3  # CUDA-graph trees: compile and warm up, record, replay
USER_CODE = re.compile(r'File "(?P<file>.+)", line (?P<line>\d+), in .+\n\s*(?P<code>.+)')


class NotProven(Exception):
    """The bucket is served eager; the text says why."""


class GraphBroken(NotProven):
    """Dynamo cannot take the model whole; in parts it may."""


class NoReplay(NotProven):
    """No CUDA graph was replayed; of parts of the model one may be."""


class Proof:
    """Proves the buckets of one model, driving the same code path that serves."""

    def __init__(
        self,
        loaded: Loaded,
        run_compiled: RunCompiled,
        run_eager: Run,
        run_float64: Run | None,
        evidence: Evidence,
        wants_replays: bool,
    ) -> None:
        """`wants_replays`: without a CUDA graph a bucket is not what was asked for."""
        self._loaded = loaded
        self._run_compiled = run_compiled
        self._judge = Judge(loaded, run_compiled, run_eager, run_float64)
        self._evidence = evidence
        self._wants_replays = wants_replays
        self._skips_before = len(evidence.skip_reasons)

    def of(self, bucket: Bucket) -> tuple[BucketStatus, NotProven | None]:
        """What warming up `bucket` showed: state "compiled", or "eager" with the reason."""
        samples = rows_of(self._loaded.model.example(bucket.batch, bucket.seq))
        found: dict[str, Any] = {}  # as far as it got
        pool = self._pool_bytes()
        failure: NotProven | None = None
        try:
            found |= self._compile(bucket, samples)
            found |= self._prove_still(bucket, samples)
            # Dynamo does not count every kind of break, but between two graphs there is one.
            found["graph_breaks"] = max(found["graph_breaks"], found["graphs"] - 1)
            if self._wants_replays:
                found["graph_pool_bytes"] = self._pool_bytes() - pool
            found |= self._check_parity(bucket, samples)
            self._check_isolation(bucket, samples)
        except NotProven as problem:
            failure = problem
        state: BucketState = "eager" if failure else "compiled"
        reason = str(failure) if failure else None
        return BucketStatus(str(bucket), state, reason, **found), failure

    def _compile(self, bucket: Bucket, samples: Sequence[Arrays]) -> dict[str, Any]:
        before, started = self._evidence.counts(), time.perf_counter()
        try:
            self._run_compiled(bucket, samples)
        except Exception as error:  # whatever a compiler raises: the bucket is served eager
            log.debug("bucket %s cannot be compiled", bucket, exc_info=True)
            is_broken = isinstance(error, TorchDynamoException)
            is_broken &= not isinstance(error, BackendCompilerFailed)
            kind = GraphBroken if is_broken else NotProven
            raise kind(f"cannot be compiled: {_explain(error)}") from error
        seconds = time.perf_counter() - started
        counts = self._evidence.counts() - before
        return {
            "compile_s": seconds,
            "graph_breaks": counts.graph_breaks,
            "cache": counts.cache,
        }

    def _prove_still(self, bucket: Bucket, samples: Sequence[Arrays]) -> dict[str, Any]:
        started = time.perf_counter()
        for _ in range(RUNS_BEFORE_PROOF - 1):
            self._run_compiled(bucket, samples)
        before = self._evidence.counts()
        with self._evidence.graph_calls() as calls:
            self._run_compiled(bucket, samples)
        counts = self._evidence.counts() - before
        if not calls:
            raise NotProven("0 graphs: Dynamo took no part of the model")
        if counts.compiles:
            raise NotProven(f"still compiling at run {RUNS_BEFORE_PROOF + 1}")
        if self._wants_replays and not counts.replays:
            reasons = "; ".join(sorted(set(self._evidence.skip_reasons[self._skips_before :])))
            raise NoReplay(f"no CUDA graph was replayed: {reasons or 'torch gave no reason'}")
        return {
            "warmup_s": time.perf_counter() - started,
            "graphs": len(calls),
            "replays_per_call": counts.replays if self._wants_replays else None,
        }

    def _pool_bytes(self) -> int:
        return memory.graph_pool_bytes(self._loaded.device) or 0

    def _check_parity(self, bucket: Bucket, samples: Sequence[Arrays]) -> dict[str, Any]:
        parity = self._judge.of(bucket, samples)
        if parity.problem is not None:
            raise NotProven(f"parity: {parity.problem}")
        return {
            "parity_rule": self._judge.rule,
            "parity_max_abs_error": parity.max_abs_error,
            "parity_rmse": parity.rmse,
            "parity_eager_rmse": parity.eager_rmse,
            "parity_cosine": parity.cosine,
        }

    def _check_isolation(self, bucket: Bucket, samples: Sequence[Arrays]) -> None:
        others = rows_of(self._loaded.model.example(bucket.batch + 1, bucket.seq))[1:]
        first = self._run_compiled(bucket, samples).outputs
        self._run_compiled(bucket, others)
        again = self._run_compiled(bucket, samples).outputs
        for one, two in zip(first, again, strict=True):
            if any(not np.array_equal(one[name], two[name]) for name in one):
                raise NotProven("isolation: the same batch gave other answers after another batch")


def _explain(error: Exception) -> str:
    """Kind, first line, and the line of the model's own code that Dynamo stopped at."""
    text = f"{type(error).__name__}: {first_line(error)}"
    places = list(USER_CODE.finditer(str(error).partition("from user code:")[2]))
    if not places:
        return text
    return f"{text} (at {places[-1]['file']}:{places[-1]['line']}: {places[-1]['code']})"
