"""The API process's end of the link: a connection to each worker that comes back by itself.

Samples out, replies in. A request goes whole to the worker that owes this process the fewest
answers. A worker that ends takes no sample with it: each is kept until it is answered, and sent
again to another worker that is ready, or to the first that is. Samples that were on the device when
their worker ended may be why it did: they are sent to run alone, and one that was there when
workers ended twice gets an error. If the device was stuck, those on it are not tried again at all:
others have waited long enough. Knows no HTTP and no engine.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from server.errors import (
    DeadlineExceeded,
    GearshiftError,
    InferenceFailed,
    ShuttingDown,
    Unavailable,
)
from server.link import messages
from server.link.channel import Channel, Header
from server.link.journal import Journal, LostBatch
from server.runtime import Runtime
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
    link: Link | None = None
    deaths: int = 0

    def fail(self, error: GearshiftError) -> None:
        """Answer it with an error, unless it was answered."""
        if not self.future.done():
            self.future.set_exception(error)


class Link:
    """One worker as this process sees it: the connection, and what was sent there for an answer."""

    def __init__(self, worker: str, runtime: Runtime) -> None:
        self.worker = worker
        self.path = runtime.worker_socket(worker)
        self.journal = Journal(runtime.journal(worker))
        self.channel: Channel | None = None
        self.ready: set[str] = set()
        self.sent: dict[int, Asked] = {}
        self.closed = asyncio.Event()
        self.process: int | None = None
        self.counted: int | None = None  # the process whose end was counted last

    def send(self, header: Header, tensors: Arrays | None = None) -> None:
        assert self.channel is not None, "a model is ready on a connection"
        self.channel.send(header, tensors)


class WorkerClient:
    """Talks to the workers of a server, by name."""

    def __init__(
        self,
        workers: Sequence[str],
        runtime: Runtime,
        on_status: Callable[[str, ModelStatus], None],
        on_lost: Callable[[str], None],
    ) -> None:
        """`on_status` is told of every status of a worker, `on_lost` of every one that is gone."""
        self._links = [Link(worker, runtime) for worker in workers]
        self._on_status = on_status
        self._on_lost = on_lost
        self._ids = itertools.count()
        self._kept: dict[int, Asked] = {}  # waiting for a worker
        self._abandoned = False

    async def stay_connected(self) -> None:
        """Connect, and connect again whenever a worker went away; runs until cancelled."""
        # The journals outlive both ends: no two samples of a server have the same id.
        self._ids = itertools.count(os.getpid() << 32)
        async with asyncio.TaskGroup() as group:
            for link in self._links:
                group.create_task(self._keep(link))

    async def _keep(self, link: Link) -> None:
        def make() -> Channel:
            return Channel(
                partial(self._on_open, link),
                lambda _, header, tensors: self._on_frame(link, header, tensors),
                lambda _: self._on_close(link),
            )

        while True:
            with suppress(OSError):  # not there yet, or being restarted: tried again below
                await asyncio.get_running_loop().create_unix_connection(make, str(link.path))
                await link.closed.wait()
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
        self._send(group)
        timer = loop.call_later(samples[0].deadline - time.monotonic(), self._expire, group)
        try:
            return [await asked.future for asked in group]
        finally:
            timer.cancel()
            for asked in group:
                self._forget(asked)

    def shift(self, mode: Mode) -> None:
        """Ask the workers to run in another mode; their models' status tells when they do."""
        connected = [link for link in self._links if link.channel is not None]
        if not connected:
            raise Unavailable("no worker is connected", retry_after_s=1)
        for link in connected:
            link.send(messages.shift(mode))

    def abandon(self) -> None:
        """Answer whatever still waits: the server ends."""
        self._abandoned = True
        for waiting in (self._kept, *(link.sent for link in self._links)):
            for asked in waiting.values():
                asked.fail(_shutting_down())

    def _send(self, group: Sequence[Asked]) -> None:
        """To the worker that has the least to do here; kept where none is ready."""
        model = group[0].model
        ready = [link for link in self._links if model in link.ready]
        link = min(ready, key=lambda one: len(one.sent), default=None)
        for asked in group:
            asked.link = link
            if link is None:
                self._kept[asked.id] = asked
                continue
            link.sent[asked.id] = asked
            more, alone = asked is not group[-1], asked.deaths > 0
            header = messages.run(asked.id, model, asked.sample, more=more, alone=alone)
            link.send(header, asked.sample.inputs)

    def _forget(self, asked: Asked) -> None:
        if asked.future.done() and not asked.future.cancelled():
            asked.future.exception()  # else asyncio logs an error that was answered by another's
        if asked.link is None:
            self._kept.pop(asked.id, None)
        elif asked.link.sent.pop(asked.id, None) is not None:
            asked.link.send(messages.cancel(asked.id))

    def _expire(self, group: Sequence[Asked]) -> None:
        for asked in group:
            if asked.link is not None:
                asked.fail(DeadlineExceeded("no answer within the request's deadline"))
            else:
                late = "the worker process ended and was not back within the request's deadline"
                asked.fail(Unavailable(late, RETRY_AFTER_S))

    def _on_open(self, link: Link, channel: Channel) -> None:
        link.channel = channel
        link.closed.clear()

    def _on_frame(self, link: Link, header: Header, tensors: Arrays) -> None:
        if header["kind"] == "status":
            self._hear(link, messages.read_status(header))
            return
        if header["kind"] == "hello":
            link.process, lost = messages.read_hello(header)
            self._count_deaths(link, lost)
            return
        asked = link.sent.pop(header["id"], None)
        if asked is None or asked.future.done():
            return  # withdrawn, or past its deadline: nobody waits for it
        if header["kind"] == "reply":
            asked.future.set_result(messages.read_reply(header, tensors))
        else:
            asked.future.set_exception(messages.read_error(header))

    def _hear(self, link: Link, status: ModelStatus) -> None:
        self._on_status(link.worker, status)
        if status.state == "ready" and status.name not in link.ready:
            link.ready.add(status.name)
            self._send_kept()

    def _on_close(self, link: Link) -> None:
        # Read here rather than told by the next worker of that name, as another one gets its
        # samples now and must not be ended by the same. Where the next one was faster, it tells.
        lost = link.journal.read()
        link.channel = None
        link.ready.clear()
        link.closed.set()
        for asked in link.sent.values():
            asked.link = None
        self._kept |= link.sent
        link.sent = {}
        if lost.owner == link.process:
            self._count_deaths(link, lost)
        self._on_lost(link.worker)
        self._send_kept()

    def _send_kept(self) -> None:
        """Whatever was kept, if there is a worker for it now."""
        kept, self._kept = self._kept, {}
        groups: dict[str, list[Asked]] = {}
        for asked in kept.values():
            if asked.future.done():
                continue
            groups.setdefault(asked.model, []).append(asked)
        for group in groups.values():
            self._send(group)

    def _count_deaths(self, link: Link, lost: LostBatch) -> None:
        if link.counted == lost.owner:
            return
        link.counted = lost.owner
        waiting = [self._kept, *(other.sent for other in self._links)]
        found = [there[id_] for id_ in lost.ids for there in waiting if id_ in there]
        for asked in found:
            asked.deaths += 1
            if lost.stuck:
                stuck = "the batch ran longer than batching.inference_timeout_s"
                asked.fail(Unavailable(stuck, RETRY_AFTER_S))
            elif asked.deaths == MOST_DEATHS:
                asked.fail(InferenceFailed("worker processes ended twice while they ran this"))


def _shutting_down() -> ShuttingDown:
    return ShuttingDown("the server is shutting down", RETRY_AFTER_S)
