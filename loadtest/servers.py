"""A Gearshift server under test, started as anybody would start it, or one that runs already.

Reads its `/readyz` and `/metrics`; of any other server it knows the URL alone. `processes` starts
and ends.
"""

from __future__ import annotations

import shlex
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import requests
from prometheus_client.parser import text_string_to_metric_families

from loadtest.inputs import Body
from loadtest.processes import ServerProcess, free_port
from report.schema import ServerFigures

START_S = 3600.0
MODE_FLAG = "--mode"
DEVICE_MEMORY = "gearshift_device_memory_bytes"
RESIDENT_MEMORY = "gearshift_worker_resident_memory_bytes"


class ServerFailed(Exception):
    """The server did not start, or is not there; the text says why."""


Samples = Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Server:
    """A server that takes requests."""

    name: str
    started_with: str
    url: str
    live_s: float | None = None
    ready_s: float | None = None

    def ask(self, path: str, body: Body) -> Any:
        """The answer to one request. Raises ServerFailed when there is none."""
        headers = {"Content-Type": body.content_type}
        try:
            answer = requests.post(f"{self.url}{path}", body.content, headers=headers, timeout=60)
        except requests.RequestException as error:
            raise ServerFailed(f"{self.name}: {error}") from error
        if answer.status_code != 200:
            raise ServerFailed(f"{self.name}: {path}: {answer.status_code} {answer.text}")
        return answer.json()

    def samples(self) -> Samples:
        """Its metrics by name (and kind of memory), added up over other labels; none for a server
        that has none. Raises ServerFailed when it does not answer."""
        try:
            answer = requests.get(f"{self.url}/metrics", timeout=10)
        except requests.RequestException as error:
            raise ServerFailed(f"{self.name}: {error}") from error
        if answer.status_code != 200:
            return {}
        found: dict[str, float] = {}
        for family in text_string_to_metric_families(answer.text):
            for sample in family.samples:
                name = sample.name + sample.labels.get("kind", "")
                found[name] = found.get(name, 0.0) + sample.value
        return found


def memory_bytes(samples: Samples) -> dict[str, int]:
    """By kind: `resident` is the worker process, the others its device; what of the device is not
    the server's is left out."""
    found = {RESIDENT_MEMORY: "resident"}
    found |= {name: name.removeprefix(DEVICE_MEMORY) for name in samples if DEVICE_MEMORY in name}
    found = {name: kind for name, kind in found.items() if kind not in ("free", "total")}
    return {kind: int(samples[name]) for name, kind in found.items() if name in samples}


def figures(before: Samples, after: Samples) -> ServerFigures | None:
    """What the server counted between two scrapes; None when it counted nothing."""

    def grown(name: str) -> float:
        return after.get(f"gearshift_{name}", 0.0) - before.get(f"gearshift_{name}", 0.0)

    def mean(name: str) -> float:
        return grown(f"{name}_sum") / max(1.0, grown(f"{name}_count"))

    if not grown("request_duration_seconds_count"):
        return None
    return ServerFigures(
        requests=int(grown("request_duration_seconds_count")),
        request_s=mean("request_duration_seconds"),
        queue_s=mean("queue_duration_seconds"),
        inference_s=mean("inference_duration_seconds"),
        batches=int(grown("inference_duration_seconds_count")),
        batch_size=mean("batch_size"),
    )


@contextmanager
def serving(side: str, flags: Sequence[str]) -> Iterator[Server]:
    """A server for `side`: a URL, a mode, or flags of `serve`; `flags` are added to the latter.

    One that was started here is stopped at the end.
    """
    if side.startswith(("http://", "https://")):
        yield Server(side, side, side.rstrip("/"))
        return
    own = [MODE_FLAG, side] if not side.startswith("-") else shlex.split(side)
    with _started([*own, *flags]) as (url, live_s, ready_s):
        yield Server(side.removeprefix(f"{MODE_FLAG} "), shlex.join(own), url, live_s, ready_s)


@contextmanager
def _started(flags: Sequence[str]) -> Iterator[tuple[str, float, float]]:
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    command = [sys.executable, "-m", "server.cli", "--port", str(port), *flags]
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder, "log")
        with ServerProcess(command, port, log, {}) as process:
            try:
                live_s = process.wait_until(lambda: _is_ok(f"{url}/livez"), START_S)
                ready_s = process.wait_until(lambda: _is_ok(f"{url}/readyz"), START_S)
            except RuntimeError:
                raise ServerFailed(f"{shlex.join(command)}: {log.read_text()}") from None
            yield url, live_s, ready_s


def _is_ok(url: str) -> bool:
    try:
        return requests.get(url, timeout=10).status_code == 200
    except requests.RequestException:
        return False  # nobody listens yet, or is busy
