"""What this API process knows of the workers and their models, and the probes that tell it.

Live: the process runs. Ready: every model is warmed up in a worker that is connected; what is shown
of it is what the first such worker says, or the first of all while there is none. Knows nothing of
requests.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from models.base import ServedModel
from server import __version__
from server.errors import ModeUnavailable, NotReady
from server.metrics import record_status
from server.types import BucketState, Mode, ModelStatus

DONE: tuple[BucketState, ...] = ("compiled", "eager")


class Board:
    """The state of every model as the workers told it last."""

    def __init__(self, models: Mapping[str, ServedModel], workers: Sequence[str]) -> None:
        self._models = models
        self._told = {name: {worker: ModelStatus(name) for worker in workers} for name in models}
        self._statuses = {name: ModelStatus(name) for name in models}
        self._changed = asyncio.Event()

    def show(self) -> None:
        """Let the metrics of this process tell of every model, before the worker does."""
        for status in self._statuses.values():
            record_status(status)

    def on_status(self, worker: str, status: ModelStatus) -> None:
        """A worker told how a model is; its facts configure the model here before it is ready."""
        if status.state == "ready":
            self._models[status.name].configure(status.facts)
        told = self._told[status.name]
        told[worker] = status
        shown = next(iter(self._ready(status.name)), next(iter(told.values())))
        self._statuses[status.name] = shown
        record_status(shown)
        self._changed.set()

    def on_lost(self, worker: str) -> None:
        """A worker is gone: nothing of it is ready until it is back and says so."""
        for told in self._told.values():
            lost = replace(told[worker], state="loading", detail="the worker is restarting")
            self.on_status(worker, lost)

    def _ready(self, model: str) -> list[ModelStatus]:
        return [status for status in self._told[model].values() if status.state == "ready"]

    def mode(self, model: str) -> str:
        """The mode `model` is served in."""
        return self._statuses[model].mode

    def require_ready(self, model: str) -> None:
        """Raises NotReady, with how far the model is."""
        status = self._statuses[model]
        if status.state != "ready":
            raise NotReady(f"{model}: {_describe(status)}", retry_after_s=1)

    def require_mode(self, mode: Mode) -> None:
        """Raises NotReady, or ModeUnavailable where some model cannot be shifted to `mode`."""
        for name, status in self._statuses.items():
            self.require_ready(name)
            if mode not in status.modes:
                raise ModeUnavailable(
                    f"{name} can run {' or '.join(status.modes)} only: start the server with "
                    f"--mode {mode}, which can shift between both"
                )

    async def shifted(self, mode: Mode) -> None:
        """Returns once every model is served in `mode` by every worker that is ready."""
        while any(status.mode != mode for name in self._told for status in self._ready(name)):
            self._changed.clear()
            await self._changed.wait()

    @property
    def ready(self) -> bool:
        """Whether every model takes requests."""
        return all(status.state == "ready" for status in self._statuses.values())

    def readiness(self) -> dict[str, Any]:
        """The body of `/readyz`: per model its state and progress."""
        return {
            "ready": self.ready,
            "models": {
                name: {**_progress(status), **self._workers(name)}
                for name, status in self._statuses.items()
            },
        }

    def info(self) -> dict[str, Any]:
        """The body of `/info`: what is served, how, and the evidence for it."""
        return {
            "version": __version__,
            "models": [
                {
                    **{key: value for key, value in asdict(status).items() if key != "facts"},
                    "random_weights": self._models[name].random_weights,
                    **self._workers(name),
                }
                for name, status in self._statuses.items()
            ],
        }

    def _workers(self, model: str) -> dict[str, int]:
        told = self._told[model]
        return {"workers_ready": len(self._ready(model)), "workers_total": len(told)}


def _progress(status: ModelStatus) -> dict[str, Any]:
    done = sum(bucket.state in DONE for bucket in status.buckets)
    return {
        "state": status.state,
        "mode": status.mode,
        "detail": _describe(status),
        "buckets_done": done,
        "buckets_total": len(status.buckets),
        "served_eager": {
            bucket.bucket: bucket.reason for bucket in status.buckets if bucket.state == "eager"
        },
        "partly_compiled": {
            bucket.bucket: bucket.note for bucket in status.buckets if bucket.note is not None
        },
    }


def _describe(status: ModelStatus) -> str:
    if status.state != "warming":
        return status.detail or status.state
    compiling = [bucket.bucket for bucket in status.buckets if bucket.state == "compiling"]
    done = sum(bucket.state in DONE for bucket in status.buckets)
    doing = f"compiling bucket {compiling[0]}" if compiling else "warming up"
    return f"{doing}, {done} of {len(status.buckets)} buckets done"
