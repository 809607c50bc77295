"""Frames on a stream socket: a small JSON header, then raw tensor bytes. Both sides use it.

    frame  = header length (u32) | body length (u32) | header | body
    header = {"kind": ..., ..., "tensors": [[name, dtype, shape], ...]}
    body   = the tensors' bytes, one after the other, in the machine's byte order

No pickle: nothing that arrives can run. Knows no engine and no HTTP.
"""

from __future__ import annotations

import asyncio
import math
import struct
from collections.abc import Callable, Mapping
from typing import Any, cast

import numpy as np
import orjson

from server.types import Arrays

LENGTHS = struct.Struct("=II")

Header = dict[str, Any]
OnChange = Callable[["Channel"], None]
OnFrame = Callable[["Channel", Header, Arrays], None]


def encode(header: Mapping[str, Any], tensors: Arrays | None = None) -> list[bytes | memoryview]:
    """One frame as the pieces to write, tensors uncopied. The header must be JSON-able."""
    arrays = {name: np.asarray(array, order="C") for name, array in (tensors or {}).items()}
    described = [[name, array.dtype.str, array.shape] for name, array in arrays.items()]
    head = orjson.dumps({**header, "tensors": described})
    body = sum(array.nbytes for array in arrays.values())
    # reshape(-1) first: a memoryview of a 0-d array cannot be cast to bytes.
    pieces = [array.reshape(-1).view(np.uint8).data for array in arrays.values() if array.nbytes]
    return [LENGTHS.pack(len(head), body) + head, *pieces]


def decode_tensors(described: list[Any], body: bytes) -> Arrays:
    """The tensors of a frame, read-only views of `body`."""
    arrays: Arrays = {}
    offset = 0
    for name, dtype_name, shape in described:
        dtype = np.dtype(dtype_name)
        count = math.prod(shape)
        arrays[name] = np.frombuffer(body, dtype, count, offset).reshape(shape)
        offset += count * dtype.itemsize
    return arrays


class Channel(asyncio.Protocol):
    """One connection. Calls `on_open` once it stands, `on_frame` for each frame, and `on_close`
    when the other side is gone, which end-of-file tells at once."""

    def __init__(self, on_open: OnChange, on_frame: OnFrame, on_close: OnChange) -> None:
        self._on_open = on_open
        self._on_frame = on_frame
        self._on_close = on_close
        self._received = bytearray()
        self._outgoing: list[bytes | memoryview] = []
        self._transport: asyncio.Transport | None = None

    def send(self, header: Mapping[str, Any], tensors: Arrays | None = None) -> None:
        """Send one frame; frames of one turn of the event loop leave in one system call.

        Does nothing once the other side is gone: `on_close` has told.
        """
        if not self._outgoing:
            asyncio.get_running_loop().call_soon(self._flush)
        self._outgoing += encode(header, tensors)

    def _flush(self) -> None:
        outgoing, self._outgoing = self._outgoing, []
        if self._transport is not None:
            self._transport.writelines(outgoing)

    def close(self) -> None:
        """Close after what was sent has left."""
        self._flush()
        if self._transport is not None:
            self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # A cast, not a check: uvloop's transports are none of asyncio's classes.
        self._transport = cast(asyncio.Transport, transport)
        self._on_open(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._on_close(self)

    def data_received(self, data: bytes) -> None:
        received = self._received
        received += data
        start = 0
        while len(received) - start >= LENGTHS.size:
            head_size, body_size = LENGTHS.unpack_from(received, start)
            head_at = start + LENGTHS.size
            body_at = head_at + head_size
            end = body_at + body_size
            if len(received) < end:
                break
            header = orjson.loads(memoryview(received)[head_at:body_at])
            tensors = decode_tensors(
                header.pop("tensors"), bytes(memoryview(received)[body_at:end])
            )
            self._on_frame(self, header, tensors)
            start = end
        if start:
            del received[:start]
