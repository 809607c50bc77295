"""A running engine for tests: real models, real compiler, on the CPU."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from models.base import ServedModel
from server.config import Settings
from server.engine.engine import NOTHING_SKIPPED, Engine, Listener
from server.engine.environment import prepare_environment
from server.sources import load
from server.types import Arrays, BatchRecord, DeviceRecord, ModelStatus, Reply, Sample


@dataclass
class Running:
    """An engine and everything it told."""

    engine: Engine
    changed: threading.Condition = field(default_factory=threading.Condition)
    statuses: dict[str, ModelStatus] = field(default_factory=dict)
    batches: list[BatchRecord] = field(default_factory=list)
    devices: list[DeviceRecord] = field(default_factory=list)
    failure: Exception | None = None

    def run(self, model: str, rows: Sequence[Arrays]) -> list[Reply]:
        deadline = time.monotonic() + 60
        futures = self.engine.submit(model, [Sample(row, deadline) for row in rows])
        return [future.result(60) for future in futures]

    def buckets(self, model: str) -> dict[str, str]:
        return {bucket.bucket: bucket.state for bucket in self.statuses[model].buckets}


Start = Callable[..., Running]


@pytest.fixture(scope="session")
def cache_dir(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def start(cache_dir) -> Iterator[Start]:
    """Start an engine and wait until every model is ready or the engine failed."""
    with engines(cache_dir) as start:
        yield start


@contextmanager
def engines(cache_dir: Path) -> Iterator[Start]:
    """Starts engines, and ends those it started."""
    started: list[Running] = []

    def settings(flags: dict) -> Settings:
        defaults = {
            "device": "cpu",
            "threads": 1,
            "batching": {"max_batch_size": 2},
            "compile": {"cache_dir": str(cache_dir)},
        }
        merged = {key: {**defaults[key], **flags.pop(key, {})} for key in ("batching", "compile")}
        return load(flags={**defaults, **flags, **merged})

    def run(models: Sequence[ServedModel], skipped=NOTHING_SKIPPED, **flags) -> Running:
        chosen = settings(flags)
        prepare_environment(chosen)

        def on_status(status: ModelStatus) -> None:
            with running.changed:
                running.statuses[status.name] = status
                running.changed.notify_all()

        def on_failed(error: Exception) -> None:
            with running.changed:
                running.failure = error
                running.changed.notify_all()

        batches: list[BatchRecord] = []
        devices: list[DeviceRecord] = []
        listener = Listener(
            status=on_status,
            batch=batches.append,
            device=devices.append,
            failed=on_failed,
            device_takes=lambda _: None,
            device_free=lambda: None,
        )
        engine = Engine(models, chosen, listener, skipped)
        running = Running(engine, batches=batches, devices=devices)
        started.append(running)
        engine.start()
        with running.changed:
            assert running.changed.wait_for(
                lambda: (
                    running.failure
                    or (
                        len(running.statuses) == len(models)
                        and all(status.state == "ready" for status in running.statuses.values())
                    )
                ),
                timeout=240,
            )
        return running

    yield run
    for running in started:
        running.engine.close(30)
