"""The contract of the device side: what a loaded model, a batch's result and a runner are.

Types only; the behaviour is in `runner`, `warmup` and `engine`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import nn

from models.base import ServedModel
from server.engine.buckets import Grid
from server.types import Arrays, Bucket, BucketStatus, Fallback, Mode

Report = Callable[[BucketStatus], None]


@dataclass(frozen=True, slots=True)
class Loaded:
    """A model on its device: what a runner is made from. `layout` is that of 4-d inputs."""

    model: ServedModel
    module: nn.Module
    device: torch.device
    dtype: torch.dtype
    layout: torch.memory_format
    grid: Grid


@dataclass(frozen=True, slots=True)
class BatchResult:
    """The outputs of each sample, and how they were made.

    `bucket` is the one the batch belongs to in either mode, so that modes compare like with like;
    `padded_size` and `padded_seq` are the sizes that ran. `fallback` says why a compiled runner
    ran it eager.
    """

    outputs: list[Arrays]
    mode: Mode
    bucket: Bucket
    padded_size: int
    padded_seq: int
    inference_s: float
    fallback: Fallback | None = None


class Runner(Protocol):
    """Runs batches of one model. Lives on the executor thread alone: torch's compiler, CUDA
    graphs and grad mode are per thread."""

    mode: Mode
    buckets: Sequence[Bucket]
    """Those that `warm_up` will report, in its order."""

    def warm_up(self, report: Report) -> None:
        """Make ready to run, reporting each bucket. Raises when the model cannot be served."""

    def parts(self, size: int, seq: int) -> Sequence[int]:
        """The batches that `size` samples of padded length `seq` are best run in, by size."""

    def run(self, samples: Sequence[Arrays]) -> BatchResult:
        """The outputs of `samples`, in order. Raises what the model raises."""

    def run_eager(self, samples: Sequence[Arrays], reason: Fallback) -> BatchResult:
        """The same without the compiler, `reason` being its `fallback`."""
