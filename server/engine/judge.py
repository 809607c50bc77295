"""Holds the compiled answers of a bucket against eager's and, where it runs, the model in float64.

Decides what is asked and who is the truth; `parity` decides what is good enough. Compiles and runs
nothing compiled: it is given those answers.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

import numpy as np

from server.engine.contract import BatchResult, Loaded
from server.engine.parity import Parity, compare, worst
from server.engine.reference import precision_of
from server.engine.tensors import rows_of
from server.types import Arrays, Bucket, ParityRule

log = logging.getLogger(__name__)

Run = Callable[[Sequence[Arrays]], BatchResult]


class Judge:
    """Judges the buckets of one model."""

    def __init__(self, loaded: Loaded, run_eager: Run, run_float64: Run | None) -> None:
        self._loaded = loaded
        self._run_eager = run_eager
        self._run_float64 = run_float64

    @property
    def rule(self) -> ParityRule:
        """Who is the truth."""
        return "float64" if self._run_float64 else "eager"

    def batches(self, bucket: Bucket) -> list[Sequence[Arrays]]:
        """A full batch, one that is mostly padding rows, one that is padded along `seq`."""
        model = self._loaded.model
        *full, other = rows_of(model.example(bucket.batch + 1, bucket.seq))
        batches: list[Sequence[Arrays]] = [full, [other]]
        shortest = self._loaded.grid.shortest(bucket.seq, model.min_seq)
        if shortest < bucket.seq:
            batches.append(rows_of(model.example(1, shortest)))
        return batches

    def of(
        self, batches: Sequence[Sequence[Arrays]], compiled: Sequence[Sequence[Arrays]]
    ) -> Parity:
        """The worst of all samples of `batches`, whose compiled answers are `compiled`."""
        return worst(map(self._compare, batches, compiled))

    def _compare(self, samples: Sequence[Arrays], compiled: Sequence[Arrays]) -> Parity:
        eager = self._run_eager(samples).outputs
        truth: Sequence[Arrays | None] = self._truth(samples) or [None] * len(samples)
        precision = precision_of(self._loaded.dtype)
        return worst(
            compare(one, other, true, precision)
            for one, other, true in zip(eager, compiled, truth, strict=True)
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


def first_line(error: Exception) -> str:
    """What an error says, without the pages that torch may add."""
    lines = str(error).strip().splitlines()
    return lines[0] if lines else "no message"
