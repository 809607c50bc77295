"""Who gets in: each model takes so many samples at a time, the rest is told when to come back.

Counts in this API process; knows nothing of bodies or workers.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager

from server.errors import Overloaded, PayloadTooLarge
from server.metrics import INFLIGHT

RATE_WINDOW_S = 10.0
LONGEST_RETRY_S = 60.0


class Admission:
    """The bound of one model, in samples."""

    def __init__(self, model: str, max_queue: int) -> None:
        self._model = model
        self._free = self._limit = max_queue
        self._inflight = INFLIGHT.labels(model)
        self._drain = DrainRate()

    @contextmanager
    def request(self) -> Iterator[None]:
        """Room for a request of one sample, from its body to its answer. Raises Overloaded."""
        with self._places(1):
            self._inflight.inc()
            try:
                yield
            finally:
                self._inflight.dec()

    @contextmanager
    def whole(self, samples: int) -> Iterator[None]:
        """Room for all `samples` of a request that has room for one. Raises Overloaded.

        PayloadTooLarge where the queue would have to be longer: coming back would not help.
        """
        if samples > self._limit:
            raise PayloadTooLarge(
                f"{samples} samples; this server takes at most {self._limit} at a time "
                "(batching.max_queue), so trying again will not help: send fewer in one request"
            )
        with self._places(samples - 1):
            yield

    @contextmanager
    def _places(self, count: int) -> Iterator[None]:
        """`count` places, all or none; they count as answered where nothing is raised."""
        taken = self._limit - self._free
        if count > self._free:
            raise Overloaded(
                f"{self._model}: {taken} of {self._limit} places are taken, {count} wanted",
                retry_after_s=min(self._drain.seconds_for(taken), LONGEST_RETRY_S),
            )
        if not taken:
            self._drain.resume()
        self._free -= count
        try:
            yield
            self._drain.answered(count)
        finally:
            self._free += count


class DrainRate:
    """Samples answered per second of the time in which some were waiting, lately."""

    def __init__(self) -> None:
        self._answered = 0.0
        self._busy_s = 0.0
        self._counted_to = time.monotonic()

    def resume(self) -> None:
        """Nothing was waiting until now."""
        self._counted_to = time.monotonic()

    def answered(self, samples: int) -> None:
        """Count samples; what was counted before counts less with every second."""
        now = time.monotonic()
        passed_s, self._counted_to = now - self._counted_to, now
        fading = math.exp(-passed_s / RATE_WINDOW_S)
        self._answered = self._answered * fading + samples
        self._busy_s = self._busy_s * fading + passed_s

    def seconds_for(self, samples: int) -> float:
        """How long so many samples take at this rate; 0 when none was ever answered."""
        if not self._answered:
            return 0.0
        busy_s = self._busy_s + time.monotonic() - self._counted_to
        return samples * busy_s / self._answered
