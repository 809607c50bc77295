"""Compiles a small module for real, in a child process and under a clock.

Finds what no look at the machine shows: a compiler that is there and fails, or never ends.
Run as a program it is that child.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time

import torch
from torch import nn

from server.config import Settings
from server.engine.checks import Finding

TIMEOUT_S = 180
CALLS = 4  # with CUDA graphs: compile, record, replay, replay


def probe(settings: Settings, device: torch.device) -> Finding:
    """Whether a small module compiles on `device` and answers as it does eager."""
    torch_mode = settings.compile.torch_mode
    command = [sys.executable, "-m", "server.engine.probe", str(device), torch_mode]
    fresh = {"TORCHINDUCTOR_FORCE_DISABLE_CACHES": "1", "TORCHINDUCTOR_COMPILE_THREADS": "1"}
    remedy = "see `serve --log-level debug`; until then it is served eager"
    started = time.perf_counter()
    try:
        done = subprocess.run(
            command, env=os.environ | fresh, capture_output=True, text=True, timeout=TIMEOUT_S
        )
    except subprocess.TimeoutExpired:
        return Finding("probe", "blocking", f"no end after {TIMEOUT_S} s", remedy)
    if done.returncode == 0:
        took = time.perf_counter() - started
        return Finding("probe", "ok", f"a small module compiled and ran in {took:.0f} s")
    if done.returncode < 0:
        return Finding("probe", "blocking", f"died of signal {-done.returncode}", remedy)
    lines = done.stderr.strip().splitlines() or ["it failed without a word"]
    return Finding("probe", "blocking", lines[-1], remedy)


def main(device: str, torch_mode: str) -> None:
    module = nn.Sequential(nn.Linear(16, 16), nn.GELU(), nn.Linear(16, 4)).to(device).eval()
    x = torch.linspace(-1, 1, 32, device=device).reshape(2, 16)
    with torch.inference_mode():
        compiled = torch.compile(module, mode=torch_mode, fullgraph=True)
        try:
            answers = [compiled(x).clone() for _ in range(CALLS)]
            torch.testing.assert_close(answers[-1], module(x), rtol=1e-3, atol=1e-3)
        except Exception as error:  # whatever a compiler raises is the finding
            sys.exit(_summary(error))


def _summary(error: Exception) -> str:
    """The first line, and the compiler's own first complaint where there is one."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    complaints = [line for line in lines[1:] if "error:" in line.lower()]
    return " / ".join([f"{type(error).__name__}: {lines[0] if lines else ''}", *complaints[:1]])


if __name__ == "__main__":
    main(*sys.argv[1:])
