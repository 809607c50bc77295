"""Evidence: what compiled, what came from a cache, what was recorded and replayed, what was not.

Counts events of this process; knows no models and no buckets. Made once, on the executor thread.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import astuple, dataclass
from typing import Any

import torch
from torch._dynamo.callback import callback_handler
from torch._dynamo.utils import counters
from torch._inductor.output_code import CompiledFxGraph

from server.types import CacheUse

SKIP_LOGGER = "torch._inductor.cudagraph_utils.__cudagraphs"


@dataclass(frozen=True, slots=True)
class Counts:
    """Running counts of this process; the difference of two is what happened between them."""

    compiles: int
    replays: int
    graph_breaks: int
    cache_hits: int
    cache_misses: int
    cache_bypasses: int

    def __sub__(self, earlier: Counts) -> Counts:
        pairs = zip(astuple(self), astuple(earlier), strict=True)
        return Counts(*(now - then for now, then in pairs))

    @property
    def cache(self) -> CacheUse | None:
        """Where the code came from; None when nothing was compiled."""
        if self.cache_misses:
            return "miss"
        if self.cache_bypasses:
            return "bypass"
        return "hit" if self.cache_hits else None


class Evidence:
    """Counts of compile events, cache use and CUDA-graph replays; read before and after."""

    def __init__(self) -> None:
        self.compiles = 0
        self.replays = 0
        self.skip_reasons: list[str] = []
        callback_handler.register_start_callback(self._on_compile)
        logging.getLogger(SKIP_LOGGER).addHandler(_Collect(self.skip_reasons))
        self._count_replays()

    def counts(self) -> Counts:
        """All counts now."""
        inductor, autograd = counters["inductor"], counters["aot_autograd"]
        return Counts(
            compiles=self.compiles,
            replays=self.replays,
            graph_breaks=sum(counters["graph_break"].values()),
            cache_hits=inductor["fxgraph_cache_hit"] + autograd["autograd_cache_hit"],
            # What AOTAutograd's cache misses may still be found, compiled, in Inductor's.
            cache_misses=inductor["fxgraph_cache_miss"],
            cache_bypasses=inductor["fxgraph_cache_bypass"],
        )

    @contextmanager
    def graph_calls(self) -> Iterator[list[None]]:
        """Collects one entry for each compiled graph that runs inside: what Dynamo really took.

        Counted only here, so that serving pays nothing.
        """
        calls: list[None] = []
        original: Callable[..., Any] = CompiledFxGraph.__call__

        def call(graph: CompiledFxGraph, *args: Any) -> Any:
            calls.append(None)
            return original(graph, *args)

        setattr(CompiledFxGraph, "__call__", call)  # noqa: B010 - mypy refuses the assignment
        try:
            yield calls
        finally:
            setattr(CompiledFxGraph, "__call__", original)  # noqa: B010

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
