"""What `serve bench` does: measure every model, show it while it runs, write the report, gate.

Measures by way of the engine and judges by way of `report`; how a table is printed at the end is
the command line's.
"""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table as RichTable

from report.gate import Condition, against, failures
from report.machine import describe_machine
from report.schema import Bench, Report
from report.tables import Table, latency_table
from server.catalogue import make_models
from server.config import CompileSection, Settings
from server.engine.bench import Show, measure
from server.engine.devices import pick_device
from server.engine.memory import gpu

SHOW_EVERY_S = 0.25


@dataclass(frozen=True, slots=True)
class Shapes:
    """What is measured, and for how long in each bucket."""

    batches: Sequence[int]
    seqs: Sequence[int]
    seconds: float


def run(settings: Settings, sections: Sequence[CompileSection], shapes: Shapes) -> Report:
    """Measure every model of `settings`, compiled as each of `sections` says."""
    benches: list[Bench] = []
    with _display(benches) as show:
        for model in make_models(settings).values():
            bench = measure(
                model, settings, sections, shapes.batches, shapes.seqs, shapes.seconds, show
            )
            benches.append(bench)
    return Report(
        created=datetime.now(UTC),
        command=shlex.join(["serve", *sys.argv[1:]]),
        machine=describe_machine(*gpu(pick_device(settings.device))),
        benches=tuple(benches),
    )


def gate(
    report: Report, conditions: Sequence[Condition], baseline: Report | None
) -> Iterator[tuple[Table, bool]]:
    """What is to be shown, and whether the gate fails by it. Raises GateError."""
    if conditions:
        held = failures(report, conditions)
        yield held, bool(held.rows)
    if baseline is not None:
        yield against(report, baseline)


@contextmanager
def _display(done: Sequence[Bench]) -> Iterator[Show]:
    """On a terminal the tables so far, on stderr; drawn between rounds, so that no clock runs."""
    console = Console(stderr=True, markup=False, highlight=False)
    if not console.is_terminal:
        yield lambda _: None
        return
    shown_at = 0.0
    with Live(console=console, auto_refresh=False, transient=True) as live:

        def show(bench: Bench) -> None:
            nonlocal shown_at
            if time.monotonic() - shown_at < SHOW_EVERY_S:
                return
            live.update(Group(*map(_rich, (*done, bench))), refresh=True)
            shown_at = time.monotonic()

        yield show


def _rich(bench: Bench) -> RichTable:
    found = latency_table(bench)
    table = RichTable(*found.header, title=bench.model, title_justify="left")
    for row in found.rows:
        table.add_row(*row)
    return table
