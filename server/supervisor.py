"""Keeps the processes of a server running: replaces one that ends, gives up when that is no use.

Lives in the main process, on its main thread: the kernel counts the end of the *thread* that
started a process as the death of its parent (see `orphans`). Knows nothing of what they do.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from signal import Signals

from prometheus_client import Counter

from server.metrics import record_end
from server.runtime import Runtime

log = logging.getLogger(__name__)

POLL_S = 0.1
SPACING_S = 1.0  # between two starts of one process, whatever it dies of
LONGEST_DELAY_S = 30.0


class Child:
    """One process, replaced when it ends.

    A restart is fruitless when the process before it left no word of progress. Fruitless ones come
    later and later; after `max_restarts` of them in a row `replace` refuses.
    """

    def __init__(
        self,
        name: str,
        start: Callable[[], BaseProcess],
        runtime: Runtime,
        max_restarts: int,
        restarts: Counter,
    ) -> None:
        self.name = name
        self._start = start
        self._runtime = runtime
        self._max_restarts = max_restarts
        self._restarts = restarts
        self._fruitless = 0
        self._started_at = time.monotonic()
        self._due: float | None = None
        self.process = start()
        self.has_progressed = False

    def tend(self) -> str | None:
        """Start the process again if it ended and its time has come; why not, if never again."""
        if self.process.is_alive():
            return None
        if self._due is None:
            return self._ended()
        if time.monotonic() >= self._due:
            self._due = None
            self._started_at = time.monotonic()
            self.process = self._start()
            self._restarts.inc()
        return None

    def _ended(self) -> str | None:
        how = _how_it_ended(self.process.exitcode)
        record_end(self.name)
        failure = self._runtime.take_failure(self.name)
        if self._runtime.take_progress(self.name):
            self.has_progressed = True
            self._fruitless = 0
        elif failure is not None and not self.has_progressed:
            return failure  # it never came up and said why: it would say the same again
        else:
            self._fruitless += 1
        if self._fruitless > self._max_restarts:
            return (
                f"{self.name}: {failure or how}; started again {self._max_restarts} times "
                "(server.max_restarts) and never came up"
            )
        delay_s = min(LONGEST_DELAY_S, 2.0 ** (self._fruitless - 1)) if self._fruitless else 0.0
        self._due = max(time.monotonic() + delay_s, self._started_at + SPACING_S)
        log.error("%s: %s; starting it again in %.0f s", self.name, failure or how, delay_s)
        return None


def wait_for_an_end(children: Sequence[Child], timeout_s: float) -> None:
    """Return as soon as a process ends, or after `timeout_s`."""
    running = [child.process.sentinel for child in children if child.process.is_alive()]
    if running:
        wait(running, timeout_s)
    else:
        time.sleep(timeout_s)


def _how_it_ended(exit_code: int | None) -> str:
    assert exit_code is not None, "asked of processes that ended"
    return f"killed by {Signals(-exit_code).name}" if exit_code < 0 else f"exit code {exit_code}"
