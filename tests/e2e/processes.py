"""The processes of a running server, and waiting for what becomes of them."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress

import httpx
import psutil

from tests.e2e.conftest import Server


def wait_until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def children(server: Server, kind: str) -> list[psutil.Process]:
    """The workers, which are spawned, or the API processes, which are forked."""
    is_kind = {
        "worker": lambda command: "spawn_main" in command,
        "api": lambda command: "server.cli" in command,
    }[kind]
    processes = psutil.Process(server.process.pid).children()
    return [process for process in processes if is_kind(command(process))]


def command(process: psutil.Process) -> str:
    with suppress(psutil.NoSuchProcess):
        return " ".join(process.cmdline())
    return ""


def wait_for_workers(server: Server, count: int) -> None:
    """Until each API process says so: either may answer."""

    def all_say_so() -> bool:
        told = [httpx.get(server.http.base_url.join("/readyz")).json() for _ in range(8)]
        ready = {model["workers_ready"] for one in told for model in one["models"].values()}
        return ready == {count}

    wait_until(all_say_so)
