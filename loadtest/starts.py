"""`scripts/bench start`: what a start costs, cold and with a warm cache, for the demo models.

From the command to the first answer, `serve --mode compiled` with its defaults, one model at a
time: first with an empty `compile.cache_dir`, then again with what that left there.
"""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
from pathlib import Path

from loadtest.closed_loop import Request
from loadtest.peers.catalogue import plain
from loadtest.peers.workloads import WORKLOADS
from loadtest.processes import ServerProcess, free_port
from report.machine import describe_machine

READY_S = 1800.0


MODELS = ("efficientnet-lite0", "all-MiniLM-L6-v2", "lstm")


def main() -> int:
    """Start each model twice and print a table."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that the server is ended
    given = _arguments()
    image, text = (WORKLOADS[name].payloads()[0] for name in ("image", "text"))
    series = {"series": [20.0 + month % 12 for month in range(24)]}
    first = dict(zip(MODELS, map(plain, (image, text, series)), strict=True))
    machine = describe_machine()
    say(f"{machine.cpu}, {machine.cpus} CPUs, torch {machine.versions['torch']}", "")
    say("| model | cold s | warm s | warm / cold |", "|---|--:|--:|--:|")
    for model in given.models:
        with tempfile.TemporaryDirectory() as folder:
            cold_s, warm_s = (start_s(model, first[model], Path(folder)) for _ in range(2))
        say(f"| {model} | {cold_s:.1f} | {warm_s:.1f} | {warm_s / cold_s:.2f} |")
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/bench start", description=__doc__)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=MODELS)
    return parser.parse_args()


def start_s(model: str, request: Request, folder: Path) -> float:
    """Seconds from the command to the first answer. Raises RuntimeError when there is none."""
    port = free_port()
    flags = ("--mode", "compiled", "--model", model, "--port", str(port))
    environment = {
        "GEARSHIFT_CONFIG": "/dev/null",
        "GEARSHIFT_COMPILE__CACHE_DIR": str(folder / "cache"),
    }
    command = [sys.executable, "-m", "server.cli", *flags]
    with ServerProcess(command, port, folder / "log", environment) as server:
        return server.wait_ready(request, READY_S)


def say(*lines: str) -> None:
    """Lines of the table, as they come: a cold start takes minutes."""
    sys.stdout.write("\n".join([*lines, ""]))
    sys.stdout.flush()


if __name__ == "__main__":
    raise SystemExit(main())
