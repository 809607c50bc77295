"""Served models that go wrong on purpose."""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import nn

from models.base import ModelError, TensorSpec
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
            return y + 1


class OtherAnswers(_Of):
    """Compiled, it answers something else."""

    class module(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * (3 if torch.compiler.is_compiling() else 2)


class NeverCompiled(_Of):
    """Dynamo takes no part of it."""

    class module(nn.Module):
        @torch.compiler.disable
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * 2


class Branches(_Of):
    """Which way it goes depends on the data."""

    class module(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * 2 if x.sum() > 0 else x * 3


class LeavesState(_Of):
    """Changes what torch's compiler guards on, when loaded and at every call."""

    def load(self, device: str, dtype: str) -> nn.Module:
        _change_state()
        return super().load(device, dtype)

    class module(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = x * 2
            _change_state()
            return y


def _change_state() -> None:
    torch.set_grad_enabled(True)
    torch.set_default_dtype(torch.float64)
    torch.set_num_threads(2)


class LeftInTraining(_Of):
    """Comes in train mode, its parameters wanting gradients."""

    def load(self, device: str, dtype: str) -> nn.Module:
        return nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5)).train()


class Classes(_Of):
    """Scores and the index of the best, as an integer output."""

    outputs = (
        TensorSpec("y", "float32", ("batch", 4)),
        TensorSpec("best", "int64", ("batch",)),
    )

    class module(nn.Module):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            y = x.softmax(-1)
            return y, y.argmax(-1)


class PinnedDtype(_Of):
    """Computes in float32 whatever it is given."""

    class module(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.float() * 2


class HangsWhenCompiled(_Of):
    """Two samples together are compiled for ever; one alone is quick."""

    class module(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * _two(x.shape[0])


@torch.compiler.assume_constant_result
def _two(batch: int) -> float:
    if batch == 2 and torch.compiler.is_compiling():
        time.sleep(3600)
    return 2.0


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
