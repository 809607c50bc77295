"""What NVIDIA's driver says of this process, which is more than torch allocated: the CUDA context,
libraries and fragments too. Imported by everybody, loads the driver's library only where CUDA is.
"""

from __future__ import annotations

import logging
import os

import torch

log = logging.getLogger(__name__)


class Driver:
    """The driver's view of one CUDA device."""

    def __init__(self, device: torch.device) -> None:
        import pynvml  # heavy and of no use without a driver

        self._nvml = pynvml
        uuid = torch.cuda.get_device_properties(device).uuid
        try:
            pynvml.nvmlInit()
            self._handle = pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}")
        except pynvml.NVMLError as error:  # MIG, or a container without the library
            log.warning("the driver does not tell this process's share of the memory: %s", error)
            self._handle = None

    def process_bytes(self) -> int | None:
        """Device memory of this process; None where the driver does not tell: in a container it
        knows processes by the host's ids."""
        if self._handle is None:
            return None
        for process in self._nvml.nvmlDeviceGetComputeRunningProcesses(self._handle):
            if process.pid == os.getpid():
                used: int | None = process.usedGpuMemory
                return used
        return None
