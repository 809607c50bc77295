"""What Dynamo makes of a model: how many graphs, and where and why it breaks them.

Traces only: nothing is generated, so no compiler is needed. Knows no buckets and no speed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from models.base import ServedModel
from server.config import Settings
from server.engine.devices import pick_device, pick_dtype
from server.engine.environment import configure_thread
from server.engine.loading import layout_of, load_module
from server.engine.tensors import Staging, rows_of
from server.types import Bucket


@dataclass(frozen=True, slots=True)
class Graphs:
    """`breaks` are texts: the reason, and the source line where it is."""

    count: int
    breaks: tuple[str, ...]


def inspect(model: ServedModel, settings: Settings) -> Graphs:
    """The graphs of one call with two samples of the shortest `seq`. Loads the model."""
    configure_thread(settings)
    device, dtype = pick_device(settings.device), pick_dtype(settings.dtype)
    with torch.inference_mode():
        module = load_module(model, device, dtype)
        if not model.compilable:
            return Graphs(0, ("Dynamo cannot take a model of this kind",))
        bucket = Bucket(2, 0 if model.max_seq is None else model.min_seq)
        samples = rows_of(model.example(bucket.batch, bucket.seq))
        inputs = Staging(model, bucket, device, dtype, layout_of(module)).fill(samples)
        try:
            explained = torch._dynamo.explain(module)(*inputs)
        except Exception as error:  # whatever Dynamo raises is what there is to say
            return Graphs(0, (f"{type(error).__name__}: {_first_line(str(error))}",))
    return Graphs(explained.graph_count, tuple(map(_where, explained.break_reasons)))


def _where(reason: Any) -> str:
    frames = reason.user_stack
    place = f"{frames[-1].filename}:{frames[-1].lineno}: " if frames else ""
    return place + _first_line(reason.reason)


def _first_line(text: str) -> str:
    return next(iter(text.strip().splitlines()), "no reason given")
