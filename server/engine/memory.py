"""How much memory the device and this process use, in bytes. Called on the executor thread."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import psutil
import torch
from torch import nn


def weight_bytes(module: nn.Module) -> int:
    """Parameters and buffers of `module`."""
    tensors: Iterable[torch.Tensor] = [*module.parameters(), *module.buffers()]
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def resident_bytes() -> int:
    """Resident memory of this process."""
    return int(psutil.Process().memory_info().rss)


def device_bytes(device: torch.device) -> dict[str, int]:
    """What torch's allocator says of a CUDA device, by kind; empty for a CPU.

    `graph_pool` is what CUDA graphs hold in private pools (torch 2.13 and later tell).
    """
    if device.type != "cuda":
        return {}
    stats = torch.cuda.memory_stats(device)
    pools = [
        value
        for key, value in stats.items()
        if key.startswith("reserved_bytes_by_private_pools.") and key.endswith(".all.current")
    ]
    return {
        "allocated": stats["allocated_bytes.all.current"],
        "reserved": stats["reserved_bytes.all.current"],
        "peak": stats["allocated_bytes.all.peak"],
        **({"graph_pool": sum(pools)} if pools else {}),
    }


def peak_during(device: torch.device, call: Callable[[], object]) -> int | None:
    """How far torch's allocator went above what it held, while `call` ran; None on a CPU."""
    if device.type != "cuda":
        call()
        return None
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    call()
    return torch.cuda.max_memory_allocated(device) - before


def gpu(device: torch.device) -> tuple[str, int] | tuple[None, None]:
    """Name and memory of a CUDA device; None for a CPU."""
    if device.type != "cuda":
        return None, None
    properties = torch.cuda.get_device_properties(device)
    return properties.name, properties.total_memory
