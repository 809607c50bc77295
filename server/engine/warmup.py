"""Proves one bucket: compile, run until nothing is left to compile or record, compare with eager.

A bucket counts as compiled when after its compile a whole pass of batches (full, one sample alone,
the full one again) (1) compiled and recorded nothing and ran at least one
compiled graph, (2) on CUDA replayed at least one CUDA graph, (3) gave answers as good as eager's,
and (4) to the full one twice the same. Knows nothing of how a batch is run: it is given functions
that do.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Sequence
from typing import Any

from torch._dynamo.exc import BackendCompilerFailed, TorchDynamoException

from server.engine import memory
from server.engine.capture import Evidence
from server.engine.contract import BatchResult, Loaded
from server.engine.judge import Judge, Run, first_line
from server.types import Arrays, Bucket, BucketState, BucketStatus

log = logging.getLogger(__name__)

PASSES = 4  # on CUDA the first one records; a model with branches may need one for each
RunCompiled = Callable[[Bucket, Sequence[Arrays]], BatchResult]
Answers = Sequence[Arrays]
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
        self._judge = Judge(loaded, run_eager, run_float64)
        self._evidence = evidence
        self._wants_replays = wants_replays
        self._skips_before = len(evidence.skip_reasons)

    def of(self, bucket: Bucket) -> tuple[BucketStatus, NotProven | None]:
        """What warming up `bucket` showed: state "compiled", or "eager" with the reason."""
        batches = self._judge.batches(bucket)
        found: dict[str, Any] = {}  # as far as it got
        pool = self._pool_bytes()
        failure: NotProven | None = None
        try:
            found |= self._compile(bucket, batches[0])
            steady, answers = self._prove(bucket, batches)
            found |= steady
            # Dynamo does not count every kind of break, but between two graphs there is one.
            found["graph_breaks"] = max(found["graph_breaks"], found["graphs"] - 1)
            if self._wants_replays:
                found["graph_pool_bytes"] = self._pool_bytes() - pool
            found |= self._check_parity(answers)
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

    def _prove(
        self, bucket: Bucket, batches: Sequence[Sequence[Arrays]]
    ) -> tuple[dict[str, Any], list[Answers]]:
        """Run `batches`, in passes, until one compiles and records nothing: that is the proof.

        Returns what it showed, and the answers to each of `batches`.
        """
        started = time.perf_counter()
        for _ in range(PASSES):
            before = self._evidence.counts()
            with self._evidence.graph_calls() as calls:
                first = self._run_compiled(bucket, batches[0])
            replays = (self._evidence.counts() - before).replays
            answers: list[Answers] = [first.outputs]
            answers += [self._run_compiled(bucket, batch).outputs for batch in batches[1:]]
            again = self._run_compiled(bucket, batches[0])
            if not (self._evidence.counts() - before).compiles:
                break
        else:
            raise NotProven(f"still compiling after {PASSES} passes")
        if not calls:
            raise NotProven("0 graphs: Dynamo took no part of the model")
        if self._wants_replays and not replays:
            reasons = "; ".join(sorted(set(self._evidence.skip_reasons[self._skips_before :])))
            raise NoReplay(f"no CUDA graph was replayed: {reasons or 'torch gave no reason'}")
        if not _are_equal(first.outputs, again.outputs):
            raise NotProven("isolation: the same batch gave other answers after another batch")
        found = {
            "warmup_s": time.perf_counter() - started,
            "run_s": min(first.inference_s, again.inference_s),
            "graphs": len(calls),
            "replays_per_call": replays if self._wants_replays else None,
        }
        return found, answers

    def _pool_bytes(self) -> int:
        return memory.graph_pool_bytes(self._loaded.device) or 0

    def _check_parity(self, answers: Sequence[Answers]) -> dict[str, Any]:
        parity = self._judge.of(*answers)
        if parity.problem is not None:
            raise NotProven(f"parity: {parity.problem}")
        return {
            "parity_rule": self._judge.rule,
            "parity_max_abs_error": parity.max_abs_error,
            "parity_rmse": parity.rmse,
            "parity_eager_rmse": parity.eager_rmse,
            "parity_cosine": parity.cosine,
        }


def _are_equal(ones: Answers, others: Answers) -> bool:
    """Bit for bit; what is not a number is parity's business."""
    return all(
        one[name].tobytes() == other[name].tobytes()
        for one, other in zip(ones, others, strict=True)
        for name in one
    )


def _explain(error: Exception) -> str:
    """Kind, first line, and the line of the model's own code that Dynamo stopped at."""
    text = f"{type(error).__name__}: {first_line(error)}"
    places = list(USER_CODE.finditer(str(error).partition("from user code:")[2]))
    if not places:
        return text
    return f"{text} (at {places[-1]['file']}:{places[-1]['line']}: {places[-1]['code']})"
