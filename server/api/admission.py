"""Who gets in: each model takes so many samples at a time, the rest is told when to come back.

Counts in this API process; knows nothing of bodies or workers.
"""

from __future__ import annotations

import math
import time
from types import TracebackType

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

    def request(self) -> Admitted:
        """A block that has room for a request, of one sample at first."""
        return Admitted(self)

    def check(self, samples: int) -> None:
        """Raises PayloadTooLarge for more samples than there are places."""
        if samples > self._limit:
            raise PayloadTooLarge(
                f"{samples} samples; this server takes at most {self._limit} at a time "
                "(batching.max_queue), so trying again will not help: send fewer in one request"
            )

    def enter(self) -> None:
        """A request of one sample comes. Raises Overloaded."""
        self.take(1)
        self._inflight.inc()

    def take(self, count: int) -> None:
        """`count` places, all or none. Raises Overloaded."""
        taken = self._limit - self._free
        if count > self._free:
            raise Overloaded(
                f"{self._model}: {taken} of {self._limit} places are taken, {count} wanted",
                retry_after_s=min(self._drain.seconds_for(taken), LONGEST_RETRY_S),
            )
        if not taken:
            self._drain.resume()
        self._free -= count

    def leave(self, count: int, answered: bool) -> None:
        """A request that has `count` places ends."""
        if answered:
            self._drain.answered(count)
        self._free += count
        self._inflight.dec()


class Admitted:
    """The places of one request, from its body to its answer. Raises Overloaded where there is
    none; they count as answered where the block raises nothing."""

    __slots__ = ("_admission", "_count")

    def __init__(self, admission: Admission) -> None:
        self._admission = admission
        self._count = 1

    def with_samples(self, count: int) -> None:
        """Room for all samples of the request. Raises Overloaded, or PayloadTooLarge where the
        queue would have to be longer: coming back would not help."""
        self._admission.check(count)
        self._admission.take(count - 1)
        self._count = count

    def __enter__(self) -> Admitted:
        self._admission.enter()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None
    ) -> None:
        self._admission.leave(self._count, answered=kind is None)


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
