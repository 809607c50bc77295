"""Samples to batch tensors and back: stacking, padding, copying out, cutting off.

A batch is padded along `seq` with each input's pad value; rows that only fill up the bucket
repeat the first row, so that they hold valid tokens and a right mask. Knows nothing of compiling.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from models.base import ServedModel, TensorSpec
from server.types import Arrays, Bucket

NdArray = np.ndarray[Any, Any]


def seq_length(model: ServedModel, inputs: Arrays) -> int:
    """Length of one sample along `seq`; 0 for a model without that dimension."""
    for spec in model.inputs:
        if spec.seq_axis is not None:
            return int(inputs[spec.name].shape[spec.seq_axis])
    return 0


class Staging:
    """The input tensors of one shape, allocated once: same buffers and strides at every call.

    On a CPU the host buffers are the input tensors (or are cast into them); on CUDA they are
    pinned and copied. `fill` may be called again once the outputs of the last call are copied out.
    """

    def __init__(
        self,
        model: ServedModel,
        bucket: Bucket,
        device: torch.device,
        dtype: torch.dtype,
        layout: torch.memory_format,
    ) -> None:
        self._specs = model.inputs
        self._host: dict[str, torch.Tensor] = {}
        self.tensors: list[torch.Tensor] = []
        for spec in model.inputs:
            shape = _shape(spec, bucket)
            host = torch.empty(
                shape,
                dtype=getattr(torch, spec.dtype),
                pin_memory=device.type == "cuda",
                memory_format=layout if len(shape) == 4 else torch.contiguous_format,
            )
            wanted = dtype if host.is_floating_point() else host.dtype
            in_place = device.type == "cpu" and wanted == host.dtype
            self._host[spec.name] = host
            self.tensors.append(host if in_place else host.to(device, wanted))

    def fill(self, samples: Sequence[Arrays]) -> list[torch.Tensor]:
        """The input tensors in declared order, holding `samples`."""
        for spec, tensor in zip(self._specs, self.tensors, strict=True):
            host = self._host[spec.name]
            _write_rows(host.numpy(), spec, samples)
            if tensor is not host:
                tensor.copy_(host, non_blocking=True)
        return self.tensors


def _shape(spec: TensorSpec, bucket: Bucket) -> tuple[int, ...]:
    sizes = {"batch": bucket.batch, "seq": bucket.seq}
    return tuple(dim if isinstance(dim, int) else sizes[dim] for dim in spec.shape)


def _write_rows(rows: NdArray, spec: TensorSpec, samples: Sequence[Arrays]) -> None:
    axis = spec.seq_axis
    for row, sample in enumerate(samples):
        array = sample[spec.name]
        if axis is None:
            rows[row] = array
            continue
        length = array.shape[axis]
        before = (slice(None),) * axis
        rows[row][(*before, slice(length))] = array
        rows[row][(*before, slice(length, None))] = spec.pad_value
    rows[len(samples) :] = rows[0]


def named_outputs(
    model: ServedModel, outputs: torch.Tensor | Sequence[torch.Tensor] | Mapping[str, torch.Tensor]
) -> Arrays:
    """What the module returned, by declared name, copied to host memory; halves as float32.

    On CUDA the copy waits for the device, so the module's own output buffers are free after it.
    """
    if isinstance(outputs, torch.Tensor):
        outputs = (outputs,)
    names = [spec.name for spec in model.outputs]
    values = [outputs[name] for name in names] if isinstance(outputs, Mapping) else list(outputs)
    return {name: _to_host(value) for name, value in zip(names, values, strict=True)}


def _to_host(tensor: torch.Tensor) -> NdArray:
    if tensor.dtype in (torch.bfloat16, torch.float16):
        tensor = tensor.float()
    return tensor.detach().cpu().numpy()


def split(model: ServedModel, outputs: Arrays, lengths: Sequence[int]) -> list[Arrays]:
    """One dict per real sample, padding cut off; copies, as `outputs` may alias a buffer."""
    return [
        {spec.name: _cut(outputs[spec.name][row], spec.seq_axis, length) for spec in model.outputs}
        for row, length in enumerate(lengths)
    ]


def _cut(row: NdArray, axis: int | None, length: int) -> NdArray:
    if axis is None:
        return row.copy()
    return row[(*(slice(None),) * axis, slice(length))].copy()


def rows_of(batch: Arrays) -> list[Arrays]:
    """The samples of a batch that has its batch dimension in front."""
    size = len(next(iter(batch.values())))
    return [{name: array[row] for name, array in batch.items()} for row in range(size)]
