"""The grid of buckets: every admitted batch has exactly one, the largest is the limit."""

from __future__ import annotations

import pytest

from models.base import ModelError
from server.engine.buckets import make_grid, powers_of_two
from server.sources import load
from server.types import Bucket
from tests.fakes import Double, Tokens


def test_every_size_and_length_up_to_the_limits_has_the_smallest_bucket_that_holds_it():
    grid = make_grid(load(flags={"batching": {"max_batch_size": 6}}), Tokens(), "cpu")
    assert grid.batches == (1, 2, 4, 6)
    assert grid.seqs == (16, 24, 32)
    for size in range(1, 7):
        for seq in range(1, 33):
            bucket = grid.of(size, seq)
            assert bucket.batch >= size
            assert bucket.seq >= seq
            smaller = [b for b in grid.batches if b < bucket.batch]
            assert not smaller or smaller[-1] < size


def test_lengths_are_in_finer_steps_only_where_one_compile_serves_them_all():
    def seqs(dynamic, device):
        return make_grid(load(flags={"compile": {"dynamic": dynamic}}), Tokens(), device).seqs

    assert seqs("auto", "cpu") == seqs(True, "cuda") == (16, 24, 32)
    assert seqs("auto", "cuda") == seqs(False, "cpu") == seqs("batch", "cpu") == (16, 32)


def test_the_largest_bucket_comes_first_in_warm_up():
    grid = make_grid(load(flags={"batching": {"max_batch_size": 2}}), Tokens(), "cuda")
    assert grid.largest_first() == [Bucket(2, 32), Bucket(1, 32), Bucket(2, 16), Bucket(1, 16)]


def test_a_model_without_a_sequence_has_batches_only():
    grid = make_grid(load(flags={"batching": {"max_batch_size": 2}}), Double(), "cpu")
    assert [str(bucket) for bucket in grid.largest_first()] == ["2", "1"]


def test_sequence_buckets_that_end_below_the_models_limit_are_refused_with_the_remedy():
    with pytest.raises(ModelError, match=r"seq_buckets = \[8\].* longest sequence, 32; add it"):
        make_grid(load(flags={"compile": {"seq_buckets": [8]}}), Tokens(), "cpu")


@pytest.mark.parametrize(
    ("first", "limit", "sizes"),
    [(1, 1, [1]), (1, 8, [1, 2, 4, 8]), (1, 5, [1, 2, 4, 5]), (16, 100, [16, 32, 64, 100])],
)
def test_powers_of_two_end_at_the_limit(first, limit, sizes):
    assert powers_of_two(first, limit) == sizes


def test_a_limit_below_the_first_power_is_the_only_size():
    assert powers_of_two(16, 10) == [10]
