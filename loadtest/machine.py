"""Where a figure was measured: without it no figure is worth quoting."""

from __future__ import annotations

import platform
from importlib.metadata import version
from pathlib import Path

import psutil

LIBRARIES = ("torch", "litserve", "starlette", "uvicorn", "fastapi")


def machine() -> dict[str, str | int]:
    """Processor, cores and versions."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    model = next((line.partition(": ")[2] for line in lines if line.startswith("model name")), "")
    return {
        "cpu": model or platform.machine(),
        "cores": psutil.cpu_count() or 0,
        "python": platform.python_version(),
        **{name: version(name) for name in LIBRARIES},
    }
