"""Ends the work for a client that has gone, wherever that work waits by then.

A client is looked for only once its answer takes a moment: most answers are there before it would
pay. Knows ASGI's `receive`, not what the work is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from starlette.types import Receive

from server.errors import ClientGone

UNWATCHED_S = 0.01


@contextmanager
def while_connected(receive: Receive) -> Iterator[None]:
    """Cancels its block, as ClientGone, when the client closes the connection.

    The request's body has to be read before.
    """
    watch = _Watch(receive)
    try:
        yield
    except asyncio.CancelledError:
        if watch.stop() and watch.task.uncancel() == 0:
            raise ClientGone("the client closed the connection before its answer") from None
        raise
    finally:
        watch.stop()


class _Watch:
    """Cancels the task that made it once `receive` tells that the client is gone."""

    def __init__(self, receive: Receive) -> None:
        task = asyncio.current_task()
        assert task is not None, "requests are answered in tasks"
        self.task = task
        self._receive = receive
        self._gone = False
        self._watching: asyncio.Task[None] | None = None
        self._timer = task.get_loop().call_later(UNWATCHED_S, self._start)

    def _start(self) -> None:
        self._watching = self.task.get_loop().create_task(self._until_gone())

    async def _until_gone(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self._gone = True
        self.task.cancel()

    def stop(self) -> bool:
        """Whether it was this that cancelled the task; it will not do so any more."""
        self._timer.cancel()
        if self._watching is not None:
            self._watching.cancel()
        return self._gone
