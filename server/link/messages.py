"""What the two sides say to each other: each message to a frame's header and back.

    API process -> worker    run, cancel, shift
    worker -> API process    hello, status, reply, error

Knows the words, not the socket.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from server.errors import GearshiftError, by_name
from server.link.journal import LostBatch
from server.types import Arrays, BucketStatus, Mode, ModelStatus, Reply, Sample, Timings

Header = dict[str, Any]


def run(request: int, model: str, sample: Sample, *, more: bool, alone: bool = False) -> Header:
    """Header of the frame that asks for one sample; its tensors are the sample's inputs.

    `more`: others of the same request follow, and want to run in the same batch.
    """
    return {
        "kind": "run",
        "id": request,
        "model": model,
        "deadline": sample.deadline,
        "more": more,
        "alone": alone,
    }


def read_run(header: Header, inputs: Arrays) -> Sample:
    """The sample of a `run` frame."""
    return Sample(inputs, header["deadline"], header["id"], header["alone"])


def cancel(request: int) -> Header:
    """Header of the frame that withdraws a sample."""
    return {"kind": "cancel", "id": request}


def shift(mode: Mode) -> Header:
    """Header of the frame that asks for another mode; the models' status tells when it holds."""
    return {"kind": "shift", "mode": mode}


def reply(request: int, made: Reply) -> Header:
    """Header of the frame that answers a sample; its tensors are the outputs."""
    return {
        "kind": "reply",
        "id": request,
        "mode": made.mode,
        "bucket": made.bucket,
        "queue_s": made.timings.queue_s,
        "inference_s": made.timings.inference_s,
        "fallback": made.fallback,
    }


def read_reply(header: Header, outputs: Arrays) -> Reply:
    """The reply of a `reply` frame."""
    timings = Timings(header["queue_s"], header["inference_s"])
    return Reply(outputs, header["mode"], header["bucket"], timings, header["fallback"])


def error(request: int, raised: GearshiftError) -> Header:
    """Header of the frame that answers a sample with an error."""
    return {
        "kind": "error",
        "id": request,
        "error": type(raised).__name__,
        "detail": raised.detail,
        "retry_after_s": raised.retry_after_s,
    }


def read_error(header: Header) -> GearshiftError:
    """The error of an `error` frame."""
    return by_name(header["error"])(header["detail"], header["retry_after_s"])


def hello(process: int, batch: LostBatch) -> Header:
    """Header of the first frame of a worker: its process id, and what was on the device when the
    one before it ended."""
    return {
        "kind": "hello",
        "process": process,
        "owner": batch.owner,
        "ids": batch.ids,
        "stuck": batch.stuck,
    }


def read_hello(header: Header) -> tuple[int, LostBatch]:
    """The process id and the batch of a `hello` frame."""
    return header["process"], LostBatch(header["owner"], tuple(header["ids"]), header["stuck"])


def status(model: ModelStatus) -> Header:
    """Header of the frame that tells how a model is."""
    return {"kind": "status", "model": asdict(model)}


def read_status(header: Header) -> ModelStatus:
    """The status of a `status` frame."""
    told = dict(header["model"])
    buckets = tuple(BucketStatus(**bucket) for bucket in told.pop("buckets"))
    modes = tuple(told.pop("modes"))
    return ModelStatus(**told, modes=modes, buckets=buckets)
