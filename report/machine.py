"""What a report says of the machine it was made on. Imports no torch: versions are metadata."""

from __future__ import annotations

import os
import platform
from importlib import metadata
from pathlib import Path

import psutil

from report.schema import Machine

PACKAGES = (
    *("gearshift", "torch", "torchvision", "transformers", "timm", "triton"),
    *("litserve", "starlette", "uvicorn"),
)


def describe_machine(gpu: str | None = None, gpu_memory_bytes: int | None = None) -> Machine:
    """This machine; who knows the GPU says so."""
    return Machine(
        cpu=_cpu(),
        cpus=len(os.sched_getaffinity(0)),
        memory_bytes=psutil.virtual_memory().total,
        gpu=gpu,
        gpu_memory_bytes=gpu_memory_bytes,
        system=platform.platform(),
        versions={"python": platform.python_version(), **_versions()},
    )


def _cpu() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.machine()


def _versions() -> dict[str, str]:
    installed = {one.metadata["Name"].lower() for one in metadata.distributions()}
    return {name: metadata.version(name) for name in PACKAGES if name in installed}
