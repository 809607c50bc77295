"""Two workers under one server: the load is shared, counted once, and answered alike."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from tests.e2e.processes import children, wait_for_workers
from tests.e2e.test_requests import metric

pytestmark = pytest.mark.e2e

CLIENTS = 8
TEXTS = [f"{n} words of a text that is as long as its number: {'and on ' * n}" for n in range(16)]


@pytest.fixture(scope="module")
def server(start):
    flags = ("--workers", "2", "--max-batch-size", "1", "--api-processes", "2")
    server = start("--model", "signed=tests.fakes:Signed", *flags)
    wait_for_workers(server, 2)
    return server


def test_the_load_is_shared_and_every_request_is_counted_once(server):
    def ask(n: int) -> int:
        answer = server.http.post("/predict", json={"x": [n, 0, 0, 0]})
        assert answer.status_code == 200
        assert answer.json()["prediction"][0] == n
        return int(answer.json()["prediction"][3])

    count = 25 * CLIENTS
    with ThreadPoolExecutor(CLIENTS) as clients:
        ran = Counter(clients.map(ask, range(count)))
    assert set(ran) == {worker.pid for worker in children(server, "worker")}
    assert min(ran.values()) >= count / 4
    labels = {"model": "signed", "mode": "eager"}
    counted = {
        name: metric(server, f"gearshift_{name}", **labels)
        for name in (
            "requests_total",
            "request_duration_seconds_count",
            "queue_duration_seconds_count",
            "inference_duration_seconds_count",
            "batch_size_sum",
        )
    }
    assert counted == dict.fromkeys(counted, count)


def test_a_real_model_answers_alike_in_both(start):
    server = start("--model", "all-MiniLM-L6-v2", "--workers", "2", "--threads", "1")
    wait_for_workers(server, 2)

    def ask(text: str) -> list[float]:
        answer = server.http.post("/predict", json={"text": text})
        assert answer.status_code == 200
        return answer.json()["prediction"]["embedding"]

    alone = [ask(text) for text in TEXTS]  # the first worker answers these
    with ThreadPoolExecutor(CLIENTS) as clients:
        together = list(clients.map(ask, TEXTS))
    np.testing.assert_allclose(together, alone, atol=1e-5)
