"""An API process: uvicorn around the application, and how it ends. Knows no routes."""

from __future__ import annotations

import asyncio
import multiprocessing
import socket

import uvicorn

from server.link.client import WorkerClient
from server.runtime import MAIN, Runtime

MARGIN_S = 2.0  # for answers to leave, once every request has one


class ApiProcess(uvicorn.Server):
    """Serves until SIGTERM or SIGINT; then finishes what was admitted, within the drain time."""

    def __init__(
        self,
        config: uvicorn.Config,
        client: WorkerClient,
        runtime: Runtime,
        drain_timeout_s: float,
    ) -> None:
        config.timeout_graceful_shutdown = drain_timeout_s + MARGIN_S  # type: ignore[assignment]
        super().__init__(config)
        self._client = client
        self._runtime = runtime
        self._drain_timeout_s = drain_timeout_s

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen, and leave word that this process came up."""
        await super().startup(sockets)
        self._runtime.progress(multiprocessing.current_process().name)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept nothing more; at the end of the drain time, what has no answer yet gets 503."""
        # A server that cannot go on has no worker to wait for.
        drain_s = 0.0 if self._runtime.failure(MAIN) else self._drain_timeout_s
        asyncio.get_running_loop().call_later(drain_s, self._client.abandon)
        await super().shutdown(sockets)
