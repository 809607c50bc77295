"""Reads one request's body: no larger than it may be, and no slower.

Knows nothing of what is in it.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

from starlette.types import Receive

from server.api.decode import Body
from server.api.disconnect import Interruptible
from server.config import ServerSection
from server.errors import (
    ClientGone,
    ClientTooSlow,
    DeadlineExceeded,
    GearshiftError,
    PayloadTooLarge,
)


async def read(
    receive: Receive,
    headers: Mapping[str, str],
    limits: ServerSection,
    deadline: float,
    work: Interruptible,
) -> Body:
    """The whole body. Raises PayloadTooLarge or ClientGone.

    Ends `work` with ClientTooSlow or DeadlineExceeded when it takes too long.
    """
    limit = limits.max_body_bytes
    announced = headers.get("content-length", "0")
    if announced.isdecimal() and int(announced) > limit:
        raise _too_large(limit)
    work.interrupt_after(*_patience(limits, deadline))
    chunks: list[bytes] = []
    size = 0
    more = True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGone("the client closed the connection while it sent its body")
        chunk = message.get("body", b"")
        chunks.append(chunk)
        size += len(chunk)
        if size > limit:
            raise _too_large(limit)
        more = message.get("more_body", False)
    return Body(headers.get("content-type", ""), b"".join(chunks), headers)


def _patience(limits: ServerSection, deadline: float) -> tuple[float, GearshiftError]:
    left_s = deadline - time.monotonic()
    if left_s < limits.client_timeout_s:
        return left_s, DeadlineExceeded("the deadline passed before the body was there")
    limit_s = limits.client_timeout_s
    slow = ClientTooSlow(f"the body took over {limit_s:g} s (server.client_timeout_s)")
    return limit_s, slow


def _too_large(limit: int) -> PayloadTooLarge:
    return PayloadTooLarge(f"the body is over {limit} bytes (server.max_body_bytes)")
