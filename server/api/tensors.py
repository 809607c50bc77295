"""Tensor bytes, `.npy` and `.npz` to a model's inputs, and every input against its declaration.

Nothing is unpickled, and no size is believed before it is checked.
"""

from __future__ import annotations

import io
import math
import re
import zipfile
import zlib
from collections.abc import Mapping
from typing import Any, Literal

import numpy as np

from models.base import BadSample, ServedModel, TensorSpec
from server.errors import InvalidInput, PayloadTooLarge
from server.types import Arrays

TENSORS = ("application/octet-stream", "application/x-npy", "application/x-npz")
ZIP_MAGIC = b"PK\x03\x04"
Array = np.ndarray[Any, Any]

_NPY_MAGIC = b"\x93NUMPY"
# numpy's own reader evaluates this header as Python, raises half a dozen kinds of error over it,
# and may warn. One plain array is all that can be served, so one plain header is all that is read.
_NPY_HEADER = re.compile(
    rb"\{'descr': *'([<>|]?(?:b1|[iu][1248]|f[248]))', *'fortran_order': *(True|False), *"
    rb"'shape': *\(([0-9, ]*)\),? *\}\s*"
)
_SHAPE = re.compile(r"([1-9][0-9]{0,8}( *, *[1-9][0-9]{0,8}){0,7})? *,? *")
_ZIP_ENCRYPTED = 0x1
_DAMAGED_ZIP = (
    zipfile.BadZipFile,
    zlib.error,
    EOFError,
    ValueError,
    OverflowError,
    NotImplementedError,
)


def read(data: bytes, headers: Mapping[str, str], model: ServedModel, max_bytes: int) -> Arrays:
    """The inputs by name as they were sent: of one sample, or of a list with one dimension more."""
    is_raw = "x-tensor-shape" in headers
    if data.startswith(ZIP_MAGIC) and not is_raw:
        return _read_npz(data, model, max_bytes)
    if len(model.inputs) > 1:
        raise InvalidInput(f"{model.name} has {len(model.inputs)} inputs: send them in one .npz")
    name = headers.get("x-tensor-name", model.inputs[0].name)
    return {name: _read_raw(data, headers, model.inputs[0]) if is_raw else _read_npy(data)}


def _read_raw(data: bytes, headers: Mapping[str, str], spec: TensorSpec) -> Array:
    dtype = headers.get("x-tensor-dtype", "missing")
    if dtype != spec.dtype:
        raise InvalidInput(f"X-Tensor-Dtype: {dtype}, expected {spec.dtype}")
    shape = _shape(headers["x-tensor-shape"])
    return _array(memoryview(data), np.dtype(dtype).newbyteorder("<"), shape, "C")


def _read_npy(data: bytes) -> Array:
    start = 10 if data[6:7] == b"\x01" else 12
    end = start + int.from_bytes(data[8:start], "little")
    header = _NPY_HEADER.fullmatch(data, start, end)
    if not data.startswith(_NPY_MAGIC) or header is None:
        raise InvalidInput(
            "not a .npy or .npz file of plain numbers; raw tensor bytes need the headers "
            "X-Tensor-Shape and X-Tensor-Dtype"
        )
    dtype, fortran, shape = (group.decode() for group in header.groups())
    order: Literal["F", "C"] = "F" if fortran == "True" else "C"
    return _array(memoryview(data)[end:], np.dtype(dtype), _shape(shape), order)


def _read_npz(data: bytes, model: ServedModel, max_bytes: int) -> Arrays:
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            members = archive.infolist()
            _check_members(members, model, max_bytes)
            return {_input_name(member): _read_npy(archive.read(member)) for member in members}
    except _DAMAGED_ZIP as error:
        raise InvalidInput(f"not a .npz file: {error}") from None


def _input_name(member: zipfile.ZipInfo) -> str:
    return member.filename.removesuffix(".npy")


def _check_members(members: list[zipfile.ZipInfo], model: ServedModel, max_bytes: int) -> None:
    _check_names([_input_name(member) for member in members], model)
    for member in members:
        # Only what numpy writes: the other methods decompress without a limit.
        plain = member.compress_type in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
        if not plain or member.flag_bits & _ZIP_ENCRYPTED:
            raise InvalidInput(f"{member.filename}: stored or deflated, not encrypted, expected")
    if (size := sum(member.file_size for member in members)) > max_bytes:
        raise PayloadTooLarge(f"{size} bytes decompressed; at most {max_bytes}")


def _shape(text: str) -> list[int]:
    if not _SHAPE.fullmatch(text):
        raise InvalidInput(f"shape {text:.80}: expected up to 8 sizes above 0, like 3,224,224")
    return [int(size) for size in text.split(",") if size.strip()]


def _array(
    data: memoryview, dtype: np.dtype[Any], shape: list[int], order: Literal["F", "C"]
) -> Array:
    if len(data) != (expected := math.prod(shape) * dtype.itemsize):
        raise InvalidInput(f"{len(data)} bytes, expected {expected} for {dtype.name} {shape}")
    return np.frombuffer(data, dtype).reshape(shape, order=order)


def _check_names(names: list[str], model: ServedModel) -> None:
    known = [spec.name for spec in model.inputs]
    for name in names:
        if name not in known:
            raise InvalidInput(f"{name:.80}: unknown input; known: {', '.join(known)}")
    for name in known:
        if names.count(name) != 1:
            raise InvalidInput(f"{name}: expected once, got {names.count(name)}")


def split(arrays: Arrays, model: ServedModel, max_samples: int) -> tuple[list[Arrays], bool]:
    """One sample, or a list of them where every array has a leading dimension more."""
    _check_names(list(arrays), model)
    for spec in model.inputs:
        if (got := arrays[spec.name].dtype.name) != spec.dtype:
            raise InvalidInput(f"{spec.name}: dtype {got}, expected {spec.dtype}")
    if any(arrays[spec.name].ndim != len(spec.shape) for spec in model.inputs):
        return [arrays], False
    counts = {len(array) for array in arrays.values()}
    if len(counts) > 1:
        raise InvalidInput(f"{', '.join(arrays)}: different numbers of samples: {sorted(counts)}")
    if (count := counts.pop()) > max_samples:
        raise PayloadTooLarge(f"{count} samples; at most {max_samples} in one request")
    return [{name: array[i, ...] for name, array in arrays.items()} for i in range(count)], True


def checked(arrays: Arrays, model: ServedModel) -> Arrays:
    """The inputs of one sample, native and contiguous; raises BadSample for what does not fit."""
    lengths: dict[str, int] = {}
    checked: Arrays = {}
    for spec in model.inputs:
        array = arrays[spec.name].astype(spec.dtype, order="C", casting="same_kind", copy=False)
        if not _fits(array.shape, spec, model):
            expected = _describe(spec, model)
            raise BadSample(f"{spec.name}: shape {list(array.shape)}, expected {expected}")
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            raise BadSample(f"{spec.name}: NaN, or infinite as {spec.dtype}; expected finite")
        if spec.limits is not None:
            _check_limits(array, spec.name, *spec.limits)
        if spec.seq_axis is not None:
            lengths[spec.name] = array.shape[spec.seq_axis]
        checked[spec.name] = array
    if len(set(lengths.values())) > 1:
        raise BadSample(f"inputs of different seq: {lengths}; expected one seq")
    return checked


def _check_limits(array: np.ndarray[Any, Any], name: str, low: int, high: int) -> None:
    lowest, highest = array.min(initial=high), array.max(initial=low)
    if lowest < low or highest > high:
        raise BadSample(f"{name}: values from {lowest} to {highest}; expected {low} to {high}")


def _fits(shape: tuple[int, ...], spec: TensorSpec, model: ServedModel) -> bool:
    wanted = spec.shape[1:]
    if shape == wanted:
        return True
    return len(shape) == len(wanted) and all(
        model.min_seq <= size <= (model.max_seq or size) if dim == "seq" else size == dim
        for size, dim in zip(shape, wanted, strict=True)
    )


def _describe(spec: TensorSpec, model: ServedModel) -> str:
    shape = f"[{', '.join(str(dim) for dim in spec.shape[1:])}]"
    return f"{shape} with seq {model.min_seq} to {model.max_seq}" if "seq" in shape else shape
