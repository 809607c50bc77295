"""Answers: predictions and problems to bodies and headers, and the id each request is known by.

Returns plain values. Knows nothing of queues, metrics or the HTTP library that sends them.
"""

from __future__ import annotations

import math
import re
import secrets
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import orjson

from models.base import ServedModel
from server.errors import GearshiftError
from server.types import Reply

JSON = "application/json"
PROBLEM_JSON = "application/problem+json"
RANDOM_WEIGHTS = "random weights: this answer means nothing"

_SAFE_ID = re.compile(r"[A-Za-z0-9._:+/=@-]{1,128}")
_CAPITAL = re.compile(r"(?<=[a-z])(?=[A-Z])")


def request_id(incoming: str | None) -> str:
    """The client's own id where it is safe in headers and logs, else a new one."""
    if incoming is not None and _SAFE_ID.fullmatch(incoming):
        return incoming
    return secrets.token_hex(16)


def success(model: ServedModel, predictions: Sequence[Any], is_list: bool) -> bytes:
    """The JSON of what `model.postprocess` gave, in kind: a list for a list. NaN becomes null."""
    answer: dict[str, Any] = {"model": model.name}
    if is_list:
        answer["predictions"] = predictions
    else:
        answer["prediction"] = predictions[0]
    if model.random_weights:
        answer["warning"] = RANDOM_WEIGHTS
    return orjson.dumps(answer, default=_to_list, option=orjson.OPT_SERIALIZE_NUMPY)


def success_headers(
    request_id: str, replies: Sequence[Reply], preprocess_s: float
) -> dict[str, str]:
    """How the answer was made; the times are those of the slowest sample."""
    modes = {reply.mode for reply in replies}
    queue_s = max(reply.timings.queue_s for reply in replies)
    inference_s = max(reply.timings.inference_s for reply in replies)
    headers = {
        "Content-Type": JSON,
        "X-Request-Id": request_id,
        "X-Gearshift-Mode": "mixed" if len(modes) > 1 else replies[0].mode,
        "X-Gearshift-Bucket": _joined(reply.bucket for reply in replies),
        "Server-Timing": (
            f"queue;dur={queue_s * 1e3:.2f}, preprocess;dur={preprocess_s * 1e3:.2f}, "
            f"inference;dur={inference_s * 1e3:.2f}"
        ),
    }
    if reasons := _joined(reply.fallback for reply in replies if reply.fallback):
        headers["X-Gearshift-Fallback"] = reasons
    return headers


def problem(error: GearshiftError, request_id: str) -> tuple[int, dict[str, str], bytes]:
    """Status, headers and body (RFC 9457) of an error."""
    headers = {"Content-Type": PROBLEM_JSON, "X-Request-Id": request_id}
    if error.retry_after_s is not None:
        headers["Retry-After"] = str(max(1, math.ceil(error.retry_after_s)))
    body = {
        "type": problem_type(type(error)),
        "title": error.title,
        "status": error.status,
        "detail": error.detail,
        "request_id": request_id,
    }
    return error.status, headers, orjson.dumps(body)


def http_problem(status: int, title: str, request_id: str) -> tuple[int, dict[str, str], bytes]:
    """The same for what is refused before it is ours: no such path, no such method."""
    headers = {"Content-Type": PROBLEM_JSON, "X-Request-Id": request_id}
    body = {"type": "about:blank", "title": title, "status": status, "request_id": request_id}
    return status, headers, orjson.dumps(body)


def problem_type(error: type[GearshiftError]) -> str:
    """The URI that tells one kind of problem from another: `urn:gearshift:problem:not-ready`."""
    return f"urn:gearshift:problem:{_CAPITAL.sub('-', error.__name__).lower()}"


def _joined(values: Iterable[str]) -> str:
    return ", ".join(dict.fromkeys(values))


def _to_list(value: Any) -> Any:
    # orjson takes contiguous arrays of one dimension and more; these are the others.
    if isinstance(value, np.ndarray):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} is not JSON")
