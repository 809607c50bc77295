"""The server as a process: how it comes up, refuses to, and goes."""

from __future__ import annotations

import signal
import socket

import psutil
import pytest

pytestmark = pytest.mark.e2e

DOUBLE = ("--model", "double=tests.fakes:Double")


def test_http_is_up_before_the_model_is_and_tells_how_far_it_is(start):
    server = start(*DOUBLE, "--mode", "compiled", wait=False)
    while server.status("/livez") is None:
        assert server.process.poll() is None
    first = server.http.get("/readyz")
    assert first.status_code == 503
    assert first.json()["models"]["double"]["state"] in ("loading", "warming")
    refused = server.http.post("/predict", json={"x": [1, 2, 3, 4]})
    assert refused.status_code == 503
    assert refused.json()["title"] == "Not ready"
    assert int(refused.headers["Retry-After"]) >= 1
    server.wait_ready()
    told = server.http.get("/readyz").json()["models"]["double"]
    assert (told["buckets_done"], told["buckets_total"]) == (4, 4)
    assert server.http.post("/predict", json={"x": [1, 2, 3, 4]}).status_code == 200


def test_a_second_start_takes_its_code_from_the_cache(start):
    for _ in range(2):
        server = start(*DOUBLE, "--mode", "compiled", "--max-batch-size", "1")
        (model,) = server.http.get("/info").json()["models"]
        assert server.stop() == 0
    assert [bucket["cache"] for bucket in model["buckets"]] == ["hit"]


@pytest.mark.parametrize("stop", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_every_process_and_leaves_nothing_behind(start, stop):
    server = start(*DOUBLE, "--api-processes", "2")
    processes = psutil.Process(server.process.pid).children(recursive=True)
    assert len(processes) >= 3  # two API processes and the worker
    assert server.stop(stop) == 0
    assert psutil.wait_procs(processes, timeout=10)[1] == []
    assert [path.name for path in server.log.parent.iterdir()] == ["log"]
    assert "Traceback" not in server.log.read_text()


def test_a_main_process_that_is_killed_leaves_no_orphans(start):
    server = start(*DOUBLE, "--api-processes", "2")
    processes = psutil.Process(server.process.pid).children(recursive=True)
    server.process.kill()
    assert psutil.wait_procs(processes, timeout=20)[1] == []


@pytest.mark.parametrize(
    ("flags", "code", "says"),
    [
        (["--model", "nope"], 2, "nope"),
        (["--mode", "fast"], 2, "mode = 'fast': input should be 'eager', 'compiled' or 'auto'"),
        (["--mode", "auto"], 2, "not available yet; use 'eager' or 'compiled'"),
        (["--device", "cuda:99", *DOUBLE], 3, "device = 'cuda:99': torch sees"),
        (["--model", "resnet50", "--weights", "none.pth"], 2, "none.pth"),
    ],
)
def test_what_cannot_be_served_ends_with_its_reason_and_exit_code(start, flags, code, says):
    server = start(*flags, wait=False)
    assert server.process.wait(120) == code
    assert says in server.log.read_text()
    assert "Traceback" not in server.log.read_text()


def test_a_port_in_use_is_named(start):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        server = start(*DOUBLE, "--port", str(taken.getsockname()[1]), wait=False)
        assert server.process.wait(60) == 3
    assert "choose another with --port" in server.log.read_text()
