"""A long run under load and under fault: `scripts/soak [MINUTES]`. Not a test: it takes minutes.

Starts the real server with the fast models of `fakes`, asks it from several connections, injects a
fault every ten seconds, and prints what came of it.
"""

from __future__ import annotations

import http.client
import itertools
import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
from prometheus_client.parser import text_string_to_metric_families

ROOT = Path(__file__).parents[1]
MODELS = ("--model", "double=tests.fakes:Double", "--model", "fragile=tests.fakes:Fragile")
FAULT_EVERY_S = 10
SETTLED_S = 20  # memory at the start is taken after so much load
REFUSED_S = 0.1  # what a refused client waits before it asks again


class Soak:
    """The server, what was sent to it and what came back."""

    def __init__(self, directory: str) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port: int = probe.getsockname()[1]
        environment = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "TMPDIR": directory,
            "GEARSHIFT_CONFIG": os.devnull,
            "GEARSHIFT_BATCHING__MAX_QUEUE": "64",
            "GEARSHIFT_BATCHING__INFERENCE_TIMEOUT_S": "5",
        }
        flags = ("--port", str(self.port), "--api-processes", "2", "--threads", "1")
        with Path(directory, "log").open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "server.cli", *MODELS, *flags],
                cwd=directory,
                env=environment,
                stderr=log,
            )
        self.sent = 0
        self.answers: Counter[str] = Counter()
        self.faults: Counter[str] = Counter()
        self.wrong: list[str] = []
        self.stop = threading.Event()

    def ask(self, connection: http.client.HTTPConnection, path: str, body: bytes) -> str:
        """One request; what came of it, counted."""
        self.sent += 1
        try:
            connection.request("POST", path, body, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            content = answer.read()
        except (OSError, http.client.HTTPException):
            connection.close()
            outcome = "connection lost"
        else:
            outcome = str(answer.status)
            if answer.status == 200:
                self._check(body, json.loads(content))
        self.answers[outcome] += 1
        return outcome

    def _check(self, body: bytes, answer: dict[str, Any]) -> None:
        asked = json.loads(body)
        got = answer["predictions"] if isinstance(asked, list) else [answer["prediction"]]
        samples = asked if isinstance(asked, list) else [asked]
        if got != [[2 * number for number in sample["x"]] for sample in samples]:
            self.wrong.append(f"{body!r}: {answer}")

    def client(self, bodies: Callable[[], tuple[str, bytes]]) -> None:
        """Asks until it is told to stop."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        while not self.stop.is_set():
            if self.ask(connection, *bodies()) not in ("200", "422"):
                time.sleep(REFUSED_S)
        connection.close()

    def get(self, path: str) -> str | None:
        """The body of a GET; None unless it is 200."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            return answer.read().decode() if answer.status == 200 else None
        except (OSError, http.client.HTTPException):
            return None
        finally:
            connection.close()

    def wait_ready(self) -> None:
        while self.get("/readyz") is None:
            assert self.process.poll() is None, "the server ended"
            time.sleep(0.2)

    def memory(self) -> dict[str, float]:
        """Resident megabytes of every process by role."""
        main = psutil.Process(self.process.pid)
        found = {"main": main.memory_info().rss / 1e6}
        apis = itertools.count()
        for process in main.children():
            with suppress(psutil.NoSuchProcess):
                command = " ".join(process.cmdline())
                if "resource_tracker" in command:
                    continue
                role = "worker" if "spawn_main" in command else f"api-{next(apis)}"
                found[role] = process.memory_info().rss / 1e6
        return found

    def inject(self, fault: str) -> None:
        """One fault."""
        self.faults[fault] += 1
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        match fault:
            case "worker killed" | "API process killed":
                wanted = "spawn_main" if fault == "worker killed" else "server.cli"
                for process in psutil.Process(self.process.pid).children():
                    if wanted in " ".join(process.cmdline()):
                        process.kill()
                        break
            case "request that kills the worker":
                self.ask(connection, "/models/fragile/predict", vector(13))
            case "request that never ends":
                self.ask(connection, "/models/fragile/predict", vector(14))
            case "disconnects":
                for _ in range(50):
                    hung_up = http.client.HTTPConnection("127.0.0.1", self.port)
                    with suppress(OSError):
                        body, headers = vector(1), {"Content-Type": "application/json"}
                        hung_up.request("POST", "/models/fragile/predict", body, headers)
                    hung_up.close()
        connection.close()


def vector(first: float) -> bytes:
    return json.dumps({"x": [first, 0, 0, 0]}).encode()


def good() -> tuple[str, bytes]:
    return "/predict", vector(random.randrange(100, 10_000))


def slow() -> tuple[str, bytes]:
    return "/models/fragile/predict", vector(random.randrange(100, 10_000))


def bad() -> tuple[str, bytes]:
    return "/predict", random.choice([b"{", b'{"x": [1]}', b'{"x": "no"}', b"[]", b'{"y": 1}'])


def too_many() -> tuple[str, bytes]:
    return "/predict", json.dumps([{"x": [1, 2, 3, 4]}] * random.choice([20, 40])).encode()


FAULTS = (
    "worker killed",
    "disconnects",
    "API process killed",
    "request that kills the worker",
    "disconnects",
    "request that never ends",
)


def main(minutes: float) -> None:
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # the server must not be left behind
    with tempfile.TemporaryDirectory(prefix="soak-") as directory:
        soak = Soak(directory)
        try:
            run(soak, minutes)
        finally:
            soak.stop.set()
            if soak.process.poll() is None:
                soak.process.kill()
        left = sorted(path.name for path in Path(directory).iterdir())
        print(f"\nfiles left: {', '.join(left)}; wrong answers: {len(soak.wrong)}")
        if soak.wrong or left != ["log"]:
            sys.exit("\n".join(soak.wrong[:5]) or "files were left behind")


def run(soak: Soak, minutes: float) -> None:
    soak.wait_ready()
    kinds = [good] * 6 + [slow] * 2 + [bad, too_many]
    clients = [threading.Thread(target=soak.client, args=(kind,), daemon=True) for kind in kinds]
    for client in clients:
        client.start()
    time.sleep(SETTLED_S)
    before = soak.memory()
    ends_at = time.monotonic() + minutes * 60 - SETTLED_S
    for fault in itertools.cycle(FAULTS):
        if time.monotonic() > ends_at - FAULT_EVERY_S:
            break
        soak.inject(fault)
        time.sleep(FAULT_EVERY_S)
    soak.wait_ready()
    time.sleep(FAULT_EVERY_S)
    after, metrics = soak.memory(), soak.get("/metrics") or ""
    soak.stop.set()
    for client in clients:
        client.join()
    soak.process.send_signal(signal.SIGTERM)
    code = soak.process.wait(60)
    report(soak, before, after, metrics, code)


def report(
    soak: Soak, before: dict[str, float], after: dict[str, float], metrics: str, code: int
) -> None:
    counted: Counter[str] = Counter()
    for family in text_string_to_metric_families(metrics):
        for sample in family.samples:
            if sample.name == "gearshift_requests_total":
                counted[sample.labels["outcome"]] += int(sample.value)
            elif sample.name.endswith("_restarts_total"):
                counted[sample.name.removeprefix("gearshift_")] += int(sample.value)
    rows = [
        ("requests sent", soak.sent),
        ("answered", soak.answers.total() - soak.answers["connection lost"]),
        *((f"  {outcome}", count) for outcome, count in sorted(soak.answers.items())),
        *((f"metrics: {name}", count) for name, count in sorted(counted.items())),
        *((f"fault: {fault}", count) for fault, count in sorted(soak.faults.items())),
        ("exit code", code),
    ]
    for name, value in rows:
        print(f"{name:40} {value:>10}")
    print(f"\n{'resident MB':40} {'start':>10} {'end':>10}")
    for role in sorted(before | after):
        print(f"{role:40} {before.get(role, 0):10.1f} {after.get(role, 0):10.1f}")


if __name__ == "__main__":
    main(float(sys.argv[1]))
