"""Evidence: what compiled, what was recorded, what was replayed, and why CUDA graphs were skipped.

Counts events of this process; knows no models and no buckets. Made once, on the executor thread.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import torch
from torch._dynamo.callback import callback_handler
from torch._dynamo.utils import counters

SKIP_LOGGER = "torch._inductor.cudagraph_utils.__cudagraphs"


class Evidence:
    """Running counts of compile events, graphs and CUDA-graph replays; read before and after."""

    def __init__(self) -> None:
        self.compiles = 0
        self.replays = 0
        self.skip_reasons: list[str] = []
        callback_handler.register_start_callback(self._on_compile)
        logging.getLogger(SKIP_LOGGER).addHandler(_Collect(self.skip_reasons))
        self._count_replays()

    @property
    def graphs(self) -> int:
        """Graphs that Dynamo has handed to the compiler so far."""
        return int(counters["stats"]["unique_graphs"])

    def _on_compile(self, *_: Any) -> None:
        # Dynamo compiles and CUDA-graph recordings both come here (callback_trigger tells which).
        self.compiles += 1

    def _count_replays(self) -> None:
        # NOTE: the public replay hook is only in torch 2.14; CUDAGraph.replay is a Python method
        # in every version we support, and CUDA-graph trees call it.
        original: Callable[[torch.cuda.CUDAGraph], None] = torch.cuda.CUDAGraph.replay

        def replay(graph: torch.cuda.CUDAGraph) -> None:
            self.replays += 1
            original(graph)

        setattr(torch.cuda.CUDAGraph, "replay", replay)  # noqa: B010 - mypy refuses the assignment


class _Collect(logging.Handler):
    """Keeps the text of each warning: torch logs there why a graph was not captured."""

    def __init__(self, into: list[str]) -> None:
        super().__init__(logging.WARNING)
        self._into = into

    def emit(self, record: logging.LogRecord) -> None:
        self._into.append(record.getMessage().splitlines()[0])
