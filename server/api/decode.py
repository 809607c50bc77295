"""From one request body to checked samples: JSON, raw images and texts, multipart, tensors.

What a client can get wrong in a body ends here: InvalidInput, PayloadTooLarge, UnsupportedMedia.
Synchronous and in memory; knows nothing of connections, queues or workers.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any, TypeVar

import numpy as np
import orjson
from pydantic import ValidationError
from pydantic_core import ErrorDetails

from models.base import BadSample, ServedModel
from models.image import pixels
from server.api import tensors
from server.api.forms import FORM, read_parts
from server.api.tensors import TENSORS, checked
from server.config import ServerSection
from server.errors import InvalidInput, PayloadTooLarge, UnsupportedMedia
from server.types import Arrays

JSON = "application/json"
FILE_PARTS = ("file", "files")
MAX_SAMPLES = 1024
INLINE_BYTES = 16 * 1024

Payload = Mapping[str, Any]
Item = TypeVar("Item")

_EXPLAINABLE = 1000


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
        sent = tensors.read(body.data, body.headers, model, limits.max_body_bytes)
        inputs, is_list = tensors.split(sent, model, MAX_SAMPLES)
        return Decoded(_each(inputs, is_list, lambda arrays: checked(arrays, model)), is_list)
    payloads, is_list = _read_payloads(body, model)
    return Decoded(_each(payloads, is_list, lambda p: _preprocessed(p, model, limits)), is_list)


def is_cheap(body: Body, model: ServedModel) -> bool:
    """Whether decoding takes less than handing it to another thread would."""
    if len(body.data) > INLINE_BYTES or body.data.startswith(tensors.ZIP_MAGIC):
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


def _read_form(body: Body, model: ServedModel) -> tuple[list[Payload], bool]:
    parts = read_parts(body.content_type, body.data, MAX_SAMPLES)
    _check_count(len(parts))
    is_list = len(parts) > 1
    fields = part_names(model)
    payloads: list[Payload] = []
    for index, (name, data) in enumerate(parts):
        if name not in fields:
            raise InvalidInput(f"part {name!r:.80}: unknown name; known: {', '.join(fields)}")
        where = f"[{index}]" if is_list else ""
        payloads.append(_raw_payload(fields[name], data, model, where))
    return payloads, is_list


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
    # A number too large for its dtype becomes infinite, which `checked` refuses by name.
    with np.errstate(over="ignore"):
        arrays = model.preprocess(payload)
        if arrays.keys() != {spec.name for spec in model.inputs}:
            raise TypeError(f"preprocess of {model.name} gave {sorted(arrays)}, not its inputs")
        return checked(arrays, model)


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
