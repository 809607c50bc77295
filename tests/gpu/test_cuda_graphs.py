"""On a GPU, compiled means CUDA graphs that are replayed, keep answers apart and do not grow."""

from __future__ import annotations

import itertools
import time

import numpy as np
import pytest
import torch

from models.base import ServedModel
from models.registry import create
from server.engine.tensors import rows_of
from server.types import Arrays
from tests.engine.conftest import Running

pytestmark = pytest.mark.gpu

REQUESTS = 10_000
SIZES = (1, 4)
SEQS = (32, 128)


@pytest.fixture(
    scope="module",
    params=[("resnet50", "float32"), ("transformers:bert-base-uncased", "bfloat16")],
    ids="-".join,
)
def served(request, start_on_cuda) -> tuple[Running, ServedModel]:
    """A compiled engine and its model; random weights are as fast and as large as real ones."""
    reference, dtype = request.param
    is_text = reference.startswith("transformers:")
    model = create(reference, name="model", weights="random", max_seq=SEQS[-1] if is_text else None)
    running = start_on_cuda(
        [model],
        mode="compiled",
        dtype=dtype,
        batching={"max_batch_size": SIZES[-1]},
        compile={"batch_buckets": SIZES, "seq_buckets": SEQS if is_text else ()},
    )
    assert running.failure is None
    return running, model


def batches_of(model: ServedModel) -> list[list[Arrays]]:
    """A batch of every size, in every length that has a bucket."""
    seqs = SEQS if model.max_seq else (0,)
    return [rows_of(model.example(size, seq)) for size in range(1, SIZES[-1] + 1) for seq in seqs]


def test_every_bucket_replays_cuda_graphs_and_serving_records_none(served):
    running, model = served
    buckets = running.statuses["model"].buckets
    assert {(bucket.state, bucket.reason) for bucket in buckets} == {("compiled", None)}
    assert all(bucket.replays_per_call >= 1 for bucket in buckets)
    assert all(bucket.graph_breaks == 0 for bucket in buckets)
    time.sleep(1.1)  # device records come at most once a second, with a batch
    for rows in batches_of(model):
        replies = running.run("model", rows)
        assert {(reply.mode, reply.fallback) for reply in replies} == {("compiled", None)}
    assert running.devices[-1].compiles_serving == 0
    assert running.devices[-1].graph_replays > sum(b.replays_per_call for b in buckets)


def test_an_answer_that_is_held_is_not_overwritten_by_the_next_replay(served):
    running, model = served
    first, second = rows_of(model.example(3, SEQS[0] if model.max_seq else 0))[:2]
    held = running.run("model", [first])[0].outputs
    kept = {name: array.copy() for name, array in held.items()}
    other = running.run("model", [second])[0].outputs
    again = running.run("model", [first])[0].outputs
    for name, array in held.items():
        np.testing.assert_array_equal(array, kept[name])
        np.testing.assert_array_equal(array, again[name])
        assert not np.array_equal(array, other[name])


def test_reserved_memory_stays_flat_over_many_requests(served):
    running, model = served
    batches = batches_of(model)
    for rows in batches:
        running.run("model", rows)
    before = torch.cuda.memory_reserved()
    sent = 0
    for rows in itertools.cycle(batches):
        running.run("model", rows)
        sent += len(rows)
        if sent >= REQUESTS:
            break
    assert torch.cuda.memory_reserved() == before
