"""The real `serve` as a subprocess, on a free port, and an HTTP client for it."""

from __future__ import annotations

import io
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
from PIL import Image
from sklearn.datasets import load_sample_image

ROOT = Path(__file__).parents[2]
READY_S = 800


@dataclass
class Server:
    """A running server; `http` talks to it, `log` is what it wrote to stderr."""

    process: subprocess.Popen[bytes]
    http: httpx.Client
    log: Path

    def wait_ready(self) -> None:
        deadline = time.monotonic() + READY_S
        while self.process.poll() is None and time.monotonic() < deadline:
            if self.status("/readyz") == 200:
                return
            time.sleep(0.1)
        raise AssertionError(f"not ready; its log:\n{self.log.read_text()}")

    def status(self, path: str) -> int | None:
        """The status of a GET; None where nobody listens (yet)."""
        try:
            return self.http.get(path).status_code
        except httpx.TransportError:
            return None

    def stop(self, with_signal: int = signal.SIGTERM) -> int:
        self.process.send_signal(with_signal)
        return self.process.wait(60)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture(scope="session")
def environment(tmp_path_factory) -> dict[str, str]:
    """Tests share one cache of compiled code, apart from the user's."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith("GEARSHIFT_")}
    cache = tmp_path_factory.mktemp("cache")
    return {
        **kept,
        "PYTHONPATH": str(ROOT),
        "GEARSHIFT_COMPILE__CACHE_DIR": str(cache / "private"),
        "GEARSHIFT_CONFIG": os.devnull,
    }


Start = Callable[..., Server]


@pytest.fixture(scope="session")
def start(environment, tmp_path_factory) -> Iterator[Start]:
    """Start a server with flags; it is stopped at the end, if it still runs."""
    started: list[Server] = []

    def run(*flags: str, wait: bool = True) -> Server:
        port = free_port()
        log = tmp_path_factory.mktemp("server") / "log"
        command = [sys.executable, "-m", "server.cli", "--port", str(port), *flags]
        own = {**environment, "TMPDIR": str(log.parent)}
        with log.open("wb") as stderr:
            process = subprocess.Popen(command, cwd=log.parent, env=own, stderr=stderr)
        client = httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60)
        server = Server(process, client, log)
        started.append(server)
        if wait:
            server.wait_ready()
        return server

    yield run
    for server in started:
        server.http.close()
        if server.process.poll() is None:
            server.stop()


def sample_jpeg(name: str) -> bytes:
    file = io.BytesIO()
    Image.fromarray(load_sample_image(f"{name}.jpg")).save(file, "JPEG", quality=95)
    return file.getvalue()


@pytest.fixture(scope="session")
def flower() -> bytes:
    return sample_jpeg("flower")


@pytest.fixture(scope="session")
def china() -> bytes:
    return sample_jpeg("china")
