"""How far the models are, for a person: a live display on a terminal, lines or JSON elsewhere.

Shows what it is given; knows nothing of how models come up.
"""

from __future__ import annotations

import logging
import math
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import Any, Protocol

from rich.console import Console
from rich.live import Live
from rich.table import Table

from server.config import LogSection
from server.types import BucketState, BucketStatus, ModelStatus

DONE: tuple[BucketState, ...] = ("compiled", "eager")

log = logging.getLogger(__name__)


class Progress(Protocol):
    """Shows how far the models are, until all are ready."""

    def update(self, status: ModelStatus) -> None: ...

    def close(self) -> None: ...


def progress(section: LogSection) -> Progress:
    """A live display on a terminal, a log line for each step elsewhere."""
    if section.format == "json":
        return StepLines(_log_object)
    if section.format == "text" or not sys.stderr.isatty():
        return StepLines(_log_rows)
    return LiveDisplay()


class StepLines:
    """Start-up as one log line a step, and a summary of the buckets when a model is ready."""

    def __init__(self, summarise: Callable[[ModelStatus], None]) -> None:
        self._summarise = summarise
        self._last: dict[str, ModelStatus] = {}

    def update(self, status: ModelStatus) -> None:
        before = self._last.get(status.name)
        self._last[status.name] = status
        for level, text in _steps(before, status):
            log.log(level, "%s: %s", status.name, text)
        became_ready = status.state == "ready" and (before is None or before.state != "ready")
        if became_ready and _done(status):
            self._summarise(status)

    def close(self) -> None:
        """Nothing to take down: lines stay."""


class LiveDisplay:
    """The same lines, and below them what every model does right now, with its clock running."""

    def __init__(self) -> None:
        self._console = Console(stderr=True, markup=False, highlight=False)
        self._lines = StepLines(lambda status: self._console.print(_table(status)))
        self._now: dict[str, ModelStatus] = {}
        self._started = time.monotonic()
        self._live = Live(console=self._console, get_renderable=self._render, transient=True)
        self._live.start()
        # A worker that is killed here could not bring the user's cursor back.
        self._console.show_cursor(True)

    def update(self, status: ModelStatus) -> None:
        self._now[status.name] = status
        self._lines.update(status)

    def close(self) -> None:
        self._live.stop()

    def _render(self) -> Table:
        elapsed = f"{time.monotonic() - self._started:.0f} s"
        grid = Table.grid(padding=(0, 2))
        for status in list(self._now.values()):
            grid.add_row(status.name, status.state, _current(status), elapsed, _left(status))
        return grid


def _steps(before: ModelStatus | None, now: ModelStatus) -> Iterator[tuple[int, str]]:
    """What became true between two reports, as log levels and texts."""
    known = {bucket.bucket: bucket.state for bucket in before.buckets} if before else {}
    if before is None or before.state != now.state:
        yield _state_step(now)
    for bucket in now.buckets:
        if bucket.state in DONE and known.get(bucket.bucket) not in DONE:
            yield _bucket_step(bucket, now)


def _state_step(now: ModelStatus) -> tuple[int, str]:
    if now.state == "loading":
        return logging.INFO, "loading"
    if now.state == "warming":
        return logging.INFO, f"loaded in {_seconds(now.load_s)}, warming up"
    if now.state == "failed":
        return logging.ERROR, f"failed: {now.detail}"
    where = f"{now.mode}, {now.device}, {now.dtype}"
    took = f"loaded in {_seconds(now.load_s)}, warmed up in {_seconds(now.warmup_s)}"
    return logging.INFO, f"ready ({where}): {took}"


def _bucket_step(bucket: BucketStatus, now: ModelStatus) -> tuple[int, str]:
    left = _left(now)
    done = f"({_done(now)} of {len(now.buckets)})" + (f", {left}" if left else "")
    if bucket.reason is not None:
        return logging.WARNING, f"bucket {bucket.bucket} stays eager {done}: {bucket.reason}"
    return (
        logging.INFO,
        f"bucket {bucket.bucket} {bucket.state} in {_seconds(_spent(bucket))} {done}"
        + (f": {bucket.note}" if bucket.note else ""),
    )


def _current(status: ModelStatus) -> str:
    running = [bucket.bucket for bucket in status.buckets if bucket.state == "compiling"]
    return f"bucket {running[0]} ({_done(status) + 1} of {len(status.buckets)})" if running else ""


def _done(status: ModelStatus) -> int:
    return sum(bucket.state in DONE for bucket in status.buckets)


def _left(status: ModelStatus) -> str:
    """The time for the buckets to come, if each takes what those before took on average."""
    spent = [_spent(bucket) for bucket in status.buckets if bucket.compile_s is not None]
    todo = len(status.buckets) - _done(status)
    return f"about {todo * sum(spent) / len(spent):.0f} s left" if todo and spent else ""


def _spent(bucket: BucketStatus) -> float:
    return (bucket.compile_s or 0) + (bucket.warmup_s or 0)


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f} s"


def _table(status: ModelStatus) -> Table:
    header, *rows = _summary(status)
    table = Table(*header, title=status.name, title_justify="left")
    for row in rows:
        table.add_row(*row)
    return table


def _log_rows(status: ModelStatus) -> None:
    rows = _summary(status)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        log.info("%s", "  ".join(cells).rstrip())


def _log_object(status: ModelStatus) -> None:
    buckets = [{key: _finite(value) for key, value in asdict(b).items()} for b in status.buckets]
    log.info("%s: buckets", status.name, extra={"model": status.name, "buckets": buckets})


def _finite(value: Any) -> Any:
    """JSON has no NaN and no infinity: they become words."""
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _summary(status: ModelStatus) -> list[tuple[str, ...]]:
    unmeasured = "-" if status.device.startswith("cuda") else "no CUDA"
    columns: dict[str, Callable[[BucketStatus], str]] = {
        "bucket": lambda bucket: bucket.bucket,
        "state": lambda bucket: bucket.state,
        "compile s": lambda bucket: _cell(bucket.compile_s, ".1f"),
        "warm-up s": lambda bucket: _cell(bucket.warmup_s, ".1f"),
        "cache": lambda bucket: bucket.cache or "-",
        "graphs": lambda bucket: _cell(bucket.graphs, "d"),
        "breaks": lambda bucket: _cell(bucket.graph_breaks, "d"),
        "replays": lambda bucket: _cell(bucket.replays_per_call, "d", unmeasured),
        "pool MB": lambda bucket: _cell(_mb(bucket.graph_pool_bytes), ".1f", unmeasured),
        "parity error": lambda bucket: _cell(bucket.parity_max_abs_error, ".1e"),
        "judged by": lambda bucket: bucket.parity_rule or "-",
        "remark": lambda bucket: bucket.reason or bucket.note or "",
    }
    return [tuple(columns)] + [
        tuple(show(bucket) for show in columns.values()) for bucket in status.buckets
    ]


def _mb(size: int | None) -> float | None:
    return None if size is None else size / 1e6


def _cell(value: float | None, form: str, unmeasured: str = "-") -> str:
    return unmeasured if value is None else format(value, form)
