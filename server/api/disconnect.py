"""Ends the work on a request early, wherever it waits by then: its client is gone, or too slow.

A client is looked for only once its answer takes a moment: most answers are there before it would
pay. Knows ASGI's `receive`, not what the work is.
"""

from __future__ import annotations

import asyncio
from types import TracebackType

from starlette.types import Receive

from server.errors import ClientGone, GearshiftError

UNWATCHED_S = 0.01


class Interruptible:
    """A block that `interrupt` cancels; it then ends with the error that was given.

    A class, not a generator, with one timer at a time: it is on the way of every request.
    """

    __slots__ = ("_error", "_receive", "_task", "_timer", "_watching")

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._error: GearshiftError | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._watching: asyncio.Task[None] | None = None

    def __enter__(self) -> Interruptible:
        task = asyncio.current_task()
        assert task is not None, "requests are answered in tasks"
        self._task = task
        return self

    def __exit__(
        self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None
    ) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._watching is not None:
            self._watching.cancel()
        if self._error is not None and kind is asyncio.CancelledError and not self._task.uncancel():
            raise self._error from None

    def interrupt(self, error: GearshiftError) -> None:
        """End the block with `error`."""
        self._error = error
        self._task.cancel()

    def interrupt_after(self, seconds: float, error: GearshiftError) -> None:
        """End the block with `error`, unless it ends, or goes on to the next step, before."""
        self._timer = self._task.get_loop().call_later(seconds, self.interrupt, error)

    def interrupt_when_gone(self) -> None:
        """From now on, end the block when the client closes the connection.

        The request's body has to be read before.
        """
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._task.get_loop().call_later(UNWATCHED_S, self._watch)

    def _watch(self) -> None:
        self._watching = asyncio.create_task(self._until_gone())

    async def _until_gone(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self.interrupt(ClientGone("the client closed the connection before its answer"))
