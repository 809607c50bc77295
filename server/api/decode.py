"""From one request body to checked samples: JSON, raw images and texts, multipart, tensors.

What a client can get wrong in a body ends here: InvalidInput, PayloadTooLarge, UnsupportedMedia.
Synchronous and in memory; knows nothing of connections, queues or workers.
"""

from __future__ import annotations

import base64
import binascii
import io
import math
import re
import zipfile
import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any, TypeVar

import numpy as np
import orjson
from pydantic import ValidationError
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from models.base import BadSample, ServedModel, TensorSpec
from models.image import pixels
from server.config import ServerSection
from server.errors import InvalidInput, PayloadTooLarge, UnsupportedMedia
from server.types import Arrays

JSON = "application/json"
FORM = "multipart/form-data"
TENSOR, NPY, NPZ = "application/octet-stream", "application/x-npy", "application/x-npz"
NAME_HEADER, DTYPE_HEADER, SHAPE_HEADER = "X-Tensor-Name", "X-Tensor-Dtype", "X-Tensor-Shape"
FILE_PARTS = ("file", "files")
MAX_SAMPLES = 1024
INLINE_BYTES = 16 * 1024

Array = np.ndarray[Any, Any]
Payload = Mapping[str, Any]
Item = TypeVar("Item")

_NPY_MAGIC, _ZIP_MAGIC = b"\x93NUMPY", b"PK\x03\x04"
_NPY_HEADERS = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}
_SHAPE = re.compile(r"([0-9]{1,9}( *, *[0-9]{1,9})*)?")
_ERRORS_SHOWN = 3


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
    if body.media_type in (TENSOR, NPY, NPZ) and _raw_field(body.media_type, model) is None:
        tensors, is_list = _split(_read_tensors(body, model, limits), model)
        return Decoded(_each(tensors, is_list, lambda arrays: _checked(arrays, model)), is_list)
    payloads, is_list = _read_payloads(body, model)
    return Decoded(_each(payloads, is_list, lambda p: _preprocessed(p, model, limits)), is_list)


def is_cheap(body: Body, model: ServedModel) -> bool:
    """Whether decoding takes less than handing it to another thread would."""
    if len(body.data) > INLINE_BYTES or body.data.startswith(_ZIP_MAGIC):
        return False
    return model.preprocess_inline or body.media_type in (TENSOR, NPY)


def media_types(model: ServedModel) -> list[str]:
    """What a body for this model may be, media ranges included."""
    forms = [*model.raw_bodies, FORM] if model.raw_bodies else []
    return list(dict.fromkeys([JSON, *forms, TENSOR, NPY, NPZ]))


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


# Payloads: the fields of `model.sample`, which the model preprocesses.


def _read_payloads(body: Body, model: ServedModel) -> tuple[list[Payload], bool]:
    media_type = body.media_type
    if (name := _raw_field(media_type, model)) is not None:
        return [_raw_payload(name, body.data, model)], False
    if media_type == JSON:
        return _read_json(body.data, model)
    if media_type == FORM and model.raw_bodies:
        return _read_form(body, model)
    if media_type in ("", "application/x-www-form-urlencoded") and body.data[:1] in (b"{", b"["):
        raise UnsupportedMedia(f"the body looks like JSON; say so: -H 'Content-Type: {JSON}'")
    taken = ", ".join(media_types(model))
    raise UnsupportedMedia(f"Content-Type {media_type or 'missing'}; {model.name} takes {taken}")


def _raw_field(media_type: str, model: ServedModel) -> str | None:
    ranges = model.raw_bodies.items()
    return next((name for media, name in ranges if fnmatchcase(media_type, media)), None)


def _raw_payload(name: str, data: bytes, model: ServedModel, where: str = "") -> Payload:
    if (name not in _fields(model, "text/")):
        return dict(model.sample.model_construct(**{name: data}))
    try:
        return _validated({name: data.decode()}, model, where)
    except UnicodeDecodeError as error:
        raise InvalidInput(f"{where}{name}: not UTF-8 at byte {error.start}") from None


def _fields(model: ServedModel, kind: str) -> list[str]:
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
        return dict(model.sample.model_validate(value))
    except ValidationError as error:
        shown = [_explain(problem, model, where) for problem in error.errors()[:_ERRORS_SHOWN]]
        raise InvalidInput("; ".join(shown)) from None
