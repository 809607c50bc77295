"""The worker process: joins the engine to LitServe on one side and to the channel on the other.

LitServe spawns it, watches it and ends it; its own request queue is not used. The main thread runs
the event loop that receives frames and sends replies; the engine's executor thread does the rest.
"""

from __future__ import annotations

import asyncio
import atexit
import logging
import multiprocessing
import os
import signal
from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import uvloop
from litserve import LitAPI
from litserve.loops import LitLoop

from models.base import ServedModel
from server import log as logs
from server import metrics
from server.catalogue import make_models
from server.config import Settings
from server.errors import GearshiftError
from server.link import messages
from server.link.channel import Channel, Header
from server.link.journal import Journal
from server.orphans import die_with_parent
from server.progress import progress as make_progress
from server.runtime import Runtime, worker_name
from server.types import Arrays, DeviceRecord, Mode, ModelStatus, Reply, Sample

if TYPE_CHECKING:
    from server.engine.engine import Engine

log = logging.getLogger(__name__)

STOP_S = 1.0

Told = TypeVar("Told")


class WorkerAPI(LitAPI):  # type: ignore[misc]
    """What LitServe spawns. Only notes its device: loading and warming up come in the loop, so
    that HTTP is up at once."""

    def __init__(self, settings: Settings, runtime: Runtime) -> None:
        super().__init__(api_path="/_litserve", loop=EngineLoop())
        self.settings = settings
        self.runtime = runtime

    def setup(self, device: str) -> None:
        """Nothing yet."""

    def predict(self, x: Any, **kwargs: Any) -> Any:
        """Never called: requests do not come through LitServe's queue."""
        raise NotImplementedError


class EngineLoop(LitLoop):  # type: ignore[misc]
    """Owns the worker's main thread from the end of `setup` on."""

    def __call__(self, lit_api: WorkerAPI, device: str, worker_id: int, *_: Any) -> None:
        # Files of metrics and words for the main process go by it; LitServe calls every worker the
        # same.
        name = worker_name(worker_id)
        multiprocessing.current_process().name = name
        # A terminal's Ctrl+C goes to every process; the main process decides when the worker ends.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        die_with_parent()
        settings = lit_api.settings
        logs.configure(settings.log, "worker" if settings.workers == 1 else name)
        uvloop.run(Worker(settings, lit_api.runtime, worker_id).run())


@dataclass(frozen=True, slots=True)
class Arrived:
    """One sample and whom to answer."""

    channel: Channel
    sample: Sample


class Worker:
    """Serves the API processes that connect, from one engine. Lives on the event loop."""

    def __init__(self, settings: Settings, runtime: Runtime, number: int) -> None:
        self._name = worker_name(number)
        self._number = number
        self._settings = settings
        self._runtime = runtime
        self._models = list(make_models(settings).values())
        self._statuses = {model.name: ModelStatus(model.name) for model in self._models}
        self._progress = make_progress(settings.log)
        self._peers: set[Channel] = set()
        self._arrived: defaultdict[str, list[Arrived]] = defaultdict(list)
        self._running: dict[tuple[Channel, int], Future[Reply]] = {}
        self._compiling: dict[str, tuple[str, asyncio.TimerHandle]] = {}
        self._journal = Journal(runtime.journal(self._name))
        self._lost = self._journal.take_over()
        self._engine: Engine | None = None

    async def run(self) -> None:
        """Listen, start the engine, serve until SIGTERM: the main process ends or is gone."""
        loop = asyncio.get_running_loop()
        path = self._runtime.worker_socket(self._name)
        path.unlink(missing_ok=True)
        loop.add_signal_handler(signal.SIGTERM, self._end)
        async with await loop.create_unix_server(self._accept, str(path)):
            self._engine = await asyncio.to_thread(
                make_engine,
                self._models,
                self._settings,
                self._number,
                self,
                loop,
                self._journal,
                self._runtime,
            )
            self._engine.start()
            await asyncio.Event().wait()

    def _end(self) -> None:
        """Nobody waits for an answer any more: end this process, now.

        Not by returning: Python would take torch apart object by object, for seconds.
        """
        self._progress.close()
        if self._engine is not None and self._engine.close(STOP_S):
            atexit._run_exitfuncs()
        os._exit(0)

    # From the engine.

    def on_status(self, status: ModelStatus) -> None:
        """A model's state changed: show it, and tell every API process."""
        self._statuses[status.name] = status
        self._watch(status)
        self._progress.update(status)
        for peer in self._peers:
            peer.send(messages.status(status))
        if all(status.state == "ready" for status in self._statuses.values()):
            self._progress.close()
            self._got_somewhere()
            self._catch_up()

    def _got_somewhere(self) -> None:
        self._runtime.progress(self._name)

    def _watch(self, status: ModelStatus) -> None:
        """Starts the clock of a bucket that begins to compile, stops that of one that is done."""
        current = next((b.bucket for b in status.buckets if b.state == "compiling"), None)
        bucket, timer = self._compiling.get(status.name, (None, None))
        if bucket == current:
            return
        if timer is not None:
            timer.cancel()
            del self._compiling[status.name]
        if current is not None:
            timeout_s = self._settings.compile.timeout_s
            loop = asyncio.get_running_loop()
            started = loop.call_later(timeout_s, self._give_up, status.name, current)
            self._compiling[status.name] = current, started

    def _give_up(self, model: str, bucket: str) -> None:
        """A thread that compiles cannot be interrupted: end the worker; the next one skips it."""
        limit = self._settings.compile.timeout_s
        reason = f"compiling took longer than compile.timeout_s = {limit:g} s"
        self._progress.close()
        log.error("%s: bucket %s: %s; starting the worker again", model, bucket, reason)
        self._runtime.give_up(model, bucket, reason)
        self._got_somewhere()
        os._exit(1)

    def on_failed(self, error: Exception) -> None:
        """The engine stopped, and with it the worker; the main process decides what follows."""
        self._progress.close()
        self._runtime.fail(self._name, str(error) or repr(error))
        os._exit(1)

    # From the API processes.

    def _accept(self) -> Channel:
        return Channel(self._on_open, self._on_frame, self._on_close)

    def _on_open(self, channel: Channel) -> None:
        self._peers.add(channel)
        channel.send(messages.hello(os.getpid(), self._lost))
        for status in self._statuses.values():
            channel.send(messages.status(status))

    def _on_close(self, channel: Channel) -> None:
        self._peers.discard(channel)
        for group in self._arrived.values():
            group[:] = [arrived for arrived in group if arrived.channel is not channel]
        for peer, request in list(self._running):
            # None where the executor answered it just now.
            if peer is channel and (running := self._running.pop((peer, request), None)):
                running.cancel()

    def _on_frame(self, channel: Channel, header: Header, tensors: Arrays) -> None:
        if header["kind"] == "run":
            arrived = Arrived(channel, messages.read_run(header, tensors))
            self._arrived[header["model"]].append(arrived)
            if not header["more"]:
                asyncio.get_running_loop().call_soon(self._submit_arrived)
        elif header["kind"] == "shift":
            self._shift(header["mode"])
        elif running := self._running.pop((channel, header["id"]), None):
            running.cancel()

    def _shift(self, mode: Mode) -> None:
        self._runtime.shift(mode)
        self._catch_up()

    def _catch_up(self) -> None:
        """Run in the mode that was asked for last, maybe while this worker was coming up."""
        wanted = self._runtime.shifted()
        statuses = self._statuses.values()
        if wanted is None or any(status.state != "ready" for status in statuses):
            return  # comes again when they are
        assert self._engine is not None, "it told that they are"
        if any(status.mode != wanted for status in statuses):
            self._engine.set_mode(wanted)

    def _submit_arrived(self) -> None:
        """All that came in one turn of the event loop, so that it can run in one batch."""
        arrived, self._arrived = self._arrived, defaultdict(list)
        for model, group in arrived.items():
            self._submit(model, group)

    def _submit(self, model: str, group: Sequence[Arrived]) -> None:
        assert self._engine is not None, "API processes ask only for models that are ready"
        try:
            futures = self._engine.submit(model, [arrived.sample for arrived in group])
        except GearshiftError as error:
            for arrived in group:
                arrived.channel.send(messages.error(arrived.sample.id, error))
            return
        for arrived, future in zip(group, futures, strict=True):
            self._running[arrived.channel, arrived.sample.id] = future
            future.add_done_callback(partial(self._answer, arrived.channel, arrived.sample.id))
            if future.done():  # in the meantime: `device_free` may have come before the answer
                arrived.channel.flush()

    # From the engine, on its thread.

    def _answer(self, channel: Channel, request: int, done: Future[Reply]) -> None:
        if self._running.pop((channel, request), None) is None:
            return  # withdrawn
        error = done.exception()
        if error is None:
            reply = done.result()
            channel.put(messages.reply(request, reply), reply.outputs)
        else:
            assert isinstance(error, GearshiftError), "the engine answers with errors of the tree"
            channel.put(messages.error(request, error))
            channel.flush()  # it may have failed in the queue, with no batch to follow

    def on_device_free(self) -> None:
        """A batch is answered: let the answers leave."""
        self._journal.end()
        for peer in tuple(self._peers):
            peer.flush()


def make_engine(
    models: Sequence[ServedModel],
    settings: Settings,
    number: int,
    worker: Worker,
    loop: asyncio.AbstractEventLoop,
    journal: Journal,
    runtime: Runtime,
) -> Engine:
    """The engine, telling the worker on `loop`. Imports torch: seconds, so not on the loop."""
    from server.engine.devices import device_of
    from server.engine.engine import Engine, Listener

    def on_loop(call: Callable[[Told], None]) -> Callable[[Told], None]:
        def tell(told: Told) -> None:
            loop.call_soon_threadsafe(call, told)

        return tell

    recorder = metrics.DeviceRecorder()

    def on_device(now: DeviceRecord) -> None:
        journal.beat()
        recorder.record(now)

    listener = Listener(
        status=on_loop(worker.on_status),
        batch=metrics.record_batch,
        device=on_device,
        failed=on_loop(worker.on_failed),
        device_takes=journal.begin,
        device_free=worker.on_device_free,
    )
    settings = settings.model_copy(update={"device": device_of(settings.device, number)})
    return Engine(models, settings, listener, runtime.given_up(), runtime.shifted())
