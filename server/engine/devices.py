"""The device and the dtype that a configuration means."""

from __future__ import annotations

import torch

from server.runtime import StartupError


class StartFailed(StartupError):
    """What was configured cannot be had: no such device, or a bucket that is not proven."""


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


def pick_dtype(wanted: str) -> torch.dtype:
    """The dtype of the weights; "auto" is float32, nothing gets less precise unasked."""
    dtype = torch.float32 if wanted == "auto" else getattr(torch, wanted)
    assert isinstance(dtype, torch.dtype), "the configuration takes names of dtypes only"
    return dtype
