"""The model as a peer calls it: the project's own model code, eager, and a batch stacked by hand.

What a user writes who has no server for it. Every peer uses this, and the expected answers come
from it too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from loadtest.peers.workloads import Payload, Workload
from models import registry
from models.base import Arrays, TensorSpec


class Handler(Protocol):
    """Inputs one by one, answers by the batch."""

    def preprocess(self, payload: Payload) -> Any:
        """What `predict` takes, of one request."""

    def predict(self, inputs: Sequence[Any]) -> list[Any]:
        """The JSON-able answers, in order."""


class Echo:
    """A model that does nothing, in the shortest way."""

    def preprocess(self, payload: Payload) -> Any:
        return payload["x"]

    def predict(self, inputs: Sequence[Any]) -> list[Any]:
        return [{"y": x} for x in inputs]


class Eager:
    """A model of the project on one CPU thread, sequences padded to the longest of the batch."""

    def __init__(self, workload: Workload) -> None:
        import torch

        torch.set_num_threads(1)
        self._torch = torch
        self._model = registry.create(workload.model, name=workload.model, weights=workload.weights)
        self._module = self._model.load("cpu", "float32")
        self._model.configure(self._model.describe())

    def preprocess(self, payload: Payload) -> Arrays:
        return self._model.preprocess(payload)

    def predict(self, inputs: Sequence[Arrays]) -> list[Any]:
        batch = [_stack(spec, [one[spec.name] for one in inputs]) for spec in self._model.inputs]
        with self._torch.inference_mode():
            output = self._module(*map(self._torch.from_numpy, batch))
        name = self._model.outputs[0].name
        return [_plain(self._model.postprocess({name: row})) for row in output.numpy()]


def make_handler(workload: Workload) -> Handler:
    """What answers a workload."""
    return Echo() if workload.name == "nothing" else Eager(workload)


def _stack(spec: TensorSpec, arrays: Sequence[np.ndarray[Any, Any]]) -> np.ndarray[Any, Any]:
    longest = max(array.shape[0] for array in arrays)
    if spec.seq_axis is None:
        return np.stack(arrays)
    rows = np.full((len(arrays), longest), spec.pad_value, spec.dtype)
    for row, array in zip(rows, arrays, strict=True):
        row[: len(array)] = array
    return rows


def _plain(answer: dict[str, Any]) -> dict[str, Any]:
    """Arrays as lists: not every server's JSON takes numpy."""
    return {k: v.tolist() if isinstance(v, np.ndarray) else v for k, v in answer.items()}
