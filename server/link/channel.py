"""Frames on a stream socket: a small JSON header, then raw tensor bytes. Both sides use it.

    frame  = header length (u32) | body length (u32) | header | body
    header = {"kind": ..., ..., "tensors": [[name, dtype, shape], ...]}
    body   = the tensors' bytes, one after the other, in the machine's byte order

No pickle: nothing that arrives can run. Knows no engine and no HTTP.
"""

from __future__ import annotations

import asyncio
import math
import os
import struct
import threading
from collections.abc import Callable, Mapping
from typing import Any, cast

import numpy as np
import orjson

from server.types import Arrays

LENGTHS = struct.Struct("=II")
COPIED_BYTES = 4096  # up to here a copy costs less than a view
MOST_PIECES = os.sysconf("SC_IOV_MAX")

Header = dict[str, Any]
OnChange = Callable[["Channel"], None]
OnFrame = Callable[["Channel", Header, Arrays], None]


def encode(header: Mapping[str, Any], tensors: Arrays | None = None) -> list[bytes | memoryview]:
    """One frame as the pieces to write, large tensors uncopied. The header must be JSON-able."""
    described: list[tuple[str, str, tuple[int, ...]]] = []
    pieces: list[bytes | memoryview] = []
    size = 0
    for name, given in (tensors or {}).items():
        array = np.asarray(given, order="C")
        described.append((name, array.dtype.str, array.shape))
        # reshape(-1) first: a memoryview of a 0-d array cannot be cast to bytes.
        is_small = array.nbytes < COPIED_BYTES
        pieces.append(array.tobytes() if is_small else array.reshape(-1).view(np.uint8).data)
        size += array.nbytes
    head = orjson.dumps({**header, "tensors": described})
    return [LENGTHS.pack(len(head), size) + head, *pieces]


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
    when the other side is gone, which end-of-file tells at once: all three on the event loop.

    Any thread may `put` and `flush`: whoever has an answer writes it itself, rather than wake the
    event loop to do so. Only what the socket does not take at once is left to the loop.
    """

    def __init__(self, on_open: OnChange, on_frame: OnFrame, on_close: OnChange) -> None:
        self._on_open = on_open
        self._on_frame = on_frame
        self._on_close = on_close
        self._received = bytearray()
        self._is_flush_due = False
        self._lock = threading.Lock()  # of all below
        self._outgoing: list[bytes | memoryview] = []
        self._clogged = False  # what is outgoing is left to the loop
        self._paused = False  # the loop has more than the socket takes
        self._socket: int | None = None

    def send(self, header: Mapping[str, Any], tensors: Arrays | None = None) -> None:
        """Send one frame, from the event loop; frames of one turn leave in one system call."""
        self.put(header, tensors)
        if not self._is_flush_due:
            self._is_flush_due = True
            self._loop.call_soon(self._flush_due)

    def _flush_due(self) -> None:
        self._is_flush_due = False
        self.flush()

    def put(self, header: Mapping[str, Any], tensors: Arrays | None = None) -> None:
        """One frame that leaves with the next `flush`.

        Nothing leaves once the other side is gone: `on_close` has told.
        """
        frame = encode(header, tensors)
        with self._lock:
            self._outgoing += frame

    def flush(self) -> None:
        """Let all frames leave."""
        with self._lock:
            if self._clogged or self._socket is None:
                return
            self._outgoing = _write(self._socket, self._outgoing)
            if self._outgoing:
                self._clogged = True
                self._loop.call_soon_threadsafe(self._unclog)

    def _unclog(self) -> None:
        with self._lock:
            outgoing, self._outgoing = self._outgoing, []
            self._clogged = bool(outgoing) and self._socket is not None
            if not self._clogged:
                return
        self._transport.writelines(outgoing)
        if not self._paused:
            self._loop.call_soon(self._unclog)

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False
        self._unclog()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # A cast, not a check: uvloop's transports are none of asyncio's classes.
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(0)  # so that resuming means that all has left
        self._loop = asyncio.get_running_loop()
        # A number of our own: the transport's may be somebody else's file by the time of a write.
        self._socket = os.dup(transport.get_extra_info("socket").fileno())
        self._on_open(self)

    def connection_lost(self, exc: Exception | None) -> None:
        with self._lock:
            assert self._socket is not None, "opened when the connection was made"
            os.close(self._socket)
            self._socket = None
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


def _write(socket: int, pieces: list[bytes | memoryview]) -> list[bytes | memoryview]:
    """Write as much as the socket takes at once; what is left. A lost connection takes all."""
    try:
        written = os.writev(socket, pieces[:MOST_PIECES]) if pieces else 0
    except BlockingIOError:
        return pieces
    except ConnectionError:
        return []  # the event loop learns it by itself
    for count, piece in enumerate(pieces):
        if written < len(piece):
            return [memoryview(piece)[written:], *pieces[count + 1 :]]
        written -= len(piece)
    return []
