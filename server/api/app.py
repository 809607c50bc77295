"""Builds the server: the shell, with our routes and our worker inside it.

The composition root. Each API process runs `connected` around its event loop; the worker is
`link.worker`. Knows no torch.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from functools import partial
from typing import Any

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp

from server import __version__
from server import log as logs
from server.api.admin import Admin
from server.api.admission import Admission
from server.api.connection import Connection
from server.api.front import Front
from server.api.health import Board
from server.api.keys import Keys
from server.api.routes import Api, Predict, http_problem, problem
from server.api.schemas import openapi
from server.catalogue import make_models
from server.config import Settings
from server.errors import GearshiftError
from server.exposition import Requests
from server.link.client import WorkerClient
from server.runtime import Runtime, worker_name
from server.shell import Shell

PUBLISH_S = 1.0
KEPT_ROUTES = ("/openapi.json", "/docs", "/docs/oauth2-redirect")


def serve(settings: Settings, runtime: Runtime) -> None:
    """Serve until told to stop (SIGTERM, SIGINT). Raises StartupError when it cannot go on."""
    logs.configure(settings.log, "main")
    api = make_api(settings, runtime)
    connection = partial(Connection, timeout_s=settings.server.client_timeout_s)
    shell = Shell(settings, runtime, api.client, connection)
    shell.serve(equip(shell.app, api))


def equip(app: FastAPI, api: Api) -> ASGIApp:
    """Give the application our routes, our OpenAPI and our lifespan in place of LitServe's.

    What to serve: it, with a short way past it and a guard before both.
    """
    # LitServe's own /predict, /health and /info go, and its gzip: answers are small, and
    # compressing them costs more than it saves.
    kept = [route for route in app.router.routes if getattr(route, "path", "") in KEPT_ROUTES]
    section = api.settings.server
    admin = Admin(section, api.board, api.client)
    app.router.routes[:] = [*api.routes(), *admin.routes(), *kept]
    app.user_middleware.clear()
    app.add_exception_handler(GearshiftError, problem)
    app.add_exception_handler(HTTPException, http_problem)
    app.router.lifespan_context = lifespan(api)
    document = partial(openapi, list(api.models.values()), __version__, section)
    app.openapi = document  # type: ignore[method-assign]
    served: ASGIApp = app
    # OpenTelemetry wraps what FastAPI builds: where it is used, everything has to go that way.
    if not getattr(app, "_is_instrumented_by_opentelemetry", False):
        served = Front(Predict(api), app)
    return Keys(served, section) if section.api_key or section.admin_key else served


def make_api(settings: Settings, runtime: Runtime) -> Api:
    """What the routes share, not yet connected to the worker."""
    models = make_models(settings)
    workers = [worker_name(number) for number in range(settings.workers)]
    board = Board(models, workers)
    share = settings.batching.max_queue // settings.server.api_processes
    return Api(
        settings=settings,
        models=models,
        client=WorkerClient(workers, runtime, board.on_status, board.on_lost),
        board=board,
        requests=Requests(runtime.latency, runtime.exemplars),
        pool=ThreadPoolExecutor(settings.server.preprocess_threads, "preprocess"),
        admissions={name: Admission(name, share) for name in models},
    )


def lifespan(api: Api) -> Callable[[Any], AbstractAsyncContextManager[None]]:
    """Around the event loop of an API process: the link to the worker, and published metrics."""

    @asynccontextmanager
    async def connected(_: Any) -> AsyncIterator[None]:
        logs.configure(api.settings.log, "api")
        api.board.show()
        tasks = [
            asyncio.create_task(api.client.stay_connected()),
            asyncio.create_task(_publish(api.requests)),
        ]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            with suppress(asyncio.CancelledError):
                await asyncio.gather(*tasks)

    return connected


async def _publish(requests: Requests) -> None:
    while True:
        await asyncio.sleep(PUBLISH_S)
        requests.publish()
