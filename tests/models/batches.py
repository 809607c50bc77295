"""Runs samples through a loaded model as one padded batch, by what the model declares."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

from models.base import Arrays, ServedModel, TensorSpec

Served = tuple[ServedModel, nn.Module]


def answers(served: Served, payloads: Sequence[dict[str, Any]]) -> list[Any]:
    """What a client gets for each payload when all of them are in one batch."""
    model, module = served
    samples = [model.preprocess(payload) for payload in payloads]
    inputs = {spec.name: _stacked(spec, samples) for spec in model.inputs}
    outputs = run(model, module, inputs)
    lengths = [_length(model, sample) for sample in samples]
    return [
        model.postprocess(
            {spec.name: outputs[spec.name][row][_kept(spec, length)] for spec in model.outputs}
        )
        for row, length in enumerate(lengths)
    ]


def run(model: ServedModel, module: Any, inputs: Arrays) -> Arrays:
    """The named outputs of a batch of inputs, floats cast as the server casts them."""
    dtype = next(module.parameters()).dtype
    tensors = [torch.from_numpy(inputs[spec.name]) for spec in model.inputs]
    with torch.inference_mode():
        outputs = module(*(t.to(dtype) if t.is_floating_point() else t for t in tensors))
    values = outputs if isinstance(outputs, tuple) else (outputs,)
    return {s.name: _to_host(v) for s, v in zip(model.outputs, values, strict=True)}


def _to_host(tensor: torch.Tensor) -> np.ndarray[Any, Any]:
    return (tensor.float() if tensor.is_floating_point() else tensor).numpy()


def _stacked(spec: TensorSpec, samples: Sequence[Arrays]) -> np.ndarray[Any, Any]:
    arrays = [sample[spec.name] for sample in samples]
    if spec.seq_axis is None:
        return np.stack(arrays)
    longest = max(array.shape[spec.seq_axis] for array in arrays)
    return np.stack([_padded(spec, array, longest) for array in arrays])


def _padded(spec: TensorSpec, array: np.ndarray[Any, Any], length: int) -> np.ndarray[Any, Any]:
    widths = [(0, 0)] * array.ndim
    widths[spec.seq_axis or 0] = (0, length - array.shape[spec.seq_axis or 0])
    return np.pad(array, widths, constant_values=np.array(spec.pad_value, array.dtype))


def _length(model: ServedModel, sample: Arrays) -> int:
    lengths = (sample[s.name].shape[s.seq_axis] for s in model.inputs if s.seq_axis is not None)
    return next(lengths, 0)


def _kept(spec: TensorSpec, length: int) -> tuple[slice, ...]:
    if spec.seq_axis is None:
        return ()
    return (*(slice(None),) * spec.seq_axis, slice(length))
