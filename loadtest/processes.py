"""A server's processes: started, waited for, paused while another is measured, ended with all that
they started. Knows no particular server; `servers` knows ours.
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
POLL_S = 0.1  # asking more often takes a core from whoever is starting
STOP_S = 20
# Anything else may pass: some answer 404 until their model is there.
REFUSALS = (400, 415, 422)
LAST_LINES = 3


class ServerProcess:
    """One server and all its processes; a context manager that ends them."""

    def __init__(
        self, command: Sequence[str], port: int, log: Path, environment: Mapping[str, str]
    ) -> None:
        self.port = port
        self._log = log
        self._started_at = time.monotonic()
        with log.open("wb") as output:
            self._root = psutil.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env={**os.environ, "PYTHONPATH": _python_path(), **environment},
                start_new_session=True,
            )

    def wait_ready(self, request: Request, timeout_s: float) -> float:
        """Until it answers `request`; as `wait_until`. Refusing the request is an error, too."""
        return self.wait_until(lambda: self._answers(request), timeout_s)

    def wait_until(self, is_there: Callable[[], bool], timeout_s: float) -> float:
        """Seconds from the start of the process. Raises RuntimeError, with the end of the log,
        when the process ends or the time does."""
        ends = time.monotonic() + timeout_s
        while time.monotonic() < ends and self._root.poll() is None:
            if is_there():
                return time.monotonic() - self._started_at
            time.sleep(POLL_S)
        waited = time.monotonic() - self._started_at
        last = self._log.read_text(errors="replace").strip().splitlines()[-LAST_LINES:]
        raise RuntimeError(f"no answer within {waited:.0f} s; {self._log}: {' | '.join(last)}")

    def _answers(self, request: Request) -> bool:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            connection.request("POST", request.path, request.body, dict(request.headers))
            status = connection.getresponse().status
        except (OSError, http.client.HTTPException):
            return False  # nobody listens yet
        finally:
            connection.close()
        if status in REFUSALS:
            raise RuntimeError(f"it answers {status} to the first request; {self._log}")
        return status == 200

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


def _python_path() -> str:
    return os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
