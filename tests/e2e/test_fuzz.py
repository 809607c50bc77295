"""Whatever a client may send: our own OpenAPI document taken at its word, and bodies that are
nearly right. No 500, no hang, no connection left open."""

from __future__ import annotations

import asyncio
import io
import re

import numpy as np
import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image
from schemathesis.checks import (
    CheckFunction,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from tests.e2e.raw import address, ask, message
from tests.e2e.test_requests import metric

pytestmark = pytest.mark.e2e

ANSWER_S = 20
# The same examples every time, and as many as take some seconds.
bounded = settings(
    max_examples=150,
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
)
CHECKS: list[CheckFunction] = [
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
]


@pytest.fixture(scope="module")
def server(start):
    models = [f"{name}=tests.fakes:{name.title()}" for name in ("double", "tokens", "colors")]
    server = start(*[flag for model in models for flag in ("--model", model)], "--mode", "eager")
    yield server
    assert server.http.post("/predict", json={"x": [1, 2, 3, 4]}).status_code == 200
    assert metric(server, "gearshift_inflight_requests") == 0
    assert metric(server, "gearshift_requests_total", outcome="failed") == 0
    assert not re.search("ERROR|Traceback", server.log.read_text())


def test_what_the_document_allows_is_answered_as_it_says(server):
    document = schemathesis.openapi.from_url(f"{server.http.base_url}/openapi.json")
    asked = 0
    for operation in document.get_all_operations():

        @given(operation.ok().as_strategy())
        @settings(bounded, max_examples=40)
        def ask_for(case: schemathesis.Case) -> None:
            nonlocal asked
            asked += 1
            answer = case.call(timeout=ANSWER_S)
            assert answer.status_code != 500
            case.validate_response(answer, checks=CHECKS)

        ask_for()
    assert asked > 60


def npy(array: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def npz(**arrays: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.savez_compressed(file, **arrays)
    return file.getvalue()


def image(kind: str) -> bytes:
    file = io.BytesIO()
    pixels = np.random.default_rng(0).integers(0, 256, (9, 7, 3), np.uint8)
    Image.fromarray(pixels).save(file, kind)
    return file.getvalue()


def form(name: str, content: bytes) -> bytes:
    disposition = f'Content-Disposition: form-data; name="{name}"'.encode()
    return b"--b\r\n" + disposition + b"\r\n\r\n" + content + b"\r\n--b--\r\n"


IDS = np.arange(5)
FORM = "multipart/form-data; boundary=b"
GOOD: list[tuple[str, str, bytes]] = [
    ("double", "application/x-npy", npy(np.ones(4, np.float32))),
    ("double", "application/octet-stream", npy(np.ones((3, 4), np.float32))),
    ("double", "application/octet-stream", np.ones(4, np.float32).tobytes()),
    ("double", "application/json", b'[{"x": [1, 2.5, -3e4, 0]}]'),
    ("tokens", "application/x-npz", npz(ids=IDS, mask=np.ones_like(IDS))),
    ("tokens", "text/plain", "héllo".encode()),
    ("tokens", FORM, form("text", b"hello")),
    ("colors", FORM, form("image", image("PNG"))),
    *(("colors", f"image/{kind}", image(kind)) for kind in ("jpeg", "png", "webp", "gif", "bmp")),
]


@st.composite
def damaged(draw: st.DrawFn, good: bytes) -> bytes:
    """A body with some bytes changed, left out or put in; or its beginning; or any bytes at all."""
    data = bytearray(good)
    for _ in range(draw(st.integers(0, 4))):
        at = draw(st.integers(0, len(data)))
        data[at : at + draw(st.integers(0, 8))] = draw(st.binary(max_size=8))
    return bytes(draw(st.sampled_from([data, data[: len(data) // 2], draw(st.binary())])))


PRINTABLE = st.text(st.characters(min_codepoint=33, max_codepoint=126), max_size=20)
SHAPES = st.one_of(st.lists(st.integers(-1, 2**64), max_size=9).map(str), PRINTABLE, st.just("4"))


@st.composite
def requests(draw: st.DrawFn) -> bytes:
    name, media_type, good = draw(st.sampled_from(GOOD))
    headers = {"Content-Type": media_type}
    if media_type == "application/octet-stream":
        shape = draw(SHAPES).strip("[]")
        headers |= {"X-Tensor-Shape": shape, "X-Tensor-Dtype": draw(st.just("float32") | PRINTABLE)}
    return message(f"/models/{name}/predict", draw(damaged(good)), **headers)


@given(requests())
@settings(bounded, max_examples=600)
def test_a_damaged_body_is_answered_or_refused_and_the_connection_closed(server, request_bytes):
    async def answer() -> int:
        async with asyncio.timeout(ANSWER_S):
            return (await ask(server, request_bytes)).status

    assert asyncio.run(answer()) in (200, 413, 415, 422)


@given(st.data())
@bounded
def test_a_damaged_request_ends_its_connection_and_nothing_else(server, data):
    good = message("/predict", b'{"x": [1, 2, 3, 4]}', **{"Content-Type": "application/json"})
    sent = data.draw(damaged(good))

    async def received() -> bytes:
        async with asyncio.timeout(ANSWER_S):
            reader, writer = await asyncio.open_connection(*address(server))
            writer.write(sent)
            writer.write_eof()
            try:
                return await reader.read()
            except ConnectionResetError:
                return b""
            finally:
                writer.close()

    assert not asyncio.run(received()).startswith(b"HTTP/1.1 500")
