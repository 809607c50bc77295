"""`scripts/bench peers`: the same work for every server, in turns, as a table and as JSON."""

from __future__ import annotations

import argparse
import json
import signal
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from loadtest.closed_loop import Load
from loadtest.peers.catalogue import BATCH, BFLOAT16, COMPARED, Peer
from loadtest.peers.lineup import lined_up, say
from loadtest.peers.workloads import WORKLOADS
from loadtest.rounds import Figures, in_turns
from report.machine import describe_machine

REPORT = Path("reports/peers.json")


def main() -> int:
    """Measure, print, write. 1 when an answer was wrong."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that every server is ended
    given = _arguments()
    peers = [peer for peer in (*COMPARED, *BFLOAT16) if peer.name in given.peers]
    load = Load(given.connections, given.warmup, given.seconds)
    report = {"machine": describe_machine().model_dump(), "load": asdict(load), "workloads": {}}
    wrong = 0
    for name in given.workloads:
        with lined_up(peers, WORKLOADS[name], BATCH) as line_up:
            say(f"{name}: measuring, {given.rounds} rounds")
            figures = in_turns(line_up.contestants, load, given.rounds)
        report["workloads"][name] = {
            "model": WORKLOADS[name].model,
            "servers": [asdict(one) for one in figures],
            "left_out": line_up.left_out,
        }
        wrong += sum(one.wrong for one in figures)
        sys.stdout.write("\n".join([*_table(name, figures, peers), ""]))
    given.report.parent.mkdir(parents=True, exist_ok=True)
    given.report.write_text(json.dumps(report, indent=2))
    return 1 if wrong else 0


def _arguments() -> argparse.Namespace:
    names, more = ([peer.name for peer in peers] for peers in (COMPARED, BFLOAT16))
    parser = argparse.ArgumentParser(prog="scripts/bench peers", description=__doc__)
    parser.add_argument("--workloads", nargs="+", choices=WORKLOADS, default=["text", "image"])
    parser.add_argument("--peers", nargs="+", choices=names + more, default=names)
    parser.add_argument("--connections", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=10, help="of each turn, that count")
    parser.add_argument("--warmup", type=float, default=3, help="seconds of each that do not")
    parser.add_argument("--report", type=Path, default=REPORT)
    return parser.parse_args()


def _table(workload: str, figures: Sequence[Figures], peers: Sequence[Peer]) -> list[str]:
    ours = {peer.name for peer in peers if peer.ours}
    best = max((one.requests_per_s for one in figures if one.name not in ours), default=0.0)
    notes = {peer.name: peer.note for peer in peers}
    rows = [
        f"| {one.name} | {one.requests_per_s:.1f} | {_ratio(one.requests_per_s, best)} "
        f"| {one.p50_ms:.0f} | {one.p99_ms:.0f} | {one.wrong} of {one.answers + one.wrong} "
        f"| {notes[one.name]} |"
        for one in figures
    ]
    return [
        f"\n{workload}: {WORKLOADS[workload].model}\n",
        "| server | answers/s | of the best peer's | p50 ms | p99 ms | wrong | as |",
        "|---|--:|--:|--:|--:|--:|---|",
        *rows,
    ]


def _ratio(rate: float, best: float) -> str:
    return f"{rate / best:.2f}" if best else ""


if __name__ == "__main__":
    raise SystemExit(main())
