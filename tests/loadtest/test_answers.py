"""Which answers pass under load."""

import pytest

from loadtest.answers import is_right

RANKING = [{"label": "a", "score": 0.5}, {"label": "b", "score": 0.3}, {"label": "c", "score": 0.3}]


def ranked(*entries):
    return [{"label": label, "score": score} for label, score in entries]


@pytest.mark.parametrize(
    ("answer", "reference"),
    [
        ([1.0001, -0.0009], [1.0, 0.0]),
        ({"n": 3, "y": [2.0]}, {"n": 3, "y": [2.0]}),
        (ranked(("a", 0.5), ("c", 0.3), ("b", 0.3)), RANKING),
        (ranked(("a", 0.5), ("b", 0.3), ("d", 0.3)), RANKING),
    ],
)
def test_rounding_is_right(answer, reference):
    assert is_right(answer, reference, 1e-3)


@pytest.mark.parametrize(
    ("answer", "reference"),
    [
        ([1.002], [1.0]),
        ([1.0], [1.0, 2.0]),
        ([None], [1.0]),
        ({"n": 4, "y": 2.0}, {"n": 3, "y": 2.0}),
        ({"y": 2.0}, {"y": 2.0, "z": 1.0}),
        (ranked(("b", 0.5), ("a", 0.3), ("c", 0.3)), RANKING),
        (ranked(("d", 0.5), ("b", 0.3), ("c", 0.3)), RANKING),
    ],
)
def test_anything_else_is_wrong(answer, reference):
    assert not is_right(answer, reference, 1e-3)
