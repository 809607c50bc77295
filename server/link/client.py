"""The API process's end of the link: a connection to the worker that comes back by itself.

Samples out, replies in. A worker that ends takes no sample with it: each is kept until it is
answered and sent again once its model is ready again. Samples that were on the device when the
worker ended may be why it did: they are sent to run alone, and one that was there when a worker
ended twice gets an error. If the device was stuck, those on it are not tried again at all: others
have waited long enough. Knows no HTTP and no engine.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from server.errors import (
    DeadlineExceeded,
    GearshiftError,
    InferenceFailed,
    ShuttingDown,
    Unavailable,
)
from server.link import messages
from server.link.channel import Channel, Header
from server.link.journal import LostBatch
from server.types import Arrays, Mode, ModelStatus, Reply, Sample

RECONNECT_S = 0.05
RETRY_AFTER_S = 1.0
MOST_DEATHS = 2


@dataclass(slots=True, eq=False)
class Asked:
    """One sample that waits for its answer. `deaths`: workers that ended while they ran it."""

    id: int
    model: str
    sample: Sample
    future: asyncio.Future[Reply]
    deaths: int = 0

    def fail(self, error: GearshiftError) -> None:
        """Answer it with an error, unless it was answered."""
        if not self.future.done():
            self.future.set_exception(error)


class WorkerClient:
    """Talks to the worker that listens on the Unix socket `path`."""

    def __init__(
        self, path: Path, on_status: Callable[[ModelStatus], None], on_lost: Callable[[], None]
    ) -> None:
        self._path = path
        self._on_status = on_status
        self._on_lost = on_lost
        self._ids = itertools.count()
        self._waiting: dict[int, Asked] = {}
        self._channel: Channel | None = None
        self._ready: set[str] = set()
        self._closed = asyncio.Event()
        self._abandoned = False

    @property
    def connected(self) -> bool:
        """Whether there is a worker at the other end."""
        return self._channel is not None

    async def stay_connected(self) -> None:
        """Connect, and connect again whenever the worker went away; runs until cancelled."""
        loop = asyncio.get_running_loop()
        # The journal outlives both ends: no two samples of a server have the same id.
        self._ids = itertools.count(os.getpid() << 32)
        while True:
            with suppress(OSError):  # not there yet, or being restarted: tried again below
                await loop.create_unix_connection(
                    lambda: Channel(self._on_open, self._on_frame, self._on_close), str(self._path)
                )
                await self._closed.wait()
            await asyncio.sleep(RECONNECT_S)

    async def run(self, model: str, samples: Sequence[Sample]) -> list[Reply]:
        """The replies for the samples of one request, in order, waiting for a worker if need be.

        Raises the GearshiftError of the first that has one. What nobody waits for any more, for
        that reason or because the caller was cancelled, is withdrawn from the worker.
        """
        if self._abandoned:
            raise _shutting_down()
        loop = asyncio.get_running_loop()
        group = [Asked(next(self._ids), model, one, loop.create_future()) for one in samples]
        self._waiting.update((asked.id, asked) for asked in group)
        if model in self._ready:
            self._send(group)
        timer = loop.call_later(samples[0].deadline - time.monotonic(), self._expire, group)
        try:
            return [await asked.future for asked in group]
        finally:
            timer.cancel()
            for asked in group:
                self._forget(asked)

    def shift(self, mode: Mode) -> None:
        """Ask the worker to run in another mode; its models' status tells when it does."""
        if self._channel is None:
            raise Unavailable("no worker is connected", retry_after_s=1)
        self._channel.send(messages.shift(mode))

    def abandon(self) -> None:
        """Answer whatever still waits: the server ends."""
        self._abandoned = True
        for asked in self._waiting.values():
            asked.fail(_shutting_down())

    def _send(self, group: Sequence[Asked]) -> None:
        assert self._channel is not None, "a model is ready on a connection"
        for asked in group:
            header = messages.run(
                asked.id,
                asked.model,
                asked.sample,
                more=asked is not group[-1],
                alone=asked.deaths > 0,
            )
            self._channel.send(header, asked.sample.inputs)

    def _forget(self, asked: Asked) -> None:
        if asked.future.done() and not asked.future.cancelled():
            asked.future.exception()  # else asyncio logs an error that was answered by another's
        if self._waiting.pop(asked.id, None) is not None and asked.model in self._ready:
            assert self._channel is not None, "a model is ready on a connection"
            self._channel.send(messages.cancel(asked.id))

    def _expire(self, group: Sequence[Asked]) -> None:
        for asked in group:
            if asked.model in self._ready:
                asked.fail(DeadlineExceeded("no answer within the request's deadline"))
            else:
                late = "the worker process ended and was not back within the request's deadline"
                asked.fail(Unavailable(late, RETRY_AFTER_S))

    def _on_open(self, channel: Channel) -> None:
        self._channel = channel
        self._closed.clear()

    def _on_frame(self, _: Channel, header: Header, tensors: Arrays) -> None:
        if header["kind"] == "status":
            self._hear(messages.read_status(header))
            return
        if header["kind"] == "lost":
            self._count_deaths(messages.read_lost(header))
            return
        asked = self._waiting.pop(header["id"], None)
        if asked is None or asked.future.done():
            return  # withdrawn, or past its deadline: nobody waits for it
        if header["kind"] == "reply":
            asked.future.set_result(messages.read_reply(header, tensors))
        else:
            asked.future.set_exception(messages.read_error(header))

    def _hear(self, status: ModelStatus) -> None:
        self._on_status(status)
        if status.state != "ready" or status.name in self._ready:
            return
        self._ready.add(status.name)
        kept = [
            asked
            for asked in self._waiting.values()
            if asked.model == status.name and not asked.future.done()
        ]
        self._send(kept)

    def _count_deaths(self, lost: LostBatch) -> None:
        for asked in (self._waiting[id_] for id_ in lost.ids if id_ in self._waiting):
            asked.deaths += 1
            if lost.stuck:
                stuck = "the batch ran longer than batching.inference_timeout_s"
                asked.fail(Unavailable(stuck, RETRY_AFTER_S))
            elif asked.deaths == MOST_DEATHS:
                asked.fail(InferenceFailed("the worker process ended twice while it ran this"))

    def _on_close(self, _: Channel) -> None:
        self._channel = None
        self._ready.clear()
        self._closed.set()
        self._on_lost()


def _shutting_down() -> ShuttingDown:
    return ShuttingDown("the server is shutting down", RETRY_AFTER_S)
