"""What a client gets back: bodies, headers and ids."""

from __future__ import annotations

from typing import Any

import numpy as np
import orjson
import pytest

from server.api.encode import problem, request_id, success, success_headers
from server.errors import InvalidInput, NotReady, Overloaded
from server.types import Mode, Reply, Timings
from tests.fakes import Double


def answer(predictions: list[Any], is_list: bool = False) -> Any:
    return orjson.loads(success(Double(), predictions, is_list))


def reply(mode: Mode = "eager", bucket: str = "1", fallback: str | None = None) -> Reply:
    return Reply({}, mode, bucket, Timings(queue_s=0.001, inference_s=0.0101), fallback)


def test_one_sample_gets_a_prediction_and_a_list_gets_a_list():
    assert answer([[1, 2]]) == {"model": "double", "prediction": [1, 2]}
    assert answer([[1, 2]], is_list=True) == {"model": "double", "predictions": [[1, 2]]}


@pytest.mark.parametrize(
    ("prediction", "expected"),
    [
        (np.array([0.1, 2], np.float32), [0.1, 2]),
        (np.array([[1, 2], [3, 4]]).T, [[1, 3], [2, 4]]),
        (np.array([0.5, 1], np.float16)[:1], [0.5]),
        (np.array(3.5), 3.5),
        ({"label": "cat", "score": np.float32(0.5)}, {"label": "cat", "score": 0.5}),
        ([float("nan")], [None]),
    ],
)
def test_numpy_is_json_whatever_its_layout(prediction: Any, expected: Any):
    assert answer([prediction])["prediction"] == expected


def test_what_is_not_json_raises_rather_than_being_sent():
    with pytest.raises(TypeError):
        answer([{1, 2}])


def test_answers_of_random_weights_say_so():
    model = Double()
    model.random_weights = True
    assert orjson.loads(success(model, [1], False))["warning"].startswith("random weights: ")


def test_headers_say_how_the_answer_was_made():
    assert success_headers("id", [reply("compiled", "4x16")], preprocess_s=0.0025) == {
        "Content-Type": "application/json",
        "X-Request-Id": "id",
        "X-Gearshift-Mode": "compiled",
        "X-Gearshift-Bucket": "4x16",
        "Server-Timing": "queue;dur=1.00, preprocess;dur=2.50, inference;dur=10.10",
    }


def test_headers_of_a_list_name_everything_that_happened_once():
    replies = [
        reply("compiled", "4"),
        reply("eager", "1", "recompile_prevented"),
        reply("eager", "4", "recompile_prevented"),
    ]
    headers = success_headers("id", replies, 0)
    assert headers["X-Gearshift-Mode"] == "mixed"
    assert headers["X-Gearshift-Bucket"] == "4, 1"
    assert headers["X-Gearshift-Fallback"] == "recompile_prevented"


def test_the_times_are_those_of_the_slowest_sample():
    fast, slow = Timings(0.001, 0.002), Timings(0.003, 0.001)
    replies = [Reply({}, "eager", "2", timings) for timings in (fast, slow)]
    timing = success_headers("id", replies, 0)["Server-Timing"]
    assert timing == "queue;dur=3.00, preprocess;dur=0.00, inference;dur=2.00"


def test_a_problem_tells_all_of_the_error():
    status, headers, body = problem(InvalidInput("x: expected 4 numbers"), "id")
    assert status == 422
    assert headers == {"Content-Type": "application/problem+json", "X-Request-Id": "id"}
    assert orjson.loads(body) == {
        "type": "urn:gearshift:problem:invalid-input",
        "title": "Invalid input",
        "status": 422,
        "detail": "x: expected 4 numbers",
        "request_id": "id",
    }


@pytest.mark.parametrize(("seconds", "header"), [(0, "1"), (0.2, "1"), (1.01, "2"), (30, "30")])
def test_retry_after_is_whole_seconds_and_never_too_early(seconds: float, header: str):
    _, headers, _ = problem(Overloaded("full", retry_after_s=seconds), "id")
    assert headers["Retry-After"] == header


def test_kinds_of_one_status_are_told_apart_by_their_type():
    status, headers, body = problem(NotReady("warming up"), "id")
    assert (status, orjson.loads(body)["type"]) == (503, "urn:gearshift:problem:not-ready")
    assert "Retry-After" not in headers


@pytest.mark.parametrize("incoming", ["a", "0af7-6519:16cd/43dd@host=1+2._", "x" * 128])
def test_a_safe_request_id_is_kept(incoming: str):
    assert request_id(incoming) == incoming


@pytest.mark.parametrize("incoming", [None, "", "x" * 129, "a b", "a\n", "é", "a;b", '"a"'])
def test_any_other_request_id_is_replaced_by_a_new_one(incoming: str | None):
    made = request_id(incoming)
    assert made != incoming
    assert request_id(made) == made
    assert made != request_id(incoming)
