"""The API process's end of the link: a connection to the worker that comes back by itself.

Samples out, replies in; keeps what the worker said of its models. Knows no HTTP and no engine.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from server.errors import DeadlineExceeded, Unavailable
from server.link import messages
from server.link.channel import Channel, Header
from server.types import Arrays, Mode, ModelStatus, Reply, Sample

log = logging.getLogger(__name__)

RECONNECT_S = 0.05
WORKER_DIED = "the worker process ended before it answered; try again"


class WorkerClient:
    """Talks to the worker that listens on the Unix socket `path`."""

    def __init__(
        self, path: Path, on_status: Callable[[ModelStatus], None], on_lost: Callable[[], None]
    ) -> None:
        self._path = path
        self._on_status = on_status
        self._on_lost = on_lost
        self._ids = itertools.count()
        self._waiting: dict[int, asyncio.Future[Reply]] = {}
        self._channel: Channel | None = None
        self._closed = asyncio.Event()

    @property
    def connected(self) -> bool:
        """Whether there is a worker at the other end."""
        return self._channel is not None

    async def stay_connected(self) -> None:
        """Connect, and connect again whenever the worker went away; runs until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            with suppress(OSError):  # not there yet, or being restarted: tried again below
                await loop.create_unix_connection(
                    lambda: Channel(self._on_open, self._on_frame, self._on_close), str(self._path)
                )
                await self._closed.wait()
            await asyncio.sleep(RECONNECT_S)

    async def run(self, model: str, samples: Sequence[Sample]) -> list[Reply]:
        """The replies for the samples of one request, in order.

        Raises the GearshiftError of the first that has one. What nobody waits for any more, for
        that reason or because the caller was cancelled, is withdrawn from the worker.
        """
        if self._channel is None:
            raise Unavailable("no worker is connected", retry_after_s=1)
        asked = [self._ask(self._channel, model, sample, samples[-1]) for sample in samples]
        futures = [future for _, future in asked]
        loop = asyncio.get_running_loop()
        timer = loop.call_later(samples[0].deadline - time.monotonic(), _expire, futures)
        try:
            return [await future for future in futures]
        finally:
            timer.cancel()
            for request, future in asked:
                self._forget(request, future)

    def shift(self, mode: Mode) -> None:
        """Ask the worker to run in another mode; its models' status tells when it does."""
        if self._channel is None:
            raise Unavailable("no worker is connected", retry_after_s=1)
        self._channel.send(messages.shift(mode))

    def _ask(
        self, channel: Channel, model: str, sample: Sample, last: Sample
    ) -> tuple[int, asyncio.Future[Reply]]:
        request = next(self._ids)
        future: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self._waiting[request] = future
        channel.send(messages.run(request, model, sample, more=sample is not last), sample.inputs)
        return request, future

    def _forget(self, request: int, future: asyncio.Future[Reply]) -> None:
        if future.done() and not future.cancelled():
            future.exception()  # else asyncio logs an error that was answered by another's
        if self._waiting.pop(request, None) is not None and self._channel is not None:
            self._channel.send(messages.cancel(request))

    def _on_open(self, channel: Channel) -> None:
        self._channel = channel
        self._closed.clear()

    def _on_frame(self, _: Channel, header: Header, tensors: Arrays) -> None:
        if header["kind"] == "status":
            self._on_status(messages.read_status(header))
            return
        future = self._waiting.pop(header["id"], None)
        if future is None or future.done():
            return  # withdrawn, or past its deadline: nobody waits for it
        if header["kind"] == "reply":
            future.set_result(messages.read_reply(header, tensors))
        else:
            future.set_exception(messages.read_error(header))

    def _on_close(self, _: Channel) -> None:
        self._channel = None
        self._closed.set()
        self._on_lost()
        waiting, self._waiting = self._waiting, {}
        for future in waiting.values():
            if not future.done():
                future.set_exception(Unavailable(WORKER_DIED, retry_after_s=1))


def _expire(futures: Sequence[asyncio.Future[Reply]]) -> None:
    for future in futures:
        if not future.done():
            future.set_exception(DeadlineExceeded("no answer within the request's deadline"))
