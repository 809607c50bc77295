"""The private directory of one running server: the workers' sockets, metric files, words left
for others.

Made before anything else is imported, because prometheus_client looks for its directory at import;
removed at the end. Knows nothing of what the others keep in it.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from server.types import Mode

MAIN = "main"


def worker_name(number: int) -> str:
    """The process name of a worker: its files and words go by it."""
    return f"worker-{number}"


class StartupError(Exception):
    """The server could not start, or could not go on; the text says why."""


@dataclass(frozen=True, slots=True)
class Runtime:
    """Where the processes of one server meet. Only this user can enter (mode 0700)."""

    directory: Path

    def worker_socket(self, worker: str) -> Path:
        """The Unix socket that a worker listens on."""
        return self.directory / f"{worker}.sock"

    @property
    def latency(self) -> Path:
        """One file of latency counts for each API process."""
        return self.directory / "latency"

    @property
    def exemplars(self) -> Path:
        """One file of request ids for each API process."""
        return self.directory / "exemplars"

    @property
    def metrics(self) -> Path:
        """prometheus_client's multiprocess directory."""
        return self.directory / "metrics"

    def journal(self, worker: str) -> Path:
        """What a worker has on its device right now (see `link.journal`)."""
        return self.directory / f"{worker}.journal"

    def fail(self, process: str, reason: str) -> None:
        """Leave word why a process cannot go on; MAIN stands for the server."""
        self._failure(process).write_text(reason, encoding="utf-8")

    def failure(self, process: str) -> str | None:
        """The word that was left, if any."""
        path = self._failure(process)
        return path.read_text(encoding="utf-8") if path.exists() else None

    def take_failure(self, process: str) -> str | None:
        """The same, for who does something about it: it is gone then."""
        reason = self.failure(process)
        self._failure(process).unlink(missing_ok=True)
        return reason

    def progress(self, process: str) -> None:
        """Leave word that a process got somewhere, so that it is worth starting again."""
        self._progress(process).touch()

    def has_progressed(self, process: str) -> bool:
        """Whether that word was left."""
        return self._progress(process).exists()

    def take_progress(self, process: str) -> bool:
        """Whether that word was left; it is gone then."""
        got_somewhere = self.has_progressed(process)
        self._progress(process).unlink(missing_ok=True)
        return got_somewhere

    def give_up(self, model: str, bucket: str, reason: str) -> None:
        """Leave word, for the next worker, of a bucket that it must not compile."""
        with self._given_up.open("a", encoding="utf-8") as file:
            file.write(json.dumps([model, bucket, reason]) + "\n")

    def given_up(self) -> dict[tuple[str, str], str]:
        """Why not to compile, by model and bucket, as earlier workers left word."""
        if not self._given_up.exists():
            return {}
        lines = self._given_up.read_text(encoding="utf-8").splitlines()
        return {(model, bucket): reason for model, bucket, reason in map(json.loads, lines)}

    def shift(self, mode: Mode) -> None:
        """Leave word, for every worker, of the mode that was asked for while serving."""
        # Whole at every moment: each worker writes it, and another may read it meanwhile.
        fresh = self.directory / f"shifted.{os.getpid()}"
        fresh.write_text(mode, encoding="utf-8")
        fresh.replace(self._shifted)

    def shifted(self) -> Mode | None:
        """The mode that was asked for last, if any was."""
        if not self._shifted.exists():
            return None
        return cast(Mode, self._shifted.read_text(encoding="utf-8"))

    @property
    def _shifted(self) -> Path:
        return self.directory / "shifted"

    @property
    def _given_up(self) -> Path:
        return self.directory / "given-up"

    def _failure(self, process: str) -> Path:
        return self.directory / f"{process}.failure"

    def _progress(self, process: str) -> Path:
        return self.directory / f"{process}.progress"


@contextmanager
def runtime() -> Iterator[Runtime]:
    """A fresh Runtime, its directory made known to prometheus_client; removed at the end."""
    made = Runtime(Path(tempfile.mkdtemp(prefix="gearshift-")))
    try:
        made.latency.mkdir()
        made.exemplars.mkdir()
        made.metrics.mkdir()
        os.environ["PROMETHEUS_MULTIPROC_DIR"] = str(made.metrics)
        yield made
    finally:
        shutil.rmtree(made.directory, ignore_errors=True)
