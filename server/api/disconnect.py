"""Ends the work for a client that has gone, wherever that work waits by then.

A client is looked for only once its answer takes a moment: most answers are there before it would
pay. Knows ASGI's `receive`, not what the work is.
"""

from __future__ import annotations

import asyncio
from types import TracebackType

from starlette.types import Receive

from server.errors import ClientGone

UNWATCHED_S = 0.01


class WhileConnected:
    """A block that is cancelled, as ClientGone, when the client closes the connection.

    The request's body has to be read before. A class, not a generator: it is on the way of every
    request.
    """

    __slots__ = ("_is_gone", "_receive", "_task", "_timer", "_watching")

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._is_gone = False
        self._watching: asyncio.Task[None] | None = None

    def __enter__(self) -> None:
        task = asyncio.current_task()
        assert task is not None, "requests are answered in tasks"
        self._task = task
        self._timer = task.get_loop().call_later(UNWATCHED_S, self._watch)

    def __exit__(
        self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None
    ) -> None:
        self._timer.cancel()
        if self._watching is not None:
            self._watching.cancel()
        if kind is asyncio.CancelledError and self._is_gone and self._task.uncancel() == 0:
            raise ClientGone("the client closed the connection before its answer") from None

    def _watch(self) -> None:
        self._watching = asyncio.create_task(self._until_gone())

    async def _until_gone(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self._is_gone = True
        self._task.cancel()
