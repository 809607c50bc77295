"""Many requests of mixed shapes from many connections: nothing compiles, nobody gets another's
answer."""

from __future__ import annotations

import http.client
import json
import random
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import pytest

from tests.e2e.test_requests import metric
from tests.models.test_transformers import save

pytestmark = pytest.mark.e2e

REQUESTS = 20_000
CONNECTIONS = 16
WORDS = ["the", "a", "cat", "dog", "sat", "ran", "on", "mat", "is", "it", "good", "paris", "in"]


@dataclass(frozen=True)
class Case:
    """One request and, from an eager server, its answer."""

    path: str
    body: bytes
    expected: np.ndarray


@pytest.fixture(scope="module")
def servers(start, tmp_path_factory):
    bert = save(tmp_path_factory.mktemp("bert"))
    flags = (
        *("--model", "colors=tests.fakes:Colors", "--model", f"bert=transformers:{bert}"),
        *("--model", "lstm", "--threads", "1"),
    )
    eager = start(*flags, "--mode", "eager", wait=False)
    compiled = start(*flags, "--mode", "compiled", "--max-batch-size", "4", wait=False)
    for server in (eager, compiled):
        server.wait_ready()
    return eager, compiled


def bodies() -> list[tuple[str, bytes]]:
    """Every length of text and series that a bucket can hold, and pictures as raw pixels."""
    rng = np.random.default_rng(0)
    texts = [{"text": " ".join(rng.choice(WORDS, count))} for count in range(1, 60)]
    series = [{"series": (20 + rng.normal(size=n)).round(3).tolist()} for n in range(12, 129)]
    pixels = [rng.random((3, 8, 8)).round(4).astype("<f4") for _ in range(50)]
    return [
        *(("/models/bert/predict", json.dumps(body).encode()) for body in texts),
        *(("/models/lstm/predict", json.dumps(body).encode()) for body in series),
        *(("/models/colors/predict", array.tobytes()) for array in pixels),
    ]


def post(connection: http.client.HTTPConnection, path: str, body: bytes) -> np.ndarray:
    headers = {"Content-Type": "application/json"}
    if path == "/models/colors/predict":
        headers = {
            "Content-Type": "application/octet-stream",
            "X-Tensor-Dtype": "float32",
            "X-Tensor-Shape": "3,8,8",
        }
    connection.request("POST", path, body, headers)
    answer = connection.getresponse()
    content = answer.read()
    assert answer.status == 200, content
    return numbers(json.loads(content)["prediction"])


def numbers(prediction: Any) -> np.ndarray:
    """All numbers of a prediction, in a row."""
    if isinstance(prediction, dict):
        return np.concatenate([numbers(part) for part in prediction.values()])
    return np.atleast_1d(prediction)


def connect(server) -> http.client.HTTPConnection:
    address = urlsplit(str(server.http.base_url))
    return http.client.HTTPConnection(address.hostname, address.port, timeout=60)


def test_twenty_thousand_mixed_requests_each_get_their_own_answer_and_nothing_compiles(servers):
    eager, compiled = servers
    reference = connect(eager)
    cases = [Case(path, body, post(reference, path, body)) for path, body in bodies()]
    reference.close()

    def client(seed: int) -> float:
        chooser, connection, worst = random.Random(seed), connect(compiled), 0.0
        for _ in range(REQUESTS // CONNECTIONS):
            case = chooser.choice(cases)
            error = np.abs(post(connection, case.path, case.body) - case.expected).max()
            worst = max(worst, float(error))
        connection.close()
        return worst

    with ThreadPoolExecutor(CONNECTIONS) as pool:
        worst = max(pool.map(client, range(CONNECTIONS)))
    assert worst < 1e-3  # another's answer is off by far more
    assert metric(compiled, "gearshift_compiles_total", phase="serving") == 0
    assert metric(compiled, "gearshift_recompiles_prevented_total") == 0
    assert metric(compiled, "gearshift_eager_fallbacks_total") == 0
    assert metric(compiled, "gearshift_requests_total", outcome="ok") == REQUESTS


def test_the_cases_are_far_enough_apart_to_notice_a_mix_up(servers):
    """What the stress test rests on: no two inputs of a kind have the same answer."""
    eager, _ = servers
    connection = connect(eager)
    for kind in ("bert", "lstm", "colors"):
        answers = [post(connection, path, body) for path, body in bodies() if f"/{kind}/" in path]
        apart = [
            np.abs(one - two).max() for index, one in enumerate(answers) for two in answers[:index]
        ]
        assert np.quantile(apart, 0.01) > 1e-3
    connection.close()
