"""How much memory the device and this process use, in bytes. Called on the executor thread."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import psutil
import torch
from torch import nn

from server.engine.driver import Driver


def weight_bytes(module: nn.Module) -> int:
    """Parameters and buffers of `module`."""
    tensors: Iterable[torch.Tensor] = [*module.parameters(), *module.buffers()]
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def resident_bytes() -> int:
    """Resident memory of this process."""
    return int(psutil.Process().memory_info().rss)


class DeviceMemory:
    """The memory of a CUDA device by kind, in bytes; knows no kind of a CPU's."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._peak_warmup: int | None = None
        self._driver = Driver(device) if device.type == "cuda" else None

    def warmed_up(self) -> None:
        """Warm-up has ended: from here on the peak is that of serving."""
        if self._driver is not None:
            self._peak_warmup = torch.cuda.max_memory_allocated(self._device)
            torch.cuda.reset_peak_memory_stats(self._device)

    def by_kind(self) -> dict[str, int]:
        """What torch's allocator holds, what the driver counts for this process, and the device."""
        if self._driver is None:
            return {}
        stats = torch.cuda.memory_stats(self._device)
        free, total = torch.cuda.mem_get_info(self._device)
        kinds = {
            "allocated": stats["allocated_bytes.all.current"],
            "reserved": stats["reserved_bytes.all.current"],
            "graph_pool": graph_pool_bytes(self._device),
            "peak_warmup": self._peak_warmup,
            "peak_serving": stats["allocated_bytes.all.peak"],
            "process": self._driver.process_bytes(),
            "free": free,
            "total": total,
        }
        return {kind: size for kind, size in kinds.items() if size is not None}


def graph_pool_bytes(device: torch.device) -> int | None:
    """What CUDA graphs hold in private pools; None before torch 2.13, and on a CPU."""
    if device.type != "cuda":
        return None
    pools = [
        value
        for key, value in torch.cuda.memory_stats(device).items()
        if key.startswith("reserved_bytes_by_private_pools.") and key.endswith(".all.current")
    ]
    return sum(pools) if pools else None


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
