"""What is on the device right now, kept where it outlives the worker: a file in shared memory.

The worker's executor writes it before each batch, which costs a microsecond. The main process reads
how long the batch has run; the next worker reads what the one before it ended in the middle of.
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


class Page(ctypes.Structure):
    """The file. `count` is written last: until then there is nothing to read."""

    _fields_ = (
        ("count", ctypes.c_uint64),
        ("started_at", ctypes.c_double),
        ("owner", ctypes.c_uint64),
        ("stuck", ctypes.c_uint64),
        ("ids", ctypes.c_uint64 * MAX_BATCH_SIZE),
    )


@dataclass(frozen=True, slots=True)
class LostBatch:
    """The ids of the samples that were on the device when the worker ended.

    `stuck`: it was ended because they ran for too long.
    """

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
        page = self._page
        lost = LostBatch(tuple(page.ids[: page.count]), bool(page.stuck))
        page.count = page.stuck = 0
        page.owner = os.getpid()
        return lost

    def begin(self, ids: Sequence[int]) -> None:
        """These samples go to the device now."""
        self._page.started_at = time.monotonic()
        self._page.ids[: len(ids)] = ids
        self._page.count = len(ids)

    def end(self) -> None:
        """The device is free."""
        self._page.count = 0

    def running_s(self, owner: int | None) -> float:
        """How long the batch of a worker, by process id, has run; 0 when it runs none."""
        page = self._page
        if page.owner != owner or not page.count:
            return 0.0
        return time.monotonic() - float(page.started_at)

    def condemn(self) -> None:
        """Note that the batch on the device is why the worker will be ended."""
        self._page.stuck = 1
