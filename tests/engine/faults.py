"""Served models that go wrong on purpose."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from models.base import ModelError
from tests.fakes import Double


class _Of(Double):
    """Double's declaration around another module."""

    module: type[nn.Module]

    def load(self, device: str, dtype: str) -> nn.Module:
        return self.module().eval()


class GraphBreak(_Of):
    """Dynamo cannot take it whole: it prints in the middle."""

    class module(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = x * 2
            torch._dynamo.graph_break()
            return y


class OtherAnswers(_Of):
    """Compiled, it answers something else."""

    class module(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * (3 if torch.compiler.is_compiling() else 2)


class LeaksNeighbours(_Of):
    """A row's answer depends on the other rows of its batch."""

    class module(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + x.sum(0)


class NotANumber(_Of):
    """Answers NaN."""

    class module(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x / 0 * 0


class RaisesOn(_Of):
    """Raises for a batch in which any value is 13."""

    class module(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if bool((x == 13).any()):
                raise ValueError("13 in the batch")
            return x * 2


class ReturnsItsInput(_Of):
    """The output is the input tensor itself: the buffer that the next batch overwrites."""

    class module(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x


class NoWeights(Double):
    """Cannot be loaded."""

    def load(self, device: str, dtype: str) -> Any:
        raise ModelError("weights/double.safetensors: no such file; set weights = PATH")
