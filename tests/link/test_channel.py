"""Frames on a socket: what goes in comes out, however the bytes arrive."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from server.errors import Overloaded, UnknownModel
from server.link import messages
from server.link.channel import Channel, encode
from server.types import BucketStatus, ModelStatus, Reply, Sample, Timings

TENSORS = {
    "ids": np.arange(6, dtype=np.int64).reshape(2, 3),
    "scalar": np.array(1.5, np.float32),
    "empty": np.zeros((0, 4), np.float32),
    "flags": np.array([True, False]),
    "transposed": np.arange(6, dtype=np.float32).reshape(2, 3).T,
}


def receive(chunks: list[bytes]) -> list[tuple[dict, dict]]:
    frames: list[tuple[dict, dict]] = []
    channel = Channel(
        lambda _: None, lambda _, header, tensors: frames.append((header, tensors)), lambda _: None
    )
    for chunk in chunks:
        channel.data_received(chunk)
    return frames


@pytest.mark.parametrize("step", [1, 7, 10_000])
def test_frames_arrive_whole_however_they_are_cut(step):
    wire = b"".join(encode({"kind": "one"}, TENSORS)) + b"".join(encode({"kind": "two"}))
    frames = receive([wire[at : at + step] for at in range(0, len(wire), step)])
    assert [header["kind"] for header, _ in frames] == ["one", "two"]
    assert frames[1][1] == {}
    for name, sent in TENSORS.items():
        got = frames[0][1][name]
        assert got.dtype == sent.dtype
        assert got.shape == sent.shape
        np.testing.assert_array_equal(got, sent)


async def test_both_sides_learn_at_once_that_the_other_is_gone(tmp_path):
    closed: list[str] = []
    path = str(tmp_path / "s")
    loop = asyncio.get_running_loop()
    opened = asyncio.Event()

    def side(name: str) -> Channel:
        return Channel(lambda _: opened.set(), lambda *_: None, lambda _: closed.append(name))

    server = await loop.create_unix_server(lambda: side("server"), path)
    transport, client = await loop.create_unix_connection(lambda: side("client"), path)
    await opened.wait()
    transport.close()
    async with asyncio.timeout(10):
        while sorted(closed) != ["client", "server"]:
            await asyncio.sleep(0.01)
    client.send({"kind": "late"})  # nobody is there: nothing happens
    server.close()


async def test_frames_of_several_threads_arrive_whole_though_the_reader_is_slow(tmp_path):
    got: list[tuple[int, int]] = []
    loop = asyncio.get_running_loop()
    opened = asyncio.Event()
    large = np.arange(100_000)

    def take(channel: Channel, header: dict, tensors: dict) -> None:
        np.testing.assert_array_equal(tensors["large"], large)
        got.append((header["thread"], header["number"]))

    def talk(channel: Channel, thread: int) -> None:
        for number in range(50):
            channel.put({"thread": thread, "number": number}, {"large": large})
            channel.flush()

    path = str(tmp_path / "s")
    server = await loop.create_unix_server(
        lambda: Channel(lambda _: opened.set(), take, lambda _: None), path
    )
    transport, client = await loop.create_unix_connection(
        lambda: Channel(lambda _: None, lambda *_: None, lambda _: None), path
    )
    await opened.wait()
    # Nobody reads before all is sent: the event loop is held up by this very wait.
    with ThreadPoolExecutor() as pool:
        for thread in range(3):
            pool.submit(talk, client, thread)
    async with asyncio.timeout(60):
        while len(got) < 150:
            await asyncio.sleep(0.01)
    for thread in range(3):
        assert [number for name, number in got if name == thread] == list(range(50))
    transport.close()
    server.close()


def test_a_reply_survives_the_way():
    reply = Reply({}, "compiled", "8x32", Timings(0.001, 0.02), "bucket_not_compiled")
    assert messages.read_reply(messages.reply(7, reply), {}) == reply


def test_a_status_survives_the_way():
    bucket = BucketStatus("8x32", "compiled", compile_s=1.0, parity_max_abs_error=1e-7)
    status = ModelStatus("m", "ready", "compiled", buckets=(bucket,), facts={"labels": ["a"]})
    (frame,) = receive([b"".join(encode(messages.status(status)))])
    assert messages.read_status(frame[0]) == status


@pytest.mark.parametrize("error", [Overloaded("full", 2.5), UnknownModel("no such")])
def test_an_error_keeps_its_class_and_text(error):
    (frame,) = receive([b"".join(encode(messages.error(3, error)))])
    got = messages.read_error(frame[0])
    assert type(got) is type(error)
    assert (got.detail, got.retry_after_s) == (error.detail, error.retry_after_s)


def test_a_sample_keeps_its_deadline():
    header = messages.run(1, "m", Sample({}, 123.25), more=False)
    assert (header["model"], header["deadline"]) == ("m", 123.25)
