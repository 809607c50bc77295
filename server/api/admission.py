"""Who gets in: each model takes so many samples at a time, the rest is told at once to come back.

Counts in this API process; knows nothing of bodies or workers.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from server.errors import Overloaded
from server.metrics import INFLIGHT

RETRY_AFTER_S = 1.0


class Admission:
    """The bound of one model, in samples."""

    def __init__(self, model: str, max_queue: int) -> None:
        self._model = model
        self._free = self._limit = max_queue
        self._inflight = INFLIGHT.labels(model)

    @contextmanager
    def request(self) -> Iterator[None]:
        """Room for a request from its body to its answer. Raises Overloaded."""
        with self.samples(1):
            self._inflight.inc()
            try:
                yield
            finally:
                self._inflight.dec()

    @contextmanager
    def samples(self, count: int) -> Iterator[None]:
        """Room for `count` samples, all or none. Raises Overloaded."""
        if count > self._free:
            raise Overloaded(
                f"{self._model}: {self._limit - self._free} of {self._limit} places are taken, "
                f"{count} wanted",
                retry_after_s=RETRY_AFTER_S,
            )
        self._free -= count
        try:
            yield
        finally:
            self._free += count
