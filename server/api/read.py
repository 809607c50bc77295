"""Reads one request's body: no larger than it may be, and no slower.

Knows nothing of what is in it.
"""

from __future__ import annotations

import asyncio
import time

from starlette.requests import ClientDisconnect, Request

from server.api.decode import Body
from server.config import ServerSection
from server.errors import ClientGone, ClientTooSlow, DeadlineExceeded, PayloadTooLarge


async def read(request: Request, limits: ServerSection, deadline: float) -> Body:
    """The whole body. Raises PayloadTooLarge, ClientTooSlow, DeadlineExceeded or ClientGone."""
    left_s = deadline - time.monotonic()
    try:
        async with asyncio.timeout(min(left_s, limits.client_timeout_s)):
            data = await _read(request, limits.max_body_bytes)
    except ClientDisconnect:
        raise ClientGone("the client closed the connection while it sent its body") from None
    except TimeoutError:
        if left_s < limits.client_timeout_s:
            raise DeadlineExceeded("the deadline passed before the body was there") from None
        limit = f"{limits.client_timeout_s:g} s (server.client_timeout_s)"
        raise ClientTooSlow(f"the body took over {limit}") from None
    return Body(request.headers.get("content-type", ""), data, request.headers)


async def _read(request: Request, limit: int) -> bytes:
    too_large = PayloadTooLarge(f"the body is over {limit} bytes (server.max_body_bytes)")
    announced = request.headers.get("content-length", "0")
    if announced.isdecimal() and int(announced) > limit:
        raise too_large
    chunks: list[bytes] = []
    size = 0
    async for chunk in request.stream():
        chunks.append(chunk)
        size += len(chunk)
        if size > limit:
            raise too_large
    return b"".join(chunks)
