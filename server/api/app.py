"""Builds the server: LitServe as the shell, our routes and our worker inside it.

The composition root. Each API process runs `connected` around its event loop; the worker is
`link.worker`. Knows no torch.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import threading
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from types import FrameType
from typing import Any

from fastapi import FastAPI
from litserve import LitServer
from starlette.exceptions import HTTPException

from server import __version__
from server import log as logs
from server.api.admission import Admission
from server.api.front import shorten
from server.api.health import Board
from server.api.routes import Api, http_problem
from server.api.schemas import openapi
from server.catalogue import make_models
from server.config import Settings
from server.latency import LatencyWindow
from server.link.client import WorkerClient
from server.link.worker import WorkerAPI
from server.orphans import die_with_parent
from server.runtime import Runtime, StartupError

log = logging.getLogger(__name__)

PUBLISH_S = 1.0
KEPT_ROUTES = ("/openapi.json", "/docs", "/docs/oauth2-redirect")
MONITOR_S = 0.1
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)


def serve(settings: Settings, runtime: Runtime) -> None:
    """Serve until told to stop (SIGTERM, SIGINT). Raises StartupError when no model comes up."""
    logs.configure(settings.log, "main")
    server = build(settings, runtime)
    os.register_at_fork(after_in_child=_in_child)
    stop = Stop(server)
    for number in STOP_SIGNALS:
        signal.signal(number, stop)
    server.run(
        host=settings.server.host,
        port=settings.server.port,
        num_api_servers=settings.server.api_processes,
        log_level="warning",
        generate_client_file=False,
        # For uvicorn:
        log_config=None,
        access_log=False,
        loop="uvloop",
        http="httptools",
        proxy_headers=False,
        lifespan="on",
    )
    if (reason := runtime.failure()) is not None:
        raise StartupError(reason)


def build(settings: Settings, runtime: Runtime) -> LitServer:
    """LitServe's server with our application inside, not yet running."""
    server = LitServer(
        WorkerAPI(settings, runtime),
        accelerator="cpu",  # the worker picks its device itself, once torch is imported there
        max_payload_size=None,
        restart_workers=True,
    )
    server.monitor_internal = MONITOR_S
    server.uvicorn_graceful_timeout = settings.server.drain_timeout_s
    equip(server.app, settings, runtime)
    return server


def equip(app: FastAPI, settings: Settings, runtime: Runtime) -> None:
    """Give the application our routes, our OpenAPI and our lifespan in place of LitServe's."""
    api = make_api(settings, runtime)
    # LitServe's own /predict, /health and /info go, and its gzip: answers are small, and
    # compressing them costs more than it saves.
    kept = [route for route in app.router.routes if getattr(route, "path", "") in KEPT_ROUTES]
    app.router.routes[:] = [*api.routes(), *kept]
    app.user_middleware.clear()
    app.add_exception_handler(HTTPException, http_problem)
    app.router.lifespan_context = lifespan(api)
    app.openapi = lambda: openapi(list(api.models.values()), __version__)  # type: ignore[method-assign]
    shorten(app, api.predict)


def make_api(settings: Settings, runtime: Runtime) -> Api:
    """What the routes share, not yet connected to the worker."""
    models = make_models(settings)
    board = Board(models)
    share = max(1, settings.batching.max_queue // settings.server.api_processes)
    return Api(
        settings=settings,
        models=models,
        client=WorkerClient(runtime.worker_socket, board.on_status, board.on_lost),
        board=board,
        window=LatencyWindow(runtime.latency),
        pool=ThreadPoolExecutor(settings.server.preprocess_threads, "preprocess"),
        admissions={name: Admission(name, share) for name in models},
    )


def lifespan(api: Api) -> Callable[[Any], AbstractAsyncContextManager[None]]:
    """Around the event loop of an API process: the link to the worker, and published latencies."""

    @asynccontextmanager
    async def connected(_: Any) -> AsyncIterator[None]:
        logs.configure(api.settings.log, "api")
        tasks = [
            asyncio.create_task(api.client.stay_connected()),
            asyncio.create_task(_publish(api.window)),
        ]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            with suppress(asyncio.CancelledError):
                await asyncio.gather(*tasks)

    return connected


async def _publish(window: LatencyWindow) -> None:
    while True:
        await asyncio.sleep(PUBLISH_S)
        window.publish()


class Stop:
    """What a signal does to the main process: the first asks LitServe to end, the second ends it.

    LitServe itself leaves orphans behind on SIGTERM.
    """

    def __init__(self, server: LitServer) -> None:
        self._server = server
        self._asked = False

    def __call__(self, _: int, __: FrameType | None) -> None:
        ended = self._server._shutdown_event
        if self._asked or ended is None:
            raise KeyboardInterrupt
        self._asked = True
        # From a thread: the event lives in another process, and this thread is in a call to it.
        threading.Thread(target=ended.set).start()


def _in_child() -> None:
    """In what LitServe forks: the API processes and its manager."""
    die_with_parent()
    for number in STOP_SIGNALS:
        signal.signal(number, signal.SIG_DFL)
