"""Can this machine compile? Cheap checks before anything is compiled, one finding each.

What only a compile can show is found by `probe`, or by warm-up. Knows nothing of models.
"""

from __future__ import annotations

import ctypes.util
import importlib
import logging
import os
from collections.abc import Iterator

import torch

from server.config import Settings
from server.engine import checks
from server.engine.checks import Finding

log = logging.getLogger(__name__)

LEAST_CAPABILITY = (7, 0)
GOOD_FREE_BYTES = 2**30


def preflight(settings: Settings, device: torch.device) -> Iterator[Finding]:
    """All findings for compiling on `device`, those that are ok too."""
    yield checks.cache(settings)
    yield checks.c_compiler() if device.type == "cuda" else checks.cxx_compiler()
    yield checks.python_headers()
    yield checks.user()
    yield checks.threads(settings)
    yield checks.versions()
    yield checks.variables()
    if device.type == "cuda":
        yield _triton()
        yield _libcuda()
        yield _capability(device)
        yield _device_memory(device)
        yield _allocator()


def blocking_reason(settings: Settings, device: torch.device) -> str | None:
    """Why nothing can be compiled here, or None. Logs what is not as it should be."""
    findings = list(preflight(settings, device))
    for finding in findings:
        if finding.state == "warning":
            log.warning("preflight: %s", finding)
    return "; ".join(str(each) for each in findings if each.state == "blocking") or None


def _triton() -> Finding:
    try:
        version = importlib.import_module("triton").__version__
    except ImportError as error:
        remedy = "install the triton that belongs to this torch"
        return Finding("Triton", "blocking", f"cannot be imported ({error})", remedy)
    return Finding("Triton", "ok", f"triton {version}")


def _libcuda() -> Finding:
    found = ctypes.util.find_library("cuda")
    if found is not None:
        return Finding("libcuda", "ok", found)
    remedy = "run ldconfig where the driver is installed, or set TRITON_LIBCUDA_PATH"
    return Finding("libcuda", "warning", "not where Triton looks for it", remedy)


def _capability(device: torch.device) -> Finding:
    major, minor = torch.cuda.get_device_capability(device)
    found = f"{torch.cuda.get_device_name(device)}, compute capability {major}.{minor}"
    if (major, minor) >= LEAST_CAPABILITY:
        return Finding("GPU", "ok", found)
    return Finding("GPU", "blocking", found, "Triton needs 7.0 or higher: use mode = 'eager'")


def _device_memory(device: torch.device) -> Finding:
    free, total = torch.cuda.mem_get_info(device)
    found = f"{free / 2**20:,.0f} of {total / 2**20:,.0f} MiB free"
    if free >= GOOD_FREE_BYTES:
        return Finding("GPU memory", "ok", found)
    remedy = "free some: warm-up and CUDA graphs need memory beside the weights"
    return Finding("GPU memory", "warning", found, remedy)


def _allocator() -> Finding:
    name = "PYTORCH_NO_CUDA_MEMORY_CACHING"
    if name not in os.environ:
        return Finding("CUDA allocator", "ok", "caching")
    return Finding("CUDA allocator", "blocking", f"{name} is set", "unset it: CUDA graphs need it")
