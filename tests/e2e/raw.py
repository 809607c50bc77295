"""A client made of a socket: it can send what no proper client would, and leave when it likes."""

from __future__ import annotations

import asyncio
import json
import socket
from dataclasses import dataclass
from urllib.parse import urlsplit

from tests.e2e.conftest import Server


@dataclass(frozen=True)
class Answer:
    """Status and head of an answer, and its body."""

    status: int
    head: str
    body: bytes


def address(server: Server) -> tuple[str, int]:
    url = urlsplit(str(server.http.base_url))
    assert url.hostname is not None
    assert url.port is not None
    return url.hostname, url.port


def message(path: str, body: bytes, **headers: str) -> bytes:
    """A whole POST, the connection to be closed after its answer."""
    fields = {"Host": "test", "Connection": "close", "Content-Length": str(len(body)), **headers}
    lines = [f"POST {path} HTTP/1.1", *(f"{name}: {value}" for name, value in fields.items())]
    return "\r\n".join([*lines, "", ""]).encode() + body


def json_message(path: str, value: object, **headers: str) -> bytes:
    headers = {"Content-Type": "application/json", **headers}
    return message(path, json.dumps(value).encode(), **headers)


def parsed(received: bytes) -> Answer:
    head, _, body = received.partition(b"\r\n\r\n")
    return Answer(int(head.split()[1]), head.decode(), body)


async def ask(server: Server, request: bytes) -> Answer:
    """Send one request over a connection of its own, and read until the server closes it."""
    reader, writer = await asyncio.open_connection(*address(server))
    writer.write(request)
    try:
        return parsed(await reader.read())
    finally:
        writer.close()


def hang_up(server: Server, request: bytes) -> None:
    """Send it and leave at once."""
    with socket.create_connection(address(server)) as connection:
        connection.sendall(request)
