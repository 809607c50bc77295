"""A closed loop over HTTP: every connection sends its next request when it has its answer.

One thread, epoll, C parser, requests encoded beforehand and answers looked at afterwards: what the
client computes is taken from the server on a small machine. A closed loop waits with the server, so
it compares capacity and says nothing of how a stall feels; that takes an open loop.
"""

from __future__ import annotations

import itertools
import select
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import httptools

RECEIVE_BYTES = 256 * 1024
SILENCE_S = 60


class Answer(NamedTuple):
    """One request's answer: which of the requests, what came back, and how long it took."""

    request: int
    status: int
    body: bytes
    seconds: float


@dataclass(frozen=True, slots=True)
class Load:
    """How hard and how long: answers within `seconds`, after `warmup_s` that do not count."""

    connections: int
    warmup_s: float
    seconds: float


@dataclass(frozen=True, slots=True)
class Request:
    """One POST."""

    path: str
    headers: Mapping[str, str]
    body: bytes

    def encode(self, port: int) -> bytes:
        """As it goes over the wire."""
        lines = [
            f"POST {self.path} HTTP/1.1",
            f"Host: 127.0.0.1:{port}",
            f"Content-Length: {len(self.body)}",
            *(f"{name}: {value}" for name, value in self.headers.items()),
        ]
        return "\r\n".join([*lines, "", ""]).encode() + self.body


def drive(port: int, requests: Sequence[Request], load: Load) -> list[Answer]:
    """Send the requests round and round; the answers that came within the time that counts.

    Raises TimeoutError for a server that says nothing for a minute, ConnectionError for one that
    hangs up.
    """
    order = itertools.cycle([(n, one.encode(port)) for n, one in enumerate(requests)])
    connections = [_Connection(port, order) for _ in range(load.connections)]
    counts_from = time.perf_counter() + load.warmup_s
    ends = counts_from + load.seconds
    answers: list[Answer] = []
    waiting = {connection.fileno(): connection for connection in connections}
    with select.epoll() as poll:
        for number, connection in waiting.items():
            poll.register(number, select.EPOLLIN)
            connection.send()
        while waiting:
            ready = poll.poll(SILENCE_S)
            if not ready:
                raise TimeoutError(f"no answer from port {port} for {SILENCE_S} s")
            for number, _ in ready:
                answer = waiting[number].receive()
                if answer is None:
                    continue
                now = time.perf_counter()
                if counts_from <= now < ends:
                    answers.append(answer)
                if now < ends:
                    waiting[number].send()
                else:
                    poll.unregister(number)
                    waiting.pop(number).close()
    return answers


class _Connection:
    """One keep-alive connection with at most one request under way."""

    def __init__(self, port: int, order: Iterator[tuple[int, bytes]]) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.fileno = self._socket.fileno
        self.close = self._socket.close
        self._order = order
        self._parser = httptools.HttpResponseParser(self)
        self._body = b""
        self._is_complete = False
        self._request = 0
        self._sent_at = 0.0

    def send(self) -> None:
        self._request, data = next(self._order)
        self._body, self._is_complete = b"", False
        self._sent_at = time.perf_counter()
        self._socket.sendall(data)

    def receive(self) -> Answer | None:
        """The answer, once all of it is there."""
        data = self._socket.recv(RECEIVE_BYTES)
        if not data:
            raise ConnectionError("the server closed a connection that was in use")
        self._parser.feed_data(data)
        if not self._is_complete:
            return None
        seconds = time.perf_counter() - self._sent_at
        return Answer(self._request, self._parser.get_status_code(), self._body, seconds)

    # What the parser calls.

    def on_body(self, chunk: bytes) -> None:
        self._body += chunk

    def on_message_complete(self) -> None:
        self._is_complete = True
