"""What counts as the same answer: as near to the truth as eager, decisions kept unless close."""

from __future__ import annotations

import numpy as np
import pytest

from server.engine.parity import compare

TRUTH = np.linspace(-1, 1, 2000)
NOISE = np.random.default_rng(0).standard_normal(2000)


def problem(eager, compiled, truth=None, precision="float32"):
    return compare(
        {"y": np.asarray(eager)},
        {"y": np.asarray(compiled)},
        None if truth is None else {"y": np.asarray(truth)},
        precision,
    ).problem


@pytest.mark.parametrize(
    ("eager", "compiled", "precision", "fine"),
    [
        (TRUTH, TRUTH, "float32", True),
        (TRUTH, TRUTH + 1e-5, "float32", True),
        (TRUTH, TRUTH + 2e-4, "float32", False),
        (TRUTH, TRUTH + 2e-4, "bfloat16", True),
        (TRUTH, TRUTH + 3e-2, "bfloat16", False),
        (np.float32(3), np.float32(3), "float32", True),
        (np.float32(3), np.float32(4), "float32", False),
        (np.zeros(4), np.zeros(4), "float32", True),
        (np.zeros(4), np.full(4, 0.1), "float32", False),
        (np.zeros((0, 3)), np.zeros((0, 3)), "float32", True),
    ],
)
def test_without_a_float64_reference_eager_is_the_truth(eager, compiled, precision, fine):
    assert (problem(eager, compiled, precision=precision) is None) == fine


def test_further_from_eager_than_the_tolerance_but_nearer_to_the_truth_is_fine():
    eager, compiled = TRUTH + 5e-2 * NOISE, TRUTH + 1e-2 * NOISE
    assert "differs from eager" in problem(eager, compiled, precision="bfloat16")
    assert problem(eager, compiled, TRUTH, "bfloat16") is None


def test_much_further_from_the_truth_than_eager_is_not():
    told = problem(TRUTH + 1e-5 * NOISE, TRUTH + 4e-5 * NOISE, TRUTH)
    assert told.startswith("y: RMSE to float64 is 4.0e-05, limit")


def test_one_wrong_element_among_many_is_found():
    wrong = TRUTH.copy()
    wrong[7] += 1e-3
    assert problem(TRUTH, wrong, TRUTH).startswith("y: differs from float64 by 1.0e-03, limit")


def test_another_direction_is_found():
    small = np.full(2000, 1e-3)
    small[0] = 1.0
    turned = small.copy()
    turned[1:] += 9e-3
    assert "cosine similarity" in problem(small, turned, precision="float16")


def test_another_choice_is_wrong_unless_it_is_a_close_call():
    truth = [1.0, 0.97, 0.0]
    off = [0.985, 0.985, 0.0]
    swapped = [0.983, 0.987, 0.0]
    assert problem(truth, off, truth, "bfloat16") is None
    told = problem(truth, swapped, truth, "bfloat16")
    assert told == "y: another largest value than float64, which is not a close call"
    assert problem([0.99, 0.98, 0.0], [0.98, 0.99, 0.0], precision="bfloat16") is None


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_what_is_not_finite_is_wrong_whoever_says_it(bad):
    assert problem([1.0, 2.0], [1.0, bad]) == "y: not finite"
    assert problem([1.0, bad], [1.0, bad]) == "y: not finite, nor is eager"
    assert problem([1.0, bad], [1.0, 2.0]) == "y: finite, which eager is not"


def test_another_shape_is_wrong():
    assert problem([1.0, 2.0], [1.0]) == "y: shape (1,), eager gives (2,)"


def integers(scores, eager, compiled, precision="float32"):
    floats = {} if scores is None else {"scores": np.asarray(scores)}
    return compare(
        floats | {"ids": np.asarray(eager)},
        floats | {"ids": np.asarray(compiled)},
        None,
        precision,
    ).problem


def test_integers_without_scores_are_exact():
    assert integers(None, [1, 2], [1, 2]) is None
    assert integers(None, [1, 2], [1, 3]) == "ids: 1 of 2 integers differ from eager"
    assert integers(None, 1, 2) == "ids: 1 of 1 integers differ from eager"
    assert integers([[0.5], [0.5]], [1, 2], [1, 3]) is not None


def test_ranked_integers_may_swap_where_their_scores_are_close():
    scores = [[5.0, 4.99, 1.0, 0.5]]
    assert integers(scores, [[7, 8, 9, 1]], [[8, 7, 9, 1]], "bfloat16") is None
    assert integers(scores, [[7, 8, 9, 1]], [[8, 7, 9, 1]], "float32") is not None
    assert integers(scores, [[7, 8, 9, 1]], [[7, 9, 8, 1]], "bfloat16") is not None
    # What comes after the last is not to be seen: it may be as good.
    assert integers(scores, [[7, 8, 9, 1]], [[7, 8, 9, 2]], "float32") is None


def test_the_best_may_be_another_where_its_margin_is_small():
    assert integers([[1.0, 0.99]], [0], [1], "bfloat16") is None
    assert integers([[1.0, 0.5]], [0], [1], "bfloat16") is not None
    assert integers([1.0, 0.99], 0, 1, "bfloat16") is None


def test_the_figures_are_the_worst_of_all_outputs():
    eager = {"a": np.ones(3), "b": np.ones(3)}
    compiled = {"a": np.ones(3), "b": np.full(3, 1.00001)}
    found = compare(eager, compiled, eager, "float32")
    assert found.max_abs_error == pytest.approx(1e-5)
    assert found.rmse == pytest.approx(1e-5)
    assert (found.eager_rmse, found.problem) == (0, None)
    assert found.cosine == pytest.approx(1)
