"""Samples to batches: the oldest first, with others of like length, at once when the device is
free.

One queue a model, taken from by one thread. A sample whose client left or whose deadline passed
never reaches the device. Knows nothing of torch or of what a batch is for.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

from server.errors import DeadlineExceeded
from server.types import Reply, Sample


@dataclass(slots=True, eq=False)
class Pending:
    """One sample waiting for its batch. `length` is its bucket along `seq`; 0 without one."""

    sample: Sample
    length: int
    future: Future[Reply] = field(default_factory=Future)
    enqueued_at: float = field(default_factory=time.monotonic)

    def claim(self, now: float) -> bool:
        """Take it for a batch. False when there is nobody to answer, or it is too late."""
        if not self.future.set_running_or_notify_cancel():
            return False
        if self.sample.deadline <= now:
            self.future.set_exception(DeadlineExceeded("the deadline passed in the queue"))
            return False
        return True


class Batcher:
    """The queues of all models of a worker. `put` from any thread, `next` from one."""

    def __init__(self, models: list[str], max_batch_size: int, batch_timeout_s: float) -> None:
        self._queues: dict[str, deque[Pending]] = {model: deque() for model in models}
        self._max_batch_size = max_batch_size
        self._batch_timeout_s = batch_timeout_s
        self._changed = threading.Condition()
        self._closed = False

    def put(self, model: str, pending: Sequence[Pending]) -> None:
        """Queue samples, so that a free device sees all of them at once."""
        with self._changed:
            self._queues[model].extend(pending)
            self._changed.notify()

    def depth(self, model: str) -> int:
        """Samples of `model` that wait."""
        return len(self._queues[model])

    def close(self) -> None:
        """No more batches once the queues are empty."""
        with self._changed:
            self._closed = True
            self._changed.notify()

    def is_idle(self, for_s: float) -> bool:
        """Whether nothing came for so long; at once False when something is queued, or closed."""
        with self._changed:
            return not self._changed.wait_for(self._has_work, for_s)

    def next(self) -> tuple[str, list[Pending]] | None:
        """The next batch, waiting for one; None once closed and empty."""
        with self._changed:
            while True:
                model = self._oldest()
                if model is None:
                    if self._closed:
                        return None
                    self._changed.wait()
                    continue
                wait_s = self._worth_waiting_s(self._queues[model])
                if wait_s > 0:
                    self._changed.wait(wait_s)
                    continue
                batch = self._take(self._queues[model])
                if batch:
                    return model, batch

    def _has_work(self) -> bool:
        return self._closed or any(self._queues.values())

    def _oldest(self) -> str | None:
        waiting = [(queue[0].enqueued_at, model) for model, queue in self._queues.items() if queue]
        return min(waiting)[1] if waiting else None

    def _worth_waiting_s(self, queue: deque[Pending]) -> float:
        if self._closed or len(queue) >= self._max_batch_size:
            return 0.0
        return queue[0].enqueued_at + self._batch_timeout_s - time.monotonic()

    def _take(self, queue: deque[Pending]) -> list[Pending]:
        """The oldest sample that is still wanted and the next ones of its length."""
        now = time.monotonic()
        batch: list[Pending] = []
        others: list[Pending] = []
        while queue and len(batch) < self._max_batch_size:
            pending = queue.popleft()
            if batch and pending.length != batch[0].length:
                others.append(pending)
            elif pending.claim(now):
                batch.append(pending)
        queue.extendleft(reversed(others))
        return batch
