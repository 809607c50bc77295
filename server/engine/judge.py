"""Holds the compiled answers of a bucket against eager's and, where it runs, the model in float64.

Decides what is asked and who is the truth; `parity` decides what is good enough. Compiles and runs
nothing compiled: it is given those answers.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property

import numpy as np

from server.engine.contract import BatchResult, Loaded
from server.engine.parity import Parity, compare, compare_closely, worst
from server.engine.reference import precision_of
from server.engine.tensors import rows_of
from server.types import Arrays, Bucket, ParityRule

log = logging.getLogger(__name__)

Run = Callable[[Sequence[Arrays]], BatchResult]


class Judge:
    """Judges the buckets of one model, those of one `seq` after each other.

    They share their samples, and so one run of eager: a row's answer does not depend on how many
    rows there are. Where it does, the bucket fails, as it must: batches change with the traffic.
    """

    def __init__(self, loaded: Loaded, run_eager: Run, run_float64: Run | None) -> None:
        self._loaded = loaded
        self._run_eager = run_eager
        self._run_float64 = run_float64
        self._seq = -1
        self._full: Reference
        self._other: Reference

    @property
    def rule(self) -> ParityRule:
        """Who is the truth."""
        return "float64" if self._run_float64 else "eager"

    def batches(self, bucket: Bucket) -> list[Sequence[Arrays]]:
        """A full batch, and one sample alone: mostly padding rows, and padded along `seq`."""
        if bucket.seq != self._seq:
            self._full, self._other = self._references(bucket.seq)
            self._seq = bucket.seq
        return [self._full.samples[: bucket.batch], self._other.samples]

    def _references(self, seq: int) -> tuple[Reference, Reference]:
        model, grid = self._loaded.model, self._loaded.grid
        *full, other = rows_of(model.example(grid.largest(seq) + 1, seq))
        shortest = grid.shortest(seq, model.min_seq)
        if shortest < seq:
            (other,) = rows_of(model.example(1, shortest))
        return (
            Reference(full, self._run_eager, self._truth),
            Reference([other], self._run_eager, self._truth),
        )

    def of(self, full: Sequence[Arrays], other: Sequence[Arrays]) -> Parity:
        """The worst of all samples of `batches`, whose compiled answers are given.

        The other one's answer is held against the truth. So are those of the full batch, unless
        they are so near to eager's that a float64 run of so many would show nothing more; the
        RMSEs are then of the other one alone.
        """
        found = self._compared(self._other, other)
        precision = precision_of(self._loaded.dtype)
        close = worst(
            compare_closely(one, another, precision)
            for one, another in zip(self._full.eager, full, strict=False)  # the first ones
        )
        if self.rule == "float64" and close.problem is None:
            return worst([found, replace(close, rmse=0.0, eager_rmse=0.0)])
        return worst([found, self._compared(self._full, full)])

    def _compared(self, reference: Reference, compiled: Sequence[Arrays]) -> Parity:
        precision, count = precision_of(self._loaded.dtype), len(compiled)
        truth: Sequence[Arrays | None] = reference.truth or [None] * count
        return worst(
            compare(one, another, true, precision)
            for one, another, true in zip(
                reference.eager[:count], compiled, truth[:count], strict=True
            )
        )

    def _truth(self, samples: Sequence[Arrays]) -> list[Arrays] | None:
        """The float64 answers; None, from then on, when the module does not run in float64."""
        if self._run_float64 is None:
            return None
        try:
            outputs = self._run_float64(samples).outputs
        except Exception as error:  # whatever the model raises on inputs of another dtype
            log.info("no float64 reference: %s: %s", type(error).__name__, first_line(error))
            self._run_float64 = None
            return None
        if not self._is_more_precise(outputs[0]):
            log.info("no float64 reference: the model answers in a dtype of its own")
            self._run_float64 = None
            return None
        return outputs

    def _is_more_precise(self, truth: Arrays) -> bool:
        """For halves, what a model pins to float32 is true enough."""
        least = 8 if precision_of(self._loaded.dtype) == "float32" else 4
        floats = [a for a in truth.values() if np.issubdtype(a.dtype, np.floating)]
        return all(array.dtype.itemsize >= least for array in floats)


class Reference:
    """Samples, and what eager and the model in float64 answer: each run once, when first asked."""

    def __init__(
        self,
        samples: Sequence[Arrays],
        run_eager: Run,
        truth: Callable[[Sequence[Arrays]], list[Arrays] | None],
    ) -> None:
        self.samples = samples
        self._run_eager = run_eager
        self._truth = truth

    @cached_property
    def eager(self) -> Sequence[Arrays]:
        return self._run_eager(self.samples).outputs

    @cached_property
    def truth(self) -> Sequence[Arrays] | None:
        return self._truth(self.samples)


def first_line(error: Exception) -> str:
    """What an error says, without the pages that torch may add."""
    lines = str(error).strip().splitlines()
    return lines[0] if lines else "no message"
