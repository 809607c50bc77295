"""Calls torch.compile: how strictly, with which dimensions free to vary.

Strict first, so that what is not compiled or not in a CUDA graph is a reason and not silence.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch._inductor.config
from torch import nn

from models.base import ServedModel
from server.config import CompileSection
from server.engine.contract import Loaded
from server.engine.warmup import GraphBroken, NoReplay, NotProven

Compiled = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Strictness:
    """What torch.compile may leave out: graph breaks, parts outside CUDA graphs."""

    fullgraph: bool = True
    graph_partition: bool = False

    def looser(self, failure: NotProven | None) -> Strictness | None:
        """What to try after `failure`; None when nothing looser would help."""
        if isinstance(failure, GraphBroken) and self.fullgraph:
            return replace(self, fullgraph=False)
        if isinstance(failure, NoReplay) and not self.graph_partition:
            return replace(self, graph_partition=True)
        return None


def compile_module(module: nn.Module, torch_mode: str, strictness: Strictness) -> Compiled:
    """`module`, compiled at its first call of each shape."""
    return torch.compile(
        module,
        # torch takes no `mode` beside `options`, so the mode's own options are spelt out.
        options={**_options(torch_mode), "graph_partition": strictness.graph_partition},
        fullgraph=strictness.fullgraph,
        dynamic=False,
    )


def set_freezing(section: CompileSection, loaded: Loaded) -> None:
    """Whether this thread's next compiles make the weights constants.

    On a CPU that lays them out as oneDNN wants them, and batch norm goes into convolutions. On CUDA
    the eager fallback would need a second copy of them.
    """
    torch._inductor.config.freezing = section.freezing and loaded.device.type == "cpu"


def wants_cuda_graphs(torch_mode: str, device: torch.device) -> bool:
    """Whether a torch mode is there for its CUDA graphs."""
    return device.type == "cuda" and bool(_options(torch_mode).get("triton.cudagraphs"))


def _options(torch_mode: str) -> dict[str, Any]:
    return {} if torch_mode == "default" else torch._inductor.list_mode_options(torch_mode)


def mark_dynamic(model: ServedModel, tensors: Sequence[torch.Tensor], free: frozenset[str]) -> None:
    """Tell Dynamo which dimensions of the inputs vary between buckets: one compile for them all.

    A model that fixes such a dimension all the same is compiled once for each of its sizes.
    """
    for spec, tensor in zip(model.inputs, tensors, strict=True):
        for axis, dim in enumerate(spec.shape):
            # torch specialises sizes 0 and 1 in any case.
            if isinstance(dim, str) and dim in free and tensor.shape[axis] > 1:
                torch._dynamo.maybe_mark_dynamic(tensor, axis)
