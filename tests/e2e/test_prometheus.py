"""Dashboards and rules against a real Prometheus that scrapes both modes under load."""

from __future__ import annotations

import json
import re
import subprocess
import threading
import time
from bisect import bisect_left
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import httpx
import numpy as np
import psutil
import pytest
import yaml

from server.latency import RELATIVE_ACCURACY
from server.metrics import DURATION_BOUNDARIES_S
from tests.e2e.prometheus import DEPLOY, need, scraping
from tests.e2e.test_requests import metric

pytestmark = pytest.mark.e2e

REQUESTS = 400
SLOW_MS = 160
# What only CUDA has: no series here, and rightly so.
CUDA_ONLY = re.compile(r'kind="(reserved|process|graph_pool|free|total)"')


def expressions() -> list[tuple[str, str]]:
    """(panel, expression) of every dashboard, its variables filled in."""
    filled = {"$job": "gearshift", "$model": ".*", "$__rate_interval": "30s"}
    found = []
    for path in sorted((DEPLOY / "grafana" / "dashboards").glob("*.json")):
        for panel in json.loads(path.read_text())["panels"]:
            for target in panel.get("targets", ()):
                expression = target["expr"]
                for name, value in filled.items():
                    expression = expression.replace(name, value)
                found.append((panel["title"], expression))
    return found


def alert_expressions() -> list[tuple[str, str]]:
    """(alert, expression without its last comparison): what is compared."""
    rules = yaml.safe_load((DEPLOY / "prometheus" / "alerts.yml").read_text())["groups"][0]["rules"]
    return [
        (rule["alert"], re.sub(r" (==|<|>) [\d.]+$", "", rule["expr"].strip())) for rule in rules
    ]


class World:
    """Both modes and one more server, Prometheus, and what a client measured of the load."""

    def __init__(self, servers, prometheus):
        self.servers = servers
        self.prometheus = prometheus
        self.seconds = {mode: {} for mode in servers}
        self.before = {}  # what was counted before Prometheus looked for the first time

    def load(self):
        """The same requests to both modes: 3 % take much longer."""
        for mode, server in self.servers.items():
            self._ask(mode, server, 1, REQUESTS)
            self.before[mode] = device_time(server)
            self.prometheus.wait_for(f'gearshift_request_duration_seconds_count{{mode="{mode}"}}')
        with ThreadPoolExecutor(4) as pool:
            for mode, server in self.servers.items():
                for at in range(REQUESTS):
                    pool.submit(self._ask, mode, server, SLOW_MS if at % 33 == 0 else 4, at)
        for mode in self.servers:
            count = f'gearshift_request_duration_seconds_count{{mode="{mode}"}}'
            self.prometheus.wait_for(f"{count} == {REQUESTS + 1}")
        time.sleep(2)  # the rules see it too

    def _ask(self, mode, server, delay_ms, at):
        request_id = f"{mode}-{at}"
        started = time.perf_counter()
        answer = server.http.post(
            "/predict", json={"x": [1, 2, 3, delay_ms]}, headers={"X-Request-Id": request_id}
        )
        self.seconds[mode][request_id] = time.perf_counter() - started
        assert answer.json()["prediction"] == [2, 4, 6, 2 * delay_ms]


def device_time(server):
    """Seconds spent on batches, and how many there were."""
    name = "gearshift_inference_duration_seconds"
    return np.array([metric(server, f"{name}_sum"), metric(server, f"{name}_count")])


@pytest.fixture(scope="module")
def spare(start):
    """A server with two HTTP processes, for the test that kills its worker."""
    return start(
        *("--model", "double=tests.fakes:Double", "--api-processes", "2"),
        *("--max-batch-size", "4"),
        wait=False,
    )


@pytest.fixture(scope="module")
def world(start, spare, tmp_path_factory):
    need("prometheus", "promtool")
    paced = ("--model", "paced=tests.fakes:Paced", "--max-batch-size", "1")
    servers = {mode: start(*paced, "--mode", mode, wait=False) for mode in ("eager", "compiled")}
    for server in (*servers.values(), spare):
        server.wait_ready()
    jobs = {
        "gearshift": [server.http.base_url.port for server in servers.values()],
        "spare": [spare.http.base_url.port],
    }
    with scraping(jobs, tmp_path_factory.mktemp("prometheus")) as prometheus:
        world = World(servers, prometheus)
        world.load()
        yield world


def test_every_panel_has_data(world):
    for title, expression in expressions():
        if not CUDA_ONLY.search(expression):
            assert world.prometheus.query(expression), (title, expression)


def test_every_rule_is_healthy_and_what_it_compares_has_data(world):
    rules = world.prometheus.rules()
    assert {rule["health"] for rule in rules} == {"ok"}
    for rule in rules:
        if rule["type"] == "recording":
            assert world.prometheus.query(rule["name"]), rule["name"]
    for name, expression in alert_expressions():
        if not CUDA_ONLY.search(expression):
            assert world.prometheus.query(expression), name


def test_promtool_finds_nothing_to_say_about_the_metrics(world):
    for server in world.servers.values():
        text = server.http.get("/metrics").text
        ran = subprocess.run(
            ["promtool", "check", "metrics"], input=text, capture_output=True, text=True
        )
        assert (ran.returncode, ran.stdout, ran.stderr) == (0, "", "")


@pytest.mark.parametrize("mode", ["eager", "compiled"])
def test_latency_is_what_the_client_measured(world, mode):
    client = float(np.quantile(list(world.seconds[mode].values()), 0.99, method="higher"))
    value = world.prometheus.value
    # The server's time of a request is part of the client's.
    counted = value(f'gearshift_request_latency_seconds{{mode="{mode}",quantile="0.99"}}')
    assert client / 2 < counted < client * (1 + RELATIVE_ACCURACY)
    # A histogram knows no more than the boundaries around it.
    recorded = value(f'model_mode:gearshift_request_duration_seconds:p99_5m{{mode="{mode}"}}')
    boundary = DURATION_BOUNDARIES_S[bisect_left(DURATION_BOUNDARIES_S, client)]
    assert client / 2 < recorded <= boundary


def test_the_verdict_is_that_of_the_servers_own_counts(world):
    means, warmups, resident = {}, {}, {}
    for mode, server in world.servers.items():
        seconds, batches = device_time(server) - world.before[mode]
        means[mode] = seconds / batches
        warmups[mode] = server.http.get("/info").json()["models"][0]["warmup_s"]
        resident[mode] = metric(server, "gearshift_worker_resident_memory_bytes")
    value = world.prometheus.value
    speedup = value("model:gearshift_speedup:ratio5m")
    assert speedup == pytest.approx(means["eager"] / means["compiled"], rel=0.05)
    saved = means["eager"] - means["compiled"]
    break_even = value("model:gearshift_break_even:samples")
    assert break_even == pytest.approx((warmups["compiled"] - warmups["eager"]) / saved, rel=0.05)
    (more,) = (e for title, e in expressions() if "more memory" in title and "resident" in e)
    assert value(more) == pytest.approx(resident["compiled"] - resident["eager"], rel=0.2)


def test_a_slow_request_can_be_found_by_its_id(world):
    kept = world.prometheus.exemplars("gearshift_request_duration_seconds_bucket")
    slow = [one for one in kept if float(one["value"]) > SLOW_MS / 1000]
    assert slow
    measured = world.seconds["eager"] | world.seconds["compiled"]
    for exemplar in slow:
        assert float(exemplar["value"]) <= measured[exemplar["labels"]["request_id"]]


def test_a_killed_worker_neither_resets_nor_invents_a_count(world, spare):
    answers = Counter()
    stop = threading.Event()

    def client():
        with httpx.Client(base_url=spare.http.base_url, timeout=60) as http:
            while not stop.is_set():
                answers[http.post("/predict", json={"x": [1, 2, 3, 4]}).status_code] += 1

    clients = [threading.Thread(target=client) for _ in range(4)]
    for thread in clients:
        thread.start()
    time.sleep(3)
    children = psutil.Process(spare.process.pid).children()
    (worker,) = (child for child in children if "spawn_main" in " ".join(child.cmdline()))
    worker.kill()
    world.prometheus.wait_for('gearshift_ready{job="spare"} == 0')
    world.prometheus.wait_for('gearshift_ready{job="spare"} == 1')
    time.sleep(2)
    stop.set()
    for thread in clients:
        thread.join()

    world.prometheus.wait_for(
        f'sum(gearshift_requests_total{{job="spare"}}) == {sum(answers.values())}'
    )
    ok = world.prometheus.value('sum(gearshift_requests_total{job="spare",outcome="ok"})')
    assert ok == answers[200]
    counters = '{job="spare",__name__=~"gearshift_.+_(total|count|sum|bucket)"}'
    for series in world.prometheus.query(f"count by (__name__) ({counters})"):
        name = series["metric"]["__name__"]
        assert world.prometheus.value(f'sum(resets({name}{{job="spare"}}[5m]))') == 0, name
    batched = world.prometheus.value('sum(gearshift_batch_size_sum{job="spare"})')
    assert batched == pytest.approx(ok, abs=8)  # the killed worker may have run what it never sent
    assert world.prometheus.value('gearshift_worker_restarts_total{job="spare"}') == 1
