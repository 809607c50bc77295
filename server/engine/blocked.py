"""The runner of a machine that cannot compile: every bucket is served eager, saying why.

Stands in front of the runner that would have compiled, and never lets it.
"""

from __future__ import annotations

from collections.abc import Sequence

from models.base import ServedModel
from server.engine.contract import BatchResult, Report, Runner
from server.engine.tensors import rows_of
from server.types import Arrays, BucketStatus, Fallback


class BlockedRunner:
    """Runs what `runner` would run, eager. `reason` is shown for each of its buckets."""

    def __init__(self, runner: Runner, model: ServedModel, reason: str) -> None:
        self.mode = runner.mode
        self.buckets = runner.buckets
        self._runner = runner
        self._model = model
        self._reason = reason

    def warm_up(self, report: Report) -> None:
        """One eager run of the largest bucket: a broken model shows at start."""
        largest = self.buckets[0]
        self.run(rows_of(self._model.example(largest.batch, largest.seq)))
        for bucket in self.buckets:
            report(BucketStatus(str(bucket), "eager", self._reason))

    def parts(self, size: int, seq: int) -> Sequence[int]:
        return (size,)

    def run(self, samples: Sequence[Arrays]) -> BatchResult:
        return self._runner.run_eager(samples, "bucket_not_compiled")

    def run_eager(self, samples: Sequence[Arrays], reason: Fallback) -> BatchResult:
        return self._runner.run_eager(samples, reason)
