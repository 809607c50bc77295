"""`scripts/gpu-check`: the tests that need a GPU and the figures, within a time limit.

Runs what anybody could run, one command after the other, and joins the reports after each, so that
whatever ends this leaves what was measured. A step that fails or runs out of time is named, in the
report too; the others count all the same. Knows nothing of what they do.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from report import render

REPORTS = Path("reports")
JOINED = REPORTS / "gpu-check"
LIMIT_S = 320.0  # and what ending the last step takes, within six minutes
ENDING_S = 25.0  # longer than `processes` takes to end a server
ENVIRONMENT = {
    # One compile for all batch sizes: with one for each, six minutes would go into compiling.
    "GEARSHIFT_COMPILE__DYNAMIC": "batch",
    "GEARSHIFT_CONFIG": os.devnull,
    "HF_HUB_OFFLINE": "1",
    "PYTHONUNBUFFERED": "1",
}
BENCH = ("--weights", "random", "--batch", "1", "--batch", "8", "--batch", "32", "--seconds", "1")
BENCHED = {
    "resnet50": ("--model", "resnet50", *BENCH),
    "bert-base": ("--model", "transformers:bert-base-uncased", "--seq", "128", *BENCH),
    "lstm": ("--model", "lstm", "--seq", "128", *BENCH),
}
HTTP = ("--scenario", "image", "--arrivals", "steady", "--rounds", "6", "--seconds", "1")


@dataclass(frozen=True, slots=True)
class Step:
    """Arguments for Python, and the longest that they may take from the others."""

    name: str
    limit_s: float
    arguments: tuple[str, ...]

    @property
    def report(self) -> Path:
        """Where it writes its report; the tests write none."""
        return REPORTS / f"gpu-{self.name}.json"


def main() -> int:
    """Run every step, write `reports/gpu-check.*`, say what went wrong. 1 where anything did."""
    # Whoever ends this ends the step that runs, too.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    # What making the environment took counts.
    started = time.monotonic() - float(sys.argv[1] if len(sys.argv) > 1 else 0)
    done: list[Step] = []
    notes: list[str] = []
    for step in steps():
        step.report.unlink(missing_ok=True)  # of an earlier run
    for step in steps():
        began = time.monotonic()
        problem = run(step, LIMIT_S - (began - started))
        done.append(step)
        notes.append(f"{step.name}: {problem or 'done'}, {time.monotonic() - began:.0f} s.")
        say(notes[-1])
        join(done, notes)
    say("", *notes, f"{time.monotonic() - started:.0f} s in all")
    return 1 if any(": done, " not in note for note in notes) else 0


def steps() -> list[Step]:
    """What there is to do, the least dispensable first."""
    found = [Step("tests", 120, ("-m", "pytest", "-q", "-W", "default", "-m", "gpu", "tests/gpu"))]
    found += benches("bfloat16")
    found.append(Step("http", 100, ("-m", "loadtest.compare", *HTTP, "--out", _out("http"))))
    return found + benches("float32")


def benches(dtype: str) -> list[Step]:
    """`serve bench` of every model."""
    return [
        Step(
            name := f"{model}-{dtype}",
            60,
            ("-m", "server.cli", "bench", *flags, "--dtype", dtype, "--out", _out(name)),
        )
        for model, flags in BENCHED.items()
    ]


def _out(name: str) -> str:
    return str(REPORTS / f"gpu-{name}")


def run(step: Step, left_s: float) -> str | None:
    """Run one step, its output shown. What went wrong, if anything did."""
    say(f"\n== {step.name}")
    limit_s = min(step.limit_s, left_s)
    if limit_s <= 0:
        return "no time was left for it"
    # In a group of its own, so that nothing it started outlives it and keeps the GPU.
    with subprocess.Popen(
        [sys.executable, *step.arguments], env=os.environ | ENVIRONMENT, start_new_session=True
    ) as process:
        try:
            code = process.wait(limit_s)
        except subprocess.TimeoutExpired:
            return f"not done within {limit_s:.0f} s"
        finally:
            end(process)
    return f"exit code {code}" if code else None


def end(process: subprocess.Popen[bytes]) -> None:
    """The process, if it still runs, and all that it started."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with suppress(subprocess.TimeoutExpired):
            process.wait(ENDING_S)


def join(done: list[Step], notes: list[str]) -> None:
    """What there is so far, as one report."""
    reports = []
    for step in done:
        try:
            reports.append(render.read(step.report))
        except FileNotFoundError:
            continue
        except ValidationError as error:  # cut off while it was written
            say(f"{step.report}: {error}")
    if reports:
        joined = render.join(reports)
        render.write(joined.model_copy(update={"notes": (*joined.notes, *notes)}), JOINED)


def say(*lines: str) -> None:
    """On standard output, at once."""
    sys.stdout.write("\n".join([*lines, ""]))
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
