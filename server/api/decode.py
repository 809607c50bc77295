"""From one request body to checked samples: JSON, raw images and texts, multipart, tensors.

What a client can get wrong in a body ends here: InvalidInput, PayloadTooLarge, UnsupportedMedia.
Synchronous and in memory; knows nothing of connections, queues or workers.
"""

from __future__ import annotations

import base64
import io
import math
import re
import zipfile
import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any, Literal, TypeVar

import numpy as np
import orjson
from pydantic import ValidationError
from pydantic_core import ErrorDetails
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from models.base import BadSample, ServedModel, TensorSpec
from models.image import pixels
from server.config import ServerSection
from server.errors import InvalidInput, PayloadTooLarge, UnsupportedMedia
from server.types import Arrays

JSON = "application/json"
FORM = "multipart/form-data"
TENSORS = ("application/octet-stream", "application/x-npy", "application/x-npz")
FILE_PARTS = ("file", "files")
MAX_SAMPLES = 1024
INLINE_BYTES = 16 * 1024

Array = np.ndarray[Any, Any]
Payload = Mapping[str, Any]
Item = TypeVar("Item")

_NPY_MAGIC, _ZIP_MAGIC = b"\x93NUMPY", b"PK\x03\x04"
# numpy's own reader evaluates this header as Python, raises half a dozen kinds of error over it,
# and may warn. One plain array is all that can be served, so one plain header is all that is read.
_NPY_HEADER = re.compile(
    rb"\{'descr': *'([<>|]?(?:b1|[iu][1248]|f[248]))', *'fortran_order': *(True|False), *"
    rb"'shape': *\(([0-9, ]*)\),? *\}\s*"
)
_SHAPE = re.compile(r"([1-9][0-9]{0,8}( *, *[1-9][0-9]{0,8}){0,7})? *,? *")
_EXPLAINABLE = 1000
_ZIP_ENCRYPTED = 0x1
_DAMAGED_ZIP = (
    zipfile.BadZipFile,
    zlib.error,
    EOFError,
    ValueError,
    OverflowError,
    NotImplementedError,
)


@dataclass(frozen=True, slots=True)
class Body:
    """One request body. `headers` has its names in lower case, or does not mind the case."""

    content_type: str
    data: bytes
    headers: Mapping[str, str] = field(default_factory=dict)

    @property
    def media_type(self) -> str:
        return self.content_type.partition(";")[0].strip().lower()


@dataclass(frozen=True, slots=True)
class Decoded:
    """The samples of one request, and whether it was a list: then its answer is one too."""

    samples: list[Arrays]
    is_list: bool


def decode(body: Body, model: ServedModel, limits: ServerSection) -> Decoded:
    """Every sample of the body, preprocessed and checked against what the model declares.

    What the model's own `preprocess` raises, BadSample apart, goes through as it is.
    """
    if (encoding := body.headers.get("content-encoding", "identity")) != "identity":
        raise UnsupportedMedia(f"Content-Encoding {encoding}: send the body uncompressed")
    if body.media_type in TENSORS and _raw_field(body.media_type, model) is None:
        tensors, is_list = _split(_read_tensors(body, model, limits), model)
        return Decoded(_each(tensors, is_list, lambda arrays: _checked(arrays, model)), is_list)
    payloads, is_list = _read_payloads(body, model)
    return Decoded(_each(payloads, is_list, lambda p: _preprocessed(p, model, limits)), is_list)


def is_cheap(body: Body, model: ServedModel) -> bool:
    """Whether decoding takes less than handing it to another thread would."""
    if len(body.data) > INLINE_BYTES or body.data.startswith(_ZIP_MAGIC):
        return False
    return model.preprocess_inline or body.media_type in TENSORS


def media_types(model: ServedModel) -> list[str]:
    """What a body for this model may be; media ranges among them."""
    forms = [*model.raw_bodies, FORM] if model.raw_bodies else []
    return [JSON, *forms, *(media for media in TENSORS if media not in forms)]


def part_names(model: ServedModel) -> dict[str, str]:
    """The names a multipart part may have, and the sample field it becomes."""
    fields = list(model.raw_bodies.values())
    return {name: name for name in fields} | {name: fields[0] for name in FILE_PARTS if fields}


def _each(items: Iterable[Item], is_list: bool, step: Callable[[Item], Arrays]) -> list[Arrays]:
    done: list[Arrays] = []
    for item in items:
        try:
            done.append(step(item))
        except BadSample as error:
            where = f"[{len(done)}]: " if is_list else ""
            raise InvalidInput(f"{where}{error}") from error
    return done


def _check_count(count: int) -> None:
    if count == 0:
        raise InvalidInput("an empty list; expected at least one sample")
    if count > MAX_SAMPLES:
        raise PayloadTooLarge(f"{count} samples; at most {MAX_SAMPLES} in one request")


# Payloads: fields of `model.sample`, which the model preprocesses.


def _read_payloads(body: Body, model: ServedModel) -> tuple[list[Payload], bool]:
    media_type = body.media_type
    if (name := _raw_field(media_type, model)) is not None:
        return [_raw_payload(name, body.data, model)], False
    if media_type == JSON:
        return _read_json(body.data, model)
    if media_type == FORM and model.raw_bodies:
        return _read_form(body, model)
    taken = ", ".join(media_types(model))
    hint = ""
    if body.data[:1] in (b"{", b"[") and media_type in ("", "application/x-www-form-urlencoded"):
        hint = f". The body looks like JSON: say so with -H 'Content-Type: {JSON}'"
    got = media_type or "missing"
    raise UnsupportedMedia(f"Content-Type {got}; {model.name} takes {taken}{hint}")


def _raw_field(media_type: str, model: ServedModel) -> str | None:
    ranges = model.raw_bodies.items()
    return next((name for media, name in ranges if fnmatchcase(media_type, media)), None)


def _raw_payload(name: str, data: bytes, model: ServedModel, where: str = "") -> Payload:
    if name not in _raw_fields(model, "text/"):
        fields: dict[str, Any] = {name: data}
        return vars(model.sample.model_construct(**fields))
    try:
        return _validated({name: data.decode()}, model, where)
    except UnicodeDecodeError as error:
        raise InvalidInput(f"{_path(where, name)}: not UTF-8, at byte {error.start}") from None


def _raw_fields(model: ServedModel, kind: str) -> list[str]:
    return [name for media, name in model.raw_bodies.items() if media.startswith(kind)]


def _read_json(data: bytes, model: ServedModel) -> tuple[list[Payload], bool]:
    try:
        value = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise InvalidInput(f"not JSON: {error}") from None
    if not isinstance(value, list):
        return [_validated(value, model)], False
    _check_count(len(value))
    return [_validated(item, model, f"[{index}]") for index, item in enumerate(value)], True


def _validated(value: Any, model: ServedModel, where: str = "") -> Payload:
    if not isinstance(value, dict):
        known = ", ".join(model.sample.model_fields)
        raise InvalidInput(f"{where or 'body'}: expected an object with the fields: {known}")
    try:
        return vars(model.sample.model_validate(value))
    except ValidationError as error:
        raise InvalidInput(_explain(error, model, where)) from None


def _explain(error: ValidationError, model: ServedModel, where: str) -> str:
    # pydantic can only make all of its texts: for a long list of wrong values that is gigabytes.
    if (count := error.error_count()) > _EXPLAINABLE:
        return f"{where or 'body'}: {count} values of the wrong type or range"
    problems = error.errors(include_url=False, include_context=False, include_input=False)
    return "; ".join(_explain_one(problem, model, where) for problem in problems[:3])


def _explain_one(problem: ErrorDetails, model: ServedModel, where: str) -> str:
    message = problem["msg"].removeprefix("Value error, ")
    if problem["type"] == "extra_forbidden":
        message = f"unknown field; known: {', '.join(model.sample.model_fields)}"
    return f"{_path(where, *problem['loc'])}: {message[0].lower()}{message[1:]}"


def _path(where: str, *loc: int | str) -> str:
    parts = (f"[{part}]" if isinstance(part, int) else f".{part:.80}" for part in loc)
    return (where + "".join(parts)).removeprefix(".")


def _preprocessed(payload: Payload, model: ServedModel, limits: ServerSection) -> Arrays:
    for name in _raw_fields(model, "image/"):
        payload = _checked_image(payload, name, limits)
    # A number too large for its dtype becomes infinite, which `_checked` refuses by name.
    with np.errstate(over="ignore"):
        arrays = model.preprocess(payload)
        if arrays.keys() != {spec.name for spec in model.inputs}:
            raise TypeError(f"preprocess of {model.name} gave {sorted(arrays)}, not its inputs")
        return _checked(arrays, model)


def _checked_image(payload: Payload, name: str, limits: ServerSection) -> Payload:
    """The payload with its image as bytes, known to be no decompression bomb."""
    image = payload.get(name)
    if isinstance(image, str):
        try:
            image = base64.b64decode(image)
        except ValueError as error:
            raise BadSample(f"{name}: not base64: {error}") from None
    if isinstance(image, bytes) and (count := pixels(image)) > limits.max_pixels:
        raise PayloadTooLarge(f"{name}: {count} pixels; at most {limits.max_pixels}")
    return {**payload, name: image}


# Multipart: each part is one sample.


class _Form:
    """What python-multipart calls while it reads; keeps the parts with their names, in order."""

    def __init__(self) -> None:
        self.parts: list[tuple[str, bytearray]] = []
        self.complete = False
        self._key = self._value = b""

    def on_part_begin(self) -> None:
        self.parts.append(("", bytearray()))
        _check_count(len(self.parts))

    def on_header_field(self, data: bytes, start: int, end: int) -> None:
        self._key += data[start:end]

    def on_header_value(self, data: bytes, start: int, end: int) -> None:
        self._value += data[start:end]

    def on_header_end(self) -> None:
        if self._key.lower() == b"content-disposition":
            _, options = parse_options_header(self._value)
            name = options.get(b"name", b"").decode(errors="replace")
            self.parts[-1] = (name, bytearray())
        self._key = self._value = b""

    def on_part_data(self, data: bytes, start: int, end: int) -> None:
        self.parts[-1][1].extend(data[start:end])

    def on_end(self) -> None:
        self.complete = True


def _read_form(body: Body, model: ServedModel) -> tuple[list[Payload], bool]:
    parts = _read_parts(body)
    _check_count(len(parts))
    is_list = len(parts) > 1
    fields = part_names(model)
    payloads: list[Payload] = []
    for index, (name, data) in enumerate(parts):
        if name not in fields:
            raise InvalidInput(f"part {name!r:.80}: unknown name; known: {', '.join(fields)}")
        where = f"[{index}]" if is_list else ""
        payloads.append(_raw_payload(fields[name], bytes(data), model, where))
    return payloads, is_list


def _read_parts(body: Body) -> list[tuple[str, bytearray]]:
    boundary = parse_options_header(body.content_type)[1].get(b"boundary")
    if not boundary:
        raise InvalidInput(f"{FORM}: no boundary in the content type")
    form = _Form()
    callbacks = {name: getattr(form, name) for name in vars(_Form) if name.startswith("on_")}
    try:
        MultipartParser(boundary, callbacks).write(body.data)  # type: ignore[arg-type]
    except FormParserError as error:
        raise InvalidInput(f"{FORM}: {error}") from None
    if not form.complete:
        raise InvalidInput(f"{FORM}: the body ends before its closing boundary")
    return form.parts


# Tensors: inputs of the model as they are; preprocess is skipped.


def _read_tensors(body: Body, model: ServedModel, limits: ServerSection) -> Arrays:
    is_raw = "x-tensor-shape" in body.headers
    if body.data.startswith(_ZIP_MAGIC) and not is_raw:
        return _read_npz(body.data, model, limits)
    if len(model.inputs) > 1:
        raise InvalidInput(f"{model.name} has {len(model.inputs)} inputs: send them in one .npz")
    name = body.headers.get("x-tensor-name", model.inputs[0].name)
    return {name: _read_raw(body, model.inputs[0]) if is_raw else _read_npy(body.data)}


def _read_raw(body: Body, spec: TensorSpec) -> Array:
    dtype = body.headers.get("x-tensor-dtype", "missing")
    if dtype != spec.dtype:
        raise InvalidInput(f"X-Tensor-Dtype: {dtype}, expected {spec.dtype}")
    shape = _shape(body.headers["x-tensor-shape"])
    return _array(memoryview(body.data), np.dtype(dtype).newbyteorder("<"), shape, "C")


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


def _read_npz(data: bytes, model: ServedModel, limits: ServerSection) -> Arrays:
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            members = archive.infolist()
            _check_members(members, model, limits)
            return {_input_name(member): _read_npy(archive.read(member)) for member in members}
    except _DAMAGED_ZIP as error:
        raise InvalidInput(f"not a .npz file: {error}") from None


def _input_name(member: zipfile.ZipInfo) -> str:
    return member.filename.removesuffix(".npy")


def _check_members(
    members: list[zipfile.ZipInfo], model: ServedModel, limits: ServerSection
) -> None:
    _check_names([_input_name(member) for member in members], model)
    for member in members:
        # Only what numpy writes: the other methods decompress without a limit.
        plain = member.compress_type in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
        if not plain or member.flag_bits & _ZIP_ENCRYPTED:
            raise InvalidInput(f"{member.filename}: stored or deflated, not encrypted, expected")
    if (size := sum(member.file_size for member in members)) > limits.max_body_bytes:
        raise PayloadTooLarge(f"{size} bytes decompressed; at most {limits.max_body_bytes}")


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


def _split(arrays: Arrays, model: ServedModel) -> tuple[list[Arrays], bool]:
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
    count = counts.pop()
    _check_count(count)
    return [{name: array[i, ...] for name, array in arrays.items()} for i in range(count)], True


def _checked(arrays: Arrays, model: ServedModel) -> Arrays:
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
        if spec.seq_axis is not None:
            lengths[spec.name] = array.shape[spec.seq_axis]
        checked[spec.name] = array
    if len(set(lengths.values())) > 1:
        raise BadSample(f"inputs of different seq: {lengths}; expected one seq")
    return checked


def _fits(shape: tuple[int, ...], spec: TensorSpec, model: ServedModel) -> bool:
    wanted = spec.shape[1:]
    return len(shape) == len(wanted) and all(
        model.min_seq <= size <= (model.max_seq or size) if dim == "seq" else size == dim
        for size, dim in zip(shape, wanted, strict=True)
    )


def _describe(spec: TensorSpec, model: ServedModel) -> str:
    shape = f"[{', '.join(str(dim) for dim in spec.shape[1:])}]"
    return f"{shape} with seq {model.min_seq} to {model.max_seq}" if "seq" in shape else shape
