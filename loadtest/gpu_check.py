"""`scripts/gpu-check`: the tests that need a GPU, then the figures, within a time limit.

Runs what anybody could run, one command after the other, and joins the reports. A step that fails
or runs out of time is named; the others count all the same. Knows nothing of what they do.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

REPORTS = Path("reports")
LIMIT_S = 330.0
ENVIRONMENT = {"GEARSHIFT_COMPILE__DYNAMIC": "batch"}
"""One compile for all batch sizes: with one for each, six minutes would go into compiling."""

BENCH = ("--weights", "random", "--batch", "1", "--batch", "8", "--batch", "32", "--seconds", "1")
BENCHED = {
    "resnet50": ("--model", "resnet50", *BENCH),
    "bert-base": ("--model", "transformers:bert-base-uncased", "--seq", "128", *BENCH),
    "lstm": ("--model", "lstm", "--seq", "128", *BENCH),
}
HTTP = ("--scenario", "image", "--arrivals", "steady", "--rounds", "2", "--seconds", "3")


def main() -> int:
    """Run every step, write `reports/gpu-check.*`, say what went wrong. 1 where anything did."""
    started = time.monotonic()
    failed = []
    reports = []
    for name, arguments in steps().items():
        left_s = LIMIT_S - (time.monotonic() - started)
        report = REPORTS / f"gpu-{name}.json"
        report.unlink(missing_ok=True)  # of an earlier run
        problem = run(name, arguments, left_s)
        if problem is not None:
            failed.append(f"{name}: {problem}")
        if report.exists():
            reports.append(str(report))
    if reports:
        joined = str(REPORTS / "gpu-check")
        subprocess.run([sys.executable, "-m", "report", joined, *reports], check=True)
    sys.stdout.write("\n".join([*failed, f"{time.monotonic() - started:.0f} s", ""]))
    return 1 if failed else 0


def steps() -> dict[str, Sequence[str]]:
    """Name to the arguments of Python; each writes `reports/gpu-NAME.json`, the tests aside."""
    found: dict[str, Sequence[str]] = {
        "tests": ("-m", "pytest", "-q", "-W", "default", "-m", "gpu", "tests/gpu")
    }
    for dtype in ("bfloat16", "float32"):
        for model, flags in BENCHED.items():
            name = f"{model}-{dtype}"
            out = ("--out", str(REPORTS / f"gpu-{name}"))
            found[name] = ("-m", "server.cli", "bench", *flags, "--dtype", dtype, *out)
    found["http"] = ("-m", "loadtest.compare", *HTTP, "--out", str(REPORTS / "gpu-http"))
    return found


def run(name: str, arguments: Sequence[str], limit_s: float) -> str | None:
    """Run one step, its output shown. What went wrong, if anything did."""
    sys.stdout.write(f"\n== {name}\n")
    sys.stdout.flush()
    if limit_s <= 0:
        return "no time was left for it"
    command = [sys.executable, *arguments]
    try:
        done = subprocess.run(command, env=os.environ | ENVIRONMENT, timeout=limit_s, check=False)
    except subprocess.TimeoutExpired:
        return f"not done when time was up ({LIMIT_S:.0f} s for all)"
    return f"exit code {done.returncode}" if done.returncode else None


if __name__ == "__main__":
    sys.exit(main())
