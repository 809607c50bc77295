"""One connection of a client, as uvicorn has it, with bounds on what a client can take for itself.

uvicorn waits for ever for a request to come and for its answer to be taken, and takes a head of
any size. Here a connection that keeps the server waiting longer than `server.client_timeout_s` is
cut off, as is one whose head, or trailers, are too long. A body that somebody reads is theirs to
wait for (`api.read`). Knows no routes.
"""

from __future__ import annotations

from asyncio import BaseTransport, TimerHandle
from http import HTTPStatus
from typing import Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from server.api import encode

MAX_HEAD_BYTES = 64 * 1024
LOOKS = 4  # in each timeout: one timer a connection costs less than one a request


class HeadTooLarge(Exception):
    """Raised through the parser, which then refuses the request."""


class Connection(HttpToolsProtocol):
    """Cuts off who is too slow or says too much; all else is uvicorn's."""

    def __init__(self, *, timeout_s: float, **given: Any) -> None:
        super().__init__(**given)
        self._timeout_s = timeout_s
        self._waiting_since: float | None = self.loop.time()  # for the rest of a request
        self._answered_at = self.loop.time()
        self._in_head = False
        self._bytes_of_head = 0  # or of trailers: since the last byte of a body
        self._refusal = 400
        self._timer: TimerHandle | None = None

    def connection_made(self, transport: BaseTransport) -> None:
        super().connection_made(transport)  # type: ignore[arg-type]
        self._look_later()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        super().connection_lost(exc)

    def _look_later(self) -> None:
        self._timer = self.loop.call_later(self._timeout_s / LOOKS, self._look)

    def _look(self) -> None:
        now = self.loop.time()
        is_answering = self.cycle is not None and not self.cycle.response_complete
        is_late = self._waiting_since is not None and now - self._waiting_since >= self._timeout_s
        if is_late and not is_answering and not self.transport.is_closing():
            self._end_waiting()
        elif self.transport.get_write_buffer_size() and now - self._answered_at >= self._timeout_s:
            self.transport.abort()
            return
        self._look_later()

    def _end_waiting(self) -> None:
        if self._in_head:
            self._refuse(408)
        else:  # nothing was asked, or the answer was there before the body
            self.transport.close()

    def data_received(self, data: bytes) -> None:
        if self._waiting_since is None:
            self._waiting_since = self.loop.time()
        self._bytes_of_head += len(data)
        super().data_received(data)
        if self._bytes_of_head > MAX_HEAD_BYTES and not self.transport.is_closing():
            self._refuse(431)

    def on_message_begin(self) -> None:
        self._in_head = True
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._in_head = False
        size = len(self.url) + sum([len(name) + len(value) for name, value in self.headers])
        if size > MAX_HEAD_BYTES:
            self._refusal = 431
            raise HeadTooLarge
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._bytes_of_head = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._bytes_of_head = 0
        self._waiting_since = None
        super().on_message_complete()

    def on_response_complete(self) -> None:
        self._answered_at = self.loop.time()
        super().on_response_complete()

    def send_400_response(self, msg: str) -> None:
        """What uvicorn answers when the parser refuses."""
        self._refuse(self._refusal)

    def _refuse(self, status: int) -> None:
        title, request_id = HTTPStatus(status).phrase, encode.request_id(None)
        _, headers, body = encode.http_problem(status, title, request_id)
        fields = {**headers, "Content-Length": str(len(body)), "Connection": "close"}
        head = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
        self.transport.write(STATUS_LINE[status] + head.encode() + b"\r\n" + body)
        self.transport.close()
