"""A server under test: started, waited for, paused while another is measured, ended with everything
it started. Knows no particular server.
"""

from __future__ import annotations

import http.client
import os
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Self

import psutil

from loadtest.closed_loop import Request

ROOT = Path(__file__).parents[1]
STOP_S = 20
# Anything else may pass: some answer 404 until their model is there.
REFUSALS = (400, 415, 422)


class Server:
    """One server and all its processes; a context manager that ends them."""

    def __init__(
        self, command: Sequence[str], port: int, log: Path, environment: Mapping[str, str]
    ) -> None:
        self.port = port
        self._log = log
        with log.open("wb") as output:
            self._root = psutil.Popen(
                command,
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
                start_new_session=True,
            )

    def wait_ready(self, request: Request, timeout_s: float) -> float:
        """Seconds until it answers `request`. Raises RuntimeError when it does not, or refuses."""
        started = time.monotonic()
        while (waited := time.monotonic() - started) < timeout_s and self._root.poll() is None:
            status = self._status(request)
            if status == 200:
                return waited
            if status in REFUSALS:
                raise RuntimeError(f"it answers {status} to the first request; {self._log}")
            time.sleep(0.1)
        last = self._log.read_text(errors="replace").strip().splitlines()[-3:]
        raise RuntimeError(f"no answer within {waited:.0f} s; {self._log}: {' | '.join(last)}")

    def _status(self, request: Request) -> int | None:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            connection.request("POST", request.path, request.body, dict(request.headers))
            return connection.getresponse().status
        except (OSError, http.client.HTTPException):
            return None  # nobody listens yet
        finally:
            connection.close()

    def pause(self) -> None:
        """Take the CPU from it: some servers keep one busy while they are idle."""
        self._each(psutil.Process.suspend)

    def resume(self) -> None:
        self._each(psutil.Process.resume)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.resume()
        # Listed before the first ends: some servers leave their processes behind as orphans.
        tree = self._tree()
        with suppress(psutil.NoSuchProcess):
            self._root.terminate()
        for process in psutil.wait_procs(tree, STOP_S)[1]:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(tree, STOP_S)

    def _each(self, do: Callable[[psutil.Process], None]) -> None:
        for process in self._tree():
            with suppress(psutil.NoSuchProcess):
                do(process)

    def _tree(self) -> list[psutil.Process]:
        try:
            return [self._root, *self._root.children(recursive=True)]
        except psutil.NoSuchProcess:
            return []


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
