"""What is on the device right now, kept where it outlives the worker: a file in shared memory.

The worker's executor writes it before and after each batch, which costs a microsecond, and once a
second while there is none. The main process reads how long it has said nothing; the next worker
reads what the one before it ended in the middle of.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from server.config import MAX_BATCH_SIZE

IDLE_S = 10.0


class Page(ctypes.Structure):
    """The file. `count` is written last: until then there is nothing to read."""

    _fields_ = (
        ("count", ctypes.c_uint64),
        ("heard_at", ctypes.c_double),
        ("owner", ctypes.c_uint64),
        ("stuck", ctypes.c_uint64),
        ("ids", ctypes.c_uint64 * MAX_BATCH_SIZE),
    )


@dataclass(frozen=True, slots=True)
class LostBatch:
    """The ids of the samples that were on the device when the worker, process `owner`, ended.

    `stuck`: it was ended because they ran for too long.
    """

    owner: int
    ids: tuple[int, ...]
    stuck: bool


class Journal:
    """The journal of one worker, there from the first time that anybody opens it."""

    def __init__(self, path: Path) -> None:
        with path.open("a+b") as file:
            file.truncate(ctypes.sizeof(Page))
            self._page = Page.from_buffer(mmap.mmap(file.fileno(), 0))

    def take_over(self) -> LostBatch:
        """For a new worker: what the one before ended in the middle of."""
        lost, page = self.read(), self._page
        page.count = page.stuck = 0
        page.heard_at = 0.0
        page.owner = os.getpid()
        return lost

    def read(self) -> LostBatch:
        """What a worker that has just ended was in the middle of."""
        page = self._page
        return LostBatch(int(page.owner), tuple(page.ids[: page.count]), bool(page.stuck))

    def begin(self, ids: Sequence[int]) -> None:
        """These samples go to the device now."""
        self._page.heard_at = time.monotonic()
        self._page.ids[: len(ids)] = ids
        self._page.count = len(ids)

    def end(self) -> None:
        """The device is free."""
        self._page.count = 0
        self._page.heard_at = time.monotonic()

    def beat(self) -> None:
        """There is nothing to run, or it goes on as it should."""
        self._page.heard_at = time.monotonic()

    def is_silent(self, owner: int | None, limit_s: float, since: float) -> bool:
        """Whether a worker that serves, by process id, has said nothing for `limit_s` from `since`
        (of `time.monotonic`) on; an idle one, which speaks once a second, for `IDLE_S` at least."""
        page = self._page
        if page.owner != owner or not page.heard_at:
            return False
        silent_s = time.monotonic() - max(float(page.heard_at), since)
        return silent_s > (limit_s if page.count else max(limit_s, IDLE_S))

    def condemn(self) -> None:
        """Note that the worker is ended for its silence."""
        self._page.stuck = 1
