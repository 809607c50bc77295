"""Conditions of `--fail-if`, and an older report to be held against."""

import pytest

from report.gate import Condition, GateError, against, failures
from tests.report.reports import bench, bucket

REPORT = bench(bucket(1, 0.0015, 0.001), bucket(8, 0.008, 0.008), bucket(16, 0.016, None))


def held(text: str) -> list[tuple[str, str]]:
    """The buckets that a condition fails, with what was found there."""
    rows = failures(REPORT, [Condition.parse(text)]).rows
    return [(row[4], row[-1]) for row in rows]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("speedup(batch=1) < 1.2", []),
        ("speedup(batch=1) < 1.6", [("1", "speedup is 1.5")]),
        (" speedup ( batch = 8 , model=net )<=1 ", [("8", "speedup is 1")]),
        ("p50_ms(variant=eager, batch=8) > 8", [("8", "p50_ms is 8.024")]),
        ("break_even(batch=8) > 1e6", [("8", "break_even is inf")]),
        ("max_abs_error(batch=1) > 1e-3", []),
        ("speedup(batch=16) < 0.1", [("16", "0 graphs: Dynamo took no part of the model")]),
    ],
)
def test_a_condition_fails_where_it_holds_or_nothing_was_measured(text, found):
    assert held(text) == found


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("speedup", "comparison number"),
        ("speed(batch=1) < 1", "a metric: speedup,"),
        ("speedup(batch) < 1", "filters like batch=1"),
        ("speedup(size=1) < 1", "filters like batch=1"),
        ("speedup < fast", "a number after <"),
    ],
)
def test_what_cannot_be_read_says_what_was_expected(text, expected):
    with pytest.raises(GateError, match=expected):
        Condition.parse(text)


def test_a_condition_about_nothing_is_no_pass():
    with pytest.raises(GateError, match="none matches"):
        held("speedup(batch=2) < 1")


@pytest.mark.parametrize(
    ("compiled_s", "verdict"), [(0.001, "same"), (0.0013, "worse"), (0.0007, "better")]
)
def test_a_speedup_is_held_against_the_older_one(compiled_s, verdict):
    table, is_worse = against(bench(bucket(1, 0.0015, compiled_s)), bench(bucket(1, 0.0015, 0.001)))
    assert [row[-1] for row in table.rows] == [verdict]
    assert is_worse == (verdict == "worse")


def test_a_slower_machine_is_not_worse():
    _, is_worse = against(bench(bucket(1, 0.15, 0.1)), bench(bucket(1, 0.0015, 0.001)))
    assert not is_worse


def test_a_bucket_that_no_longer_compiles_is_worse():
    table, is_worse = against(bench(bucket(1, 0.0015, None)), bench(bucket(1, 0.0015, 0.001)))
    assert is_worse
    assert "stayed eager" in table.rows[0][-2]


def test_a_baseline_of_something_else_is_refused():
    with pytest.raises(GateError, match="in common"):
        against(REPORT, bench(bucket(1, 1, 1), model="other"))
