"""`scripts/bench overhead`: a model that does nothing, so that what is measured is the server.

Ours is as it comes: validation, metrics, headers, admission and batching are on. So are the others,
which come without batches. Bare Starlette, in the same run, is the floor for a server in Python.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from loadtest.closed_loop import Load
from loadtest.peers.catalogue import EAGER, LITSERVE, MOSEC, STARLETTE
from loadtest.peers.lineup import lined_up
from loadtest.peers.workloads import WORKLOADS
from loadtest.rounds import Figures, in_turns
from report.machine import describe_machine

REPORT = Path("reports/overhead.json")
CONNECTIONS = (1, 16)
WARMUP_S = 1.0


def main() -> int:
    """Measure, print, write. 1 when an answer was wrong."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that every server is ended
    given = _arguments()
    loads = [Load(connections, WARMUP_S, given.seconds) for connections in CONNECTIONS]
    peers = (EAGER, LITSERVE, MOSEC, STARLETTE)
    with lined_up(peers, WORKLOADS["nothing"], batch=1) as line_up:
        figures = [in_turns(line_up.contestants, load, given.rounds) for load in loads]
    sys.stdout.write("\n".join([*_table(*figures), ""]))
    report = {
        "machine": describe_machine().model_dump(),
        "servers": [asdict(one) for under_load in figures for one in under_load],
        "left_out": line_up.left_out,
    }
    given.report.parent.mkdir(parents=True, exist_ok=True)
    given.report.write_text(json.dumps(report, indent=2))
    return 1 if any(one.wrong for under_load in figures for one in under_load) else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/bench overhead", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=4, help="of each turn")
    parser.add_argument("--report", type=Path, default=REPORT)
    return parser.parse_args()


def _table(alone: Sequence[Figures], together: Sequence[Figures]) -> list[str]:
    rows = [
        f"| {one.name} | {one.requests_per_s:,.0f} | {one.p50_ms:.2f} | {one.p99_ms:.2f} "
        f"| {many.requests_per_s:,.0f} | {many.p50_ms:.2f} | {many.p99_ms:.2f} |"
        for one, many in zip(alone, together, strict=True)
    ]
    return [
        "| server | 1 connection: req/s | p50 ms | p99 ms | 16: req/s | p50 ms | p99 ms |",
        "|---|--:|--:|--:|--:|--:|--:|",
        *rows,
    ]


if __name__ == "__main__":
    raise SystemExit(main())
