"""Models with known faults: `Planted` is slower than `Double`, stalls again and again, and is wrong
of 13; `Fickle` never answers the same twice."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from tests.fakes import Double, ready

if TYPE_CHECKING:
    from torch import nn

SLOWER_S = 0.005
STALL_S = 0.6
STALLS_EVERY_S = 1.5


class Planted(Double):
    """y = 2 x, but."""

    def load(self, device: str, dtype: str) -> nn.Module:
        import torch

        class Faulty(torch.nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.next_stall = 0.0

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                stalls = time.monotonic() >= self.next_stall
                time.sleep(STALL_S if stalls else SLOWER_S)
                if stalls:
                    self.next_stall = time.monotonic() + STALLS_EVERY_S - STALL_S
                return torch.where(x == 13, 0, 2 * x)

        return ready(Faulty(), device, dtype)


class Fickle(Double):
    """y = 2 x at first, and then more with every call."""

    def load(self, device: str, dtype: str) -> nn.Module:
        import torch

        class Growing(torch.nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.calls = 0

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                self.calls += 1
                return self.calls * x

        return ready(Growing(), device, dtype)
