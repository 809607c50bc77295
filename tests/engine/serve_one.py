"""A program for tests: for each `[compile]` table given, an engine, and one answer as JSON.

Run in a child process whose directories, user or environment are at fault.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from typing import Any

import numpy as np

from server.engine.environment import prepare_environment
from server.sources import load
from server.types import Sample
from tests.fakes import Double

ENDED_S = 240


def main(*tables: str) -> None:
    answers = {table: answer(json.loads(table)) for table in tables}
    json.dump(answers, sys.stdout)


def answer(table: dict[str, str]) -> dict[str, Any]:
    flags = {"mode": "compiled", "device": "cpu", "threads": 1, "compile": table}
    settings = load(flags={**flags, "batching": {"max_batch_size": 1}})
    prepare_environment(settings)
    from server.engine.engine import Engine, Listener  # torch: after its environment

    ended = threading.Event()
    failures: list[str] = []

    def on_status(status):
        if status.state == "ready":
            ended.set()

    def on_failed(error):
        failures.append(str(error))
        ended.set()

    def ignore(record):
        pass

    engine = Engine(
        [Double()],
        settings,
        Listener(
            status=on_status,
            batch=ignore,
            device=ignore,
            failed=on_failed,
            device_takes=ignore,
            device_free=lambda: None,
        ),
    )
    engine.start()
    assert ended.wait(ENDED_S)
    if failures:
        return {"failure": failures[0]}
    sample = Sample({"x": np.ones(4, np.float32)}, time.monotonic() + ENDED_S)
    reply = engine.submit("double", [sample])[0].result(ENDED_S)
    (bucket,) = engine.statuses()[0].buckets
    engine.close(ENDED_S)
    return {"y": reply.outputs["y"].tolist(), "mode": reply.mode, "reason": bucket.reason}


if __name__ == "__main__":
    main(*sys.argv[1:])
