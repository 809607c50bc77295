"""Processes that die, hang or are told to end, with requests in flight: nobody's answer is lost."""

from __future__ import annotations

import signal
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager

import httpx
import psutil
import pytest

from tests.e2e.processes import children, wait_until
from tests.e2e.test_requests import metric

pytestmark = pytest.mark.e2e

FRAGILE = ("--model", "fragile=tests.fakes:Fragile", "--max-batch-size", "4", "--threads", "1")
CONFIG = """
[server]
request_timeout_s = 120
drain_timeout_s = {drain_timeout_s}
max_restarts = {max_restarts}
[batching]
inference_timeout_s = 3
"""
IN_FLIGHT = 16


@pytest.fixture(scope="module")
def launch(start, tmp_path_factory):
    def run(*flags: str, drain_timeout_s: int = 60, max_restarts: int = 5):
        file = tmp_path_factory.mktemp("config") / "config.toml"
        keys = {"drain_timeout_s": drain_timeout_s, "max_restarts": max_restarts}
        file.write_text(CONFIG.format(**keys))
        return start(*FRAGILE, "--config", str(file), *flags)

    return run


@pytest.fixture(scope="module")
def server(launch):
    return launch("--api-processes", "2")


def ask(server, first: float) -> httpx.Response:
    with httpx.Client(base_url=server.http.base_url, timeout=120) as http:
        return http.post("/predict", json={"x": [first, 0, 0, 0]})


@contextmanager
def in_flight(server, firsts):
    """The requests, sent side by side to a server that is ready, and every one of them admitted."""
    wait_until(lambda: metric(server, "gearshift_ready") == 1)  # in every API process
    before = seen(server)
    with ThreadPoolExecutor(len(firsts)) as pool:
        sent = [pool.submit(ask, server, first) for first in firsts]
        wait_until(lambda: seen(server) == before + len(firsts))
        yield sent


def seen(server) -> float:
    """Requests that were admitted, answered or not."""
    return metric(server, "gearshift_inflight_requests") + answered(server)


def answered(server) -> float:
    return metric(server, "gearshift_requests_total")


def outcomes(sent: list[Future[httpx.Response]]) -> list[int]:
    return [future.result().status_code for future in sent]


def test_a_worker_that_is_killed_loses_none_of_sixteen_requests(server):
    restarts = metric(server, "gearshift_worker_restarts_total")
    (worker,) = children(server, "worker")
    with in_flight(server, range(20, 20 + IN_FLIGHT)) as sent:
        worker.kill()
        wait_until(lambda: server.status("/readyz") == 503)
        refused = ask(server, 1)
        assert (refused.status_code, refused.json()["title"]) == (503, "Not ready")
        assert int(refused.headers["Retry-After"]) >= 1
    for first, future in zip(range(20, 20 + IN_FLIGHT), sent, strict=True):
        answer = future.result()
        assert answer.status_code == 200, answer.text
        assert answer.json()["prediction"] == [2 * first, 0, 0, 0]
    assert server.status("/readyz") == 200
    assert metric(server, "gearshift_worker_restarts_total") == restarts + 1


def test_a_request_that_kills_the_worker_fails_alone_and_not_for_ever(server):
    restarts = metric(server, "gearshift_worker_restarts_total")
    with in_flight(server, [20, 13, 21, 22, 23, 24]) as sent:
        pass
    assert outcomes(sent) == [200, 500, 200, 200, 200, 200]
    # The last answer may be there before the worker after the second death is started.
    wait_until(lambda: metric(server, "gearshift_worker_restarts_total") >= restarts + 2)
    assert metric(server, "gearshift_worker_restarts_total") == restarts + 2


def test_a_batch_that_never_ends_gets_503_and_those_behind_it_their_answers(server):
    with in_flight(server, [14]) as stuck, in_flight(server, [20, 21, 22, 23]) as behind:
        pass
    assert outcomes(stuck) == [503]
    assert int(stuck[0].result().headers["Retry-After"]) >= 1
    assert outcomes(behind) == [200] * 4
    assert "batching.inference_timeout_s = 3 s" in server.log.read_text()


def test_an_idle_worker_that_is_stopped_is_replaced_before_its_requests_are_lost(server):
    restarts = metric(server, "gearshift_worker_restarts_total")
    (worker,) = children(server, "worker")
    worker.suspend()
    assert ask(server, 20).status_code == 200
    assert metric(server, "gearshift_worker_restarts_total") == restarts + 1


def test_of_two_workers_one_answers_while_the_other_starts_again(launch):
    server = launch("--workers", "2")
    wait_until(lambda: workers_ready(server) == 2)
    first, _ = children(server, "worker")
    with in_flight(server, range(20, 20 + IN_FLIGHT)) as sent:
        first.kill()
        wait_until(lambda: workers_ready(server) == 1)
        assert server.status("/readyz") == 200
        assert ask(server, 1).json()["prediction"] == [2, 0, 0, 0]
        assert workers_ready(server) == 1
    assert outcomes(sent) == [200] * IN_FLIGHT
    wait_until(lambda: workers_ready(server) == 2)
    both = children(server, "worker")
    # What kills one is sent to the other alone, and then no further.
    with in_flight(server, [20, 13, 21, 22, 23, 24]) as sent:
        pass
    assert outcomes(sent) == [200, 500, 200, 200, 200, 200]
    wait_until(lambda: workers_ready(server) == 2)
    assert not set(both) & set(children(server, "worker"))


def workers_ready(server) -> int:
    told = server.http.get("/readyz").json()["models"]
    return next(iter(told.values()))["workers_ready"]


def test_an_api_process_that_is_killed_is_replaced_and_counts_on(server):
    before = answered(server)
    for process in children(server, "api"):
        process.kill()
    wait_until(lambda: len(children(server, "api")) == 2)
    wait_until(lambda: server.status("/readyz") == 200)
    assert ask(server, 20).status_code == 200
    assert answered(server) == before + 1
    assert metric(server, "gearshift_api_restarts_total") == 2
    assert metric(server, "gearshift_inflight_requests") == 0


def test_sigterm_under_load_answers_what_was_admitted_and_ends_everything(server):
    processes = psutil.Process(server.process.pid).children(recursive=True)
    with in_flight(server, range(20, 20 + IN_FLIGHT)) as sent:
        server.process.send_signal(signal.SIGTERM)
    assert outcomes(sent) == [200] * IN_FLIGHT
    assert server.process.wait(60) == 0
    assert psutil.wait_procs(processes, timeout=10)[1] == []
    assert [path.name for path in server.log.parent.iterdir()] == ["log"]


def test_a_worker_that_never_comes_up_again_ends_the_server_with_the_reason(launch):
    server = launch(max_restarts=1)
    (server.log.parent / "unlucky").touch()
    with in_flight(server, [20, 21]) as sent:
        children(server, "worker")[0].kill()
    assert outcomes(sent) == [503, 503]
    assert server.process.wait(60) == 3
    assert "killed by SIGKILL; started again 1 times (server.max_restarts)" in (
        server.log.read_text()
    )


def test_what_the_drain_time_does_not_reach_gets_503(launch):
    server = launch(drain_timeout_s=1)
    with in_flight(server, range(20, 60)) as sent:  # ten batches: two seconds
        server.process.send_signal(signal.SIGINT)
    assert set(outcomes(sent)) == {200, 503}
    assert server.process.wait(60) == 0


def test_a_second_signal_ends_it_at_once(launch):
    server = launch()
    processes = psutil.Process(server.process.pid).children(recursive=True)
    with ThreadPoolExecutor(1) as pool:
        cut_off = pool.submit(ask, server, 14)
        wait_until(lambda: metric(server, "gearshift_inflight_requests") == 1)
        server.process.send_signal(signal.SIGTERM)
        wait_until(lambda: server.status("/livez") is None)
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(10) == 130
        assert isinstance(cut_off.exception(), httpx.TransportError)
    assert psutil.wait_procs(processes, timeout=10)[1] == []
