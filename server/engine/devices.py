"""The device and the dtype that a configuration means, and whether the device still works."""

from __future__ import annotations

import torch

from server.runtime import StartupError


class StartFailed(StartupError):
    """What was configured cannot be had: no such device, or a bucket that is not proven."""


class DeviceLost(Exception):
    """The device does nothing any more for this process; a new one can use it again."""


def pick_device(wanted: str) -> torch.device:
    """The device of a configuration. Raises StartFailed when it is not there."""
    if wanted == "auto":
        wanted = "cuda" if torch.cuda.is_available() else "cpu"
    device = torch.device(wanted)
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise StartFailed(
            f"device = {wanted!r}: torch sees {torch.cuda.device_count()} CUDA devices; "
            'use device = "cpu", or a build of torch and a driver that see it'
        )
    return device


def device_of(wanted: str, worker: int) -> str:
    """The device of a worker, by its number: where `wanted` names no particular GPU, they take the
    GPUs in turn."""
    is_any = wanted == "cuda" or (wanted == "auto" and torch.cuda.is_available())
    index = worker % max(1, torch.cuda.device_count()) if is_any else 0
    return f"cuda:{index}" if index else wanted


def require_alive(device: torch.device) -> None:
    """Raises DeviceLost after a sticky CUDA error: from then on every call of this process fails.

    To be asked when something failed; to wait for the device costs nothing then.
    """
    if device.type != "cuda":
        return
    try:
        torch.cuda.synchronize(device)
    except RuntimeError as error:
        raise DeviceLost(f"{device}: {str(error).splitlines()[0]}") from error


def pick_dtype(wanted: str) -> torch.dtype:
    """The dtype of the weights; "auto" is float32, nothing gets less precise unasked."""
    dtype = torch.float32 if wanted == "auto" else getattr(torch, wanted)
    assert isinstance(dtype, torch.dtype), "the configuration takes names of dtypes only"
    return dtype
