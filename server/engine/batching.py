"""Samples to batches: at once when the device is free, to each model its share of the device.

One queue a model, taken from by one thread. Next is the model that had the least of the device's
time, so that one with slow batches and a long queue costs another at most one batch. Within a model
it is the oldest sample, with others of like length: nobody is overtaken for ever. A sample whose
client left or whose deadline passed never reaches the device, so no wait is longer than a deadline.
Knows nothing of torch or of what a batch is for.
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

    def may_join(self, first: Pending) -> bool:
        """Whether it can run in a batch with `first`."""
        return self.length == first.length and not (self.sample.alone or first.sample.alone)

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
        # Seconds of the device that each model had. One that was idle starts where the others are:
        # it has saved up nothing.
        self._had_s = dict.fromkeys(models, 0.0)
        self._level_s = 0.0
        self._on_device: tuple[str, float] | None = None

    def put(self, model: str, pending: Sequence[Pending]) -> None:
        """Queue samples, so that a free device sees all of them at once."""
        with self._changed:
            if not self._queues[model]:
                self._had_s[model] = max(self._had_s[model], self._level_s)
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
            self._charge()
            return not self._changed.wait_for(self._has_work, for_s)

    def next(self) -> tuple[str, list[Pending]] | None:
        """The next batch, waiting for one; None once closed and empty.

        The time until it, or `is_idle`, is called again is what the batch cost.
        """
        with self._changed:
            self._charge()
            while True:
                waits = {
                    model: self._worth_waiting_s(queue)
                    for model, queue in self._queues.items()
                    if queue
                }
                due = [model for model, wait_s in waits.items() if wait_s <= 0]
                if due:
                    model = min(due, key=self._turn)
                    if batch := self._take(self._queues[model]):
                        self._level_s = self._had_s[model]
                        self._on_device = model, time.monotonic()
                        return model, batch
                elif self._closed:
                    return None
                else:
                    self._changed.wait(min(waits.values(), default=None))

    def _has_work(self) -> bool:
        return self._closed or any(self._queues.values())

    def _charge(self) -> None:
        if self._on_device is not None:
            model, since = self._on_device
            self._had_s[model] += time.monotonic() - since
            self._on_device = None

    def _turn(self, model: str) -> tuple[float, float]:
        return self._had_s[model], self._queues[model][0].enqueued_at

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
            if batch and not pending.may_join(batch[0]):
                others.append(pending)
            elif pending.claim(now):
                batch.append(pending)
        queue.extendleft(reversed(others))
        return batch
