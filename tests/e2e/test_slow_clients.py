"""Clients that take their time, or say too much: each is cut off, and nobody else notices."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from collections.abc import Iterable
from contextlib import suppress

import pytest

from tests.e2e.raw import address, message, parsed
from tests.e2e.test_requests import metric

pytestmark = pytest.mark.e2e

CUT_OFF_S = 20
HEAD = b"POST /predict HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
JSON = {"Content-Type": "application/json"}
BODY = json.dumps({"x": [1, 2, 3, 4]}).encode()


@pytest.fixture(scope="module")
def server(start, tmp_path_factory):
    file = tmp_path_factory.mktemp("slow") / "config.toml"
    file.write_text("[server]\nclient_timeout_s = 1.0")
    models = ("--model", "double=tests.fakes:Double", "--model", "wide=tests.fakes:Wide")
    return start("--config", str(file), *models, "--mode", "eager")


async def drip(server, pieces: Iterable[bytes], every_s: float = 0.2) -> bytes:
    """What comes back until the server ends the connection, to who sends a piece now and then."""
    reader, writer = await asyncio.open_connection(*address(server))

    async def send() -> None:
        for piece in pieces:
            writer.write(piece)
            await asyncio.sleep(every_s)

    sending = asyncio.create_task(send())
    try:
        async with asyncio.timeout(CUT_OFF_S):
            return await reader.read()
    except ConnectionError:
        return b""
    finally:
        sending.cancel()
        writer.close()


def forever(*first: bytes, then: bytes) -> Iterable[bytes]:
    yield from first
    while True:
        yield then


async def test_who_sends_too_slowly_is_cut_off(server):
    length = b"Content-Length: 1000\r\n\r\n"
    silent, head, trickled, body, after_answer, noise = await asyncio.gather(
        drip(server, []),
        drip(server, [HEAD]),
        drip(server, forever(HEAD, then=b"X-A: b\r\n")),
        drip(server, forever(HEAD + length, then=b" ")),
        drip(server, forever(b"POST /nope HTTP/1.1\r\nHost: x\r\n" + length, then=b" ")),
        drip(server, forever(then=b"\r\n")),
    )
    assert silent == noise == b""
    for received in (head, trickled, body):
        answer = parsed(received)
        assert answer.status == 408
        assert "application/problem+json" in answer.head
        assert json.loads(answer.body)["status"] == 408
    assert "server.client_timeout_s" in parsed(body).body.decode()
    assert parsed(after_answer).status == 404
    assert metric(server, "gearshift_requests_total", model="double", outcome="timeout") == 1
    assert metric(server, "gearshift_inflight_requests", model="double") == 0


async def test_a_body_that_comes_in_pieces_but_in_time_is_taken(server):
    head = HEAD + b"Connection: close\r\nContent-Length: %d\r\n\r\n" % len(BODY)
    pieces = [head[:20], head[20:], BODY[:5], BODY[5:]]
    assert parsed(await drip(server, pieces, every_s=0.05)).status == 200


async def test_a_connection_that_is_done_is_closed_after_a_while(server):
    alive = message("/predict", BODY, **JSON, Connection="")
    assert parsed(await drip(server, [alive])).status == 200


ENDLESS = b"a" * 60_000


@pytest.mark.parametrize(
    "pieces",
    [
        pytest.param([HEAD + b"X-Long: " + b"a" * 70_000 + b"\r\n\r\n"], id="one long line"),
        pytest.param([HEAD, *[b"X-Part: %s\r\n" % (b"a" * 6000)] * 12, b"\r\n"], id="many lines"),
        pytest.param([HEAD + b"X-Endless: ", *[ENDLESS] * 50], id="a line without an end"),
        pytest.param([b"GET /", *[ENDLESS] * 50], id="a path without an end"),
        pytest.param(
            [HEAD + b"Transfer-Encoding: chunked\r\n\r\n0\r\nX-Endless: ", *[ENDLESS] * 50],
            id="trailers without an end",
        ),
    ],
)
async def test_a_head_that_is_too_long_is_refused(server, pieces):
    received = await drip(server, pieces, every_s=0)
    # Who still sends when the connection is closed may not see the answer.
    assert not received or parsed(received).status == 431


async def test_what_is_not_http_is_refused_as_a_problem(server):
    answer = parsed(await drip(server, [b"hello\r\n\r\n"]))
    assert (answer.status, json.loads(answer.body)["status"]) == (400, 400)


def test_who_does_not_take_its_answers_is_cut_off(server):
    """So many answers that no buffer between the two holds them."""
    count = 20
    path, body = "/models/wide/predict", json.dumps({"x": [1 / 3, 0, 0, 0]}).encode()
    ask = message(path, body, **JSON, Connection="")
    size = count * len(server.http.post(path, content=body, headers=JSON).content)
    assert size > 15e6

    def answered() -> float:
        return metric(server, "gearshift_requests_total", model="wide", outcome="ok")

    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.settimeout(CUT_OFF_S)
        connection.connect(address(server))
        threading.Thread(target=_send, args=(connection, ask * count), daemon=True).start()
        before = -1.0
        while (now := answered()) != before:
            before = now
            time.sleep(3)
        taken = _drain(connection)
    assert taken < size
    assert server.http.post("/predict", content=BODY, headers=JSON).status_code == 200


def _send(connection: socket.socket, data: bytes) -> None:
    with suppress(OSError):  # cut off, as it should be
        connection.sendall(data)


def _drain(connection: socket.socket) -> int:
    taken = 0
    with suppress(ConnectionResetError):
        while piece := connection.recv(2**20):
            taken += len(piece)
    return taken
