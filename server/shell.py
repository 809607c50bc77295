"""The main process: LitServe as the shell, its processes under our own supervision.

LitServe binds the port, gives the application and spawns the worker. What it does about processes
that end is replaced: it starts a dead worker again at once and for ever, an API process never; it
ends API processes one after the other, so that the last takes requests until the first has drained;
and it keeps queues and start-up states in a manager process that nothing here needs.

Everything is started and watched on the main thread (see `supervisor`).
"""

from __future__ import annotations

import asyncio
import logging
import multiprocessing
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from multiprocessing.process import BaseProcess
from typing import Any

import uvicorn
from litserve import LitServer
from prometheus_client import Counter
from starlette.types import ASGIApp

from server.api.process import MARGIN_S, ApiProcess
from server.config import Settings
from server.link.client import WorkerClient
from server.link.journal import Journal
from server.link.worker import WorkerAPI
from server.metrics import API_RESTARTS, WORKER_RESTARTS
from server.orphans import die_with_parent
from server.runtime import MAIN, Runtime, StartupError, worker_name
from server.supervisor import POLL_S, Child, wait_for_an_end

log = logging.getLogger(__name__)

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)
WORKER_STOP_S = 5.0
ENDED_AT_ONCE = 130
PAUSED_S = 5.0


@dataclass(frozen=True, slots=True)
class Watched:
    """A worker and its journal, which tells how long its batch has run."""

    child: Child
    journal: Journal


class Shell(LitServer):  # type: ignore[misc]
    """LitServe's server: workers, and API processes around one application."""

    def __init__(
        self,
        settings: Settings,
        runtime: Runtime,
        client: WorkerClient,
        connection: Callable[..., asyncio.Protocol],
    ) -> None:
        """`connection` makes the protocol of one HTTP connection, as uvicorn's `http` takes it."""
        super().__init__(
            WorkerAPI(settings, runtime),
            accelerator="cpu",  # a worker picks its device itself, once torch is imported there
            workers_per_device=settings.workers,
            max_payload_size=None,
        )
        self._settings = settings
        self._runtime = runtime
        self._client = client
        self._connection = connection
        self._sockets: list[socket.socket] = []
        self._workers: list[Watched] = []
        self._apis: list[Child] = []
        self._stop_asked = False
        self._looked_at = self._resumed_at = time.monotonic()

    def serve(self, application: ASGIApp) -> None:
        """Serve `application` until told to stop (SIGTERM, SIGINT).

        Raises StartupError when it cannot go on.
        """
        self._application = application
        os.register_at_fork(after_in_child=_in_child)
        for number in STOP_SIGNALS:
            signal.signal(number, self._on_signal)
        try:
            self.run(
                host=self._settings.server.host,
                port=self._settings.server.port,
                num_api_servers=self._settings.server.api_processes,
                log_level="warning",
                generate_client_file=False,
                # For uvicorn:
                log_config=None,
                access_log=False,
                loop="uvloop",
                http=self._connection,
                ws="none",
                proxy_headers=False,
                lifespan="on",
            )
        finally:
            for child in self._children():
                child.process.kill()
                child.process.join()
        if (reason := self._runtime.failure(MAIN)) is not None:
            raise StartupError(reason)

    def _on_signal(self, *_: object) -> None:
        """The first asks everything to end, the second ends it."""
        if self._stop_asked:
            sys.exit(ENDED_AT_ONCE)
        self._stop_asked = True

    # What LitServe calls, in this order.

    def _init_manager(self, num_api_servers: int) -> None:
        self.workers_setup_status: dict[str, str] = {}
        self.litapi_request_queues = dict.fromkeys(api.api_path for api in self.litapi_connector)
        self._transport = None
        self._shutdown_event = threading.Event()

    def launch_inference_worker(self, lit_api: WorkerAPI) -> list[BaseProcess]:
        """The first worker; the others when it is up, as they find its compiled code then."""
        self._lit_api = lit_api
        return [self._start_worker().process]

    def verify_worker_status(self) -> None:
        """Nothing to wait for: HTTP is up before the models are."""

    def _start_server(
        self,
        port: int,
        num_uvicorn_servers: int,
        log_level: str,
        sockets: list[socket.socket],
        uvicorn_worker_type: str,
        **for_uvicorn: Any,
    ) -> dict[int, BaseProcess]:
        self._sockets = sockets
        config = uvicorn.Config(self._application, log_level=log_level, **for_uvicorn)
        drain_timeout_s = self._settings.server.drain_timeout_s
        server = ApiProcess(config, self._client, self._runtime, drain_timeout_s)
        for number in range(num_uvicorn_servers):
            name = f"api-{number}"
            start = partial(_fork, name, partial(server.run, sockets))
            self._apis.append(self._start(name, start, API_RESTARTS))
        return {}

    def _start_worker_monitoring(self, *_: object) -> None:
        """Watch every process until it is time to end."""
        while not self._stop_asked and self._runtime.failure(MAIN) is None:
            if len(self._workers) < self._settings.workers and self._is_first_up():
                self._start_worker()
            self._end_stuck_workers()
            for child in self._children():
                self._tend(child)
            wait_for_an_end(self._children(), POLL_S)
        self._shutdown_event.set()

    def _perform_graceful_shutdown(self, *_: object) -> None:
        for listening in self._sockets:
            listening.close()  # open here, it would take connections that nobody accepts
        for api in self._apis:
            api.process.terminate()
        give_up_at = time.monotonic() + self._settings.server.drain_timeout_s + 2 * MARGIN_S
        while self._is_draining() and time.monotonic() < give_up_at:
            self._end_stuck_workers()
            for worker in self._workers:
                self._tend(worker.child)  # what was admitted still needs it
            wait_for_an_end(self._apis, POLL_S)
        for worker in self._workers:
            worker.child.process.terminate()
        stopped_by = time.monotonic() + WORKER_STOP_S
        for worker in self._workers:
            worker.child.process.join(max(0.0, stopped_by - time.monotonic()))

    # Ours.

    def _start(self, name: str, start: Callable[[], BaseProcess], restarts: Counter) -> Child:
        return Child(name, start, self._runtime, self._settings.server.max_restarts, restarts)

    def _start_worker(self) -> Child:
        number = len(self._workers)
        name = worker_name(number)
        start = partial(self.launch_single_inference_worker, self._lit_api, number)
        child = self._start(name, start, WORKER_RESTARTS)
        self._workers.append(Watched(child, Journal(self._runtime.journal(name))))
        return child

    def _is_first_up(self) -> bool:
        return self._runtime.has_progressed(worker_name(0))

    def _children(self) -> list[Child]:
        return [*(worker.child for worker in self._workers), *self._apis]

    def _is_draining(self) -> bool:
        return any(api.process.is_alive() for api in self._apis)

    def _tend(self, child: Child) -> None:
        if (reason := child.tend()) is not None:
            self._runtime.fail(MAIN, reason)

    def _end_stuck_workers(self) -> None:
        """A batch cannot be interrupted, and a worker that is stuck in one may not even notice.

        One that is stopped while it is idle is as stuck. Where this process did not run for a while
        (Ctrl+Z) its workers did not either: their time counts from then.
        """
        now = time.monotonic()
        if now - self._looked_at > PAUSED_S:
            self._resumed_at = now
        self._looked_at = now
        limit_s = self._settings.batching.inference_timeout_s
        for worker in self._workers:
            process = worker.child.process
            if worker.journal.is_silent(process.pid, limit_s, self._resumed_at):
                log.error(
                    "%s said nothing for batching.inference_timeout_s = %g s: its batch takes "
                    "longer than that, or its process is stopped; ending it",
                    worker.child.name,
                    limit_s,
                )
                worker.journal.condemn()
                process.kill()
                process.join()


def _fork(name: str, target: Callable[[], None]) -> BaseProcess:
    process = multiprocessing.get_context("fork").Process(target=target, name=name)
    process.start()
    return process


def _in_child() -> None:
    """In what is forked: the API processes."""
    die_with_parent()
    for number in STOP_SIGNALS:
        signal.signal(number, signal.SIG_DFL)
