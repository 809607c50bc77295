"""The engine as a host drives it: samples in, the right replies out, in both modes."""

from __future__ import annotations

import time

import numpy as np
import pytest
import torch

from models.base import ModelError
from server.engine.devices import DeviceLost, StartFailed, require_alive
from server.engine.tensors import rows_of
from server.errors import DeadlineExceeded, InferenceFailed, NotReady, UnknownModel
from server.types import Sample
from tests.engine import faults
from tests.fakes import Double, Tokens


def tokens(length: int, seed: int) -> dict[str, np.ndarray]:
    ids = np.random.default_rng(seed).integers(1, 256, length)
    return {"ids": ids, "mask": np.ones(length, np.int64)}


def expected_scores(sample) -> np.ndarray:
    return np.sin(sample["ids"]).astype(np.float32)


@pytest.mark.parametrize("mode", ["eager", "compiled"])
def test_mixed_lengths_each_get_their_own_answer(start, mode):
    running = start([Tokens()], mode=mode)
    samples = [tokens(length, seed) for seed, length in enumerate([1, 16, 17, 32, 5, 20, 3])]
    for sample, reply in zip(samples, running.run("tokens", samples), strict=True):
        assert reply.mode == mode
        assert reply.fallback is None
        np.testing.assert_allclose(reply.outputs["scores"], expected_scores(sample), atol=1e-6)
        np.testing.assert_allclose(reply.outputs["mean"], expected_scores(sample).mean(), atol=1e-6)


def test_compiled_batches_are_padded_to_a_proven_bucket_and_nothing_compiles_any_more(start):
    running = start([Tokens(), Double()], mode="compiled")
    buckets = {f"{batch}x{seq}" for seq in (32, 24, 16) for batch in (2, 1)}
    assert running.buckets("tokens") == dict.fromkeys(buckets, "compiled")
    for length in range(1, 33):
        running.run("tokens", [tokens(length, seed) for seed in range(3)])
    running.run("double", rows_of(Double().example(5, 0)))
    assert {batch.mode for batch in running.batches} == {"compiled"}
    assert {batch.bucket for batch in running.batches} <= {*buckets, "2", "1"}
    time.sleep(1.1)  # device records come at most once a second, with a batch
    running.run("double", rows_of(Double().example(1, 0)))
    running.engine.close(30)
    assert running.devices[-1].compiles > 0
    assert running.devices[-1].compiles_serving == 0


def test_eager_batches_are_not_padded_in_the_batch_dimension(start):
    running = start([Tokens()], mode="eager", batching={"max_batch_size": 8})
    running.run("tokens", [tokens(10, 1)])
    assert [batch.padding_ratio for batch in running.batches] == [0.0]


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (faults.NeverCompiled, "0 graphs: Dynamo took no part of the model; as a whole: cannot be"),
        (faults.OtherAnswers, "parity: y: differs from float64 by"),
        (faults.LeaksNeighbours, "parity: y: differs from float64 by"),
        (faults.NotANumber, "parity: y: not finite, nor is eager"),
    ],
)
def test_a_bucket_that_is_not_proven_is_served_eager_and_says_why(start, model, reason):
    running = start([model()], mode="compiled")
    for bucket in running.statuses["double"].buckets:
        if (model, bucket.bucket) == (faults.LeaksNeighbours, "1"):
            continue  # alone there is no neighbour
        assert bucket.state == "eager"
        assert bucket.reason.startswith(reason)
    sample = {"x": np.ones(4, np.float32)}
    replies = running.run("double", [sample, sample])
    assert {reply.mode for reply in replies} <= {"eager", "compiled"}
    assert running.batches[-1].fallback == "bucket_not_compiled"


def test_a_bucket_that_is_not_proven_can_refuse_the_start(start):
    running = start([faults.NeverCompiled()], mode="compiled", compile={"on_failure": "refuse"})
    assert isinstance(running.failure, StartFailed)
    assert "bucket 2: 0 graphs" in str(running.failure)


@pytest.mark.parametrize("mode", ["eager", "compiled"])
def test_a_bad_sample_fails_alone(start, mode):
    running = start([faults.RaisesOn()], mode=mode, batching={"max_batch_size": 4})
    deadline = time.monotonic() + 60
    values = [1, 13, 2]
    futures = running.engine.submit(
        "double", [Sample({"x": np.full(4, v, np.float32)}, deadline) for v in values]
    )
    assert futures[0].result(60).outputs["y"].tolist() == [2] * 4
    assert futures[2].result(60).outputs["y"].tolist() == [4] * 4
    with pytest.raises(InferenceFailed, match="could not process this input"):
        futures[1].result(60)


@pytest.mark.parametrize("mode", ["eager", "compiled"])
def test_an_answer_is_not_overwritten_by_the_next_batch(start, mode):
    running = start([faults.ReturnsItsInput()], mode=mode)
    (first,) = running.run("double", [{"x": np.full(4, 1, np.float32)}])
    running.run("double", [{"x": np.full(4, 2, np.float32)}])
    assert first.outputs["y"].tolist() == [1] * 4


def test_a_model_that_cannot_be_loaded_stops_the_engine_with_its_reason(start):
    running = start([faults.NoWeights()])
    assert isinstance(running.failure, ModelError)
    with pytest.raises(NotReady):
        running.engine.submit("double", [])


def test_a_device_that_is_not_there_is_named(start):
    running = start([Double()], device="cuda:99")
    assert "cuda:99" in str(running.failure)
    assert "CUDA devices" in str(running.failure)


def test_an_unknown_model_is_told_which_are_served(start):
    running = start([Double()])
    with pytest.raises(UnknownModel, match="served: double"):
        running.engine.submit("nope", [])


def test_a_deadline_that_passed_is_an_error_not_a_run(start):
    running = start([Double()])
    sample = Sample({"x": np.ones(4, np.float32)}, time.monotonic() - 1)
    with pytest.raises(DeadlineExceeded):
        running.engine.submit("double", [sample])[0].result(60)
    assert running.batches == []


def test_bfloat16_weights_answer_close_to_float32(start):
    running = start([Tokens()], mode="compiled", dtype="bfloat16")
    assert set(running.buckets("tokens").values()) == {"compiled"}
    sample = tokens(16, 0)
    (reply,) = running.run("tokens", [sample])
    assert reply.outputs["scores"].dtype == np.float32
    np.testing.assert_allclose(reply.outputs["scores"], expected_scores(sample), atol=1e-2)


def test_a_device_that_fails_every_call_is_lost_and_one_that_works_is_not(monkeypatch):
    device = torch.device("cuda")
    monkeypatch.setattr(torch.cuda, "synchronize", lambda _: None)
    require_alive(device)

    def gone(_: torch.device) -> None:
        raise torch.AcceleratorError("CUDA error: device-side assert triggered\nmore")

    monkeypatch.setattr(torch.cuda, "synchronize", gone)
    with pytest.raises(DeviceLost, match="cuda: CUDA error: device-side assert triggered$"):
        require_alive(device)


def test_an_engine_whose_device_is_lost_ends_and_leaves_its_batch_unanswered(start, monkeypatch):
    """Not answered with an error: whoever asked tries again elsewhere."""

    def gone(device: torch.device) -> None:
        raise DeviceLost(f"{device}: gone")

    running = start([faults.RaisesOn()], mode="eager")
    monkeypatch.setattr("server.engine.engine.require_alive", gone)
    sample = Sample({"x": np.full(4, 13, np.float32)}, time.monotonic() + 60)
    (future,) = running.engine.submit("double", [sample])
    with running.changed:
        assert running.changed.wait_for(lambda: running.failure is not None, 60)
    assert str(running.failure) == "cpu: gone"
    assert not future.done()
