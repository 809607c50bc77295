"""A batch is padded where that was measured cheaper, and cut where padding costs time."""

from __future__ import annotations

import pytest

from server.engine.splitting import cheapest_parts

LIKE_A_GPU = {1: 1.0, 2: 1.1, 4: 1.2, 8: 1.4}
IN_PROPORTION = {1: 1.0, 2: 1.9, 4: 3.7, 8: 7.3}


@pytest.mark.parametrize("size", range(1, 9))
def test_where_size_costs_nothing_a_batch_is_padded_whole(size):
    assert cheapest_parts(size, LIKE_A_GPU) == (size,)


@pytest.mark.parametrize(
    ("size", "parts"), [(1, [1]), (2, [2]), (3, [1, 2]), (5, [1, 4]), (6, [2, 4]), (8, [8])]
)
def test_where_time_grows_with_size_the_parts_fill_their_buckets(size, parts):
    assert sorted(cheapest_parts(size, IN_PROPORTION)) == parts


@pytest.mark.parametrize("size", [7, 8])
def test_what_saves_no_more_than_timings_differ_is_not_cut(size):
    assert cheapest_parts(size, {1: 1.0, 2: 1.9, 4: 3.6, 8: 7.1}) == (size,)


def test_what_is_best_whole_and_padded_may_be_so_for_a_part():
    # Three in a bucket of four, beside a full one: two full ones of two and four cost more.
    assert sorted(cheapest_parts(7, {4: 1.0, 8: 2.5})) == [3, 4]
