"""Sends load by way of locust and keeps what came of every request.

Closed: users that wait for their answers. Open: arrivals that wait for nobody; what is due while
the server stalls is late from the moment it was due. Knows nothing of who is compared with whom.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import gevent
import numpy as np
from gevent.pool import Group
from locust import FastHttpUser, constant, task
from locust.env import Environment
from locust.exception import StopUser

from loadtest.answers import is_right
from loadtest.inputs import SOURCES, Body, json_bodies
from loadtest.scenario import Scenario

LEAD_S = 0.5  # at the start of a run connections are made; what is due then is not kept
PATIENCE_S = 60.0
MOST_AT_ONCE = 2000


@dataclass(frozen=True, slots=True)
class Request:
    """A body, where it goes, and the answer it should get (None: whatever comes)."""

    path: str
    body: Body
    reference: Any
    tolerance: float


@dataclass(slots=True)
class Records:
    """What came of the requests that were due within `seconds` of `begin`. `every_s` has the
    latency of all, as the server cannot leave the others out of its figures."""

    begin: float
    seconds: float
    right: list[tuple[float, float, str]] = field(default_factory=list)
    failures: Counter[str] = field(default_factory=Counter)
    every_s: list[float] = field(default_factory=list)

    def keep(self, due: float, latency_s: float, bucket: str, problem: str | None) -> None:
        """One request: when it was due, and the seconds from then to its answer."""
        self.every_s.append(latency_s)
        start = due - self.begin
        if not 0 <= start < self.seconds:
            return
        if problem is None:
            self.right.append((round(start, 4), round(latency_s, 6), bucket))
        else:
            self.failures[problem] += 1


class Sender(FastHttpUser):
    """Sends requests in a seeded order and judges the answers."""

    abstract = True
    wait_time = constant(0)
    network_timeout = connection_timeout = PATIENCE_S
    concurrency = MOST_AT_ONCE
    requests: ClassVar[Iterator[Request]]
    records: ClassVar[Records]

    def send(self, request: Request, due: float) -> None:
        """One request that is, or was, due at `due` (time.perf_counter)."""
        headers = {"Content-Type": request.body.content_type}
        content: Any = request.body.content  # locust's types know texts alone
        with self.client.post(
            request.path, data=content, headers=headers, catch_response=True
        ) as response:
            latency_s = time.perf_counter() - due
            problem = _problem(request, response)
            # What locust shows is from when it was due, too.
            response.request_meta["response_time"] = latency_s * 1e3
            if problem is None:
                response.success()
            else:
                response.failure(problem)
            bucket = (response.headers or {}).get("X-Gearshift-Bucket", "-")
            self.records.keep(due, latency_s, bucket, problem)


class ClosedLoop(Sender):
    """A client that asks, waits for the answer, and asks again."""

    abstract = True

    @task
    def ask(self) -> None:
        self.send(next(self.requests), time.perf_counter())


class OpenLoop(Sender):
    """Everybody else: requests come when they are due."""

    abstract = True
    fixed_count = 1
    due: ClassVar[Sequence[float]]

    @task
    def arrive(self) -> None:
        in_flight = Group()
        for due in self.due:
            gevent.sleep(max(0.0, due - time.perf_counter()))
            in_flight.spawn(self.send, next(self.requests), due)
        in_flight.join(PATIENCE_S)
        raise StopUser


def _problem(request: Request, response: Any) -> str | None:
    """Why the answer is no good; None when it is."""
    if response.status_code == 0:
        return type(response.error).__name__
    if response.status_code != 200:
        return f"status {response.status_code}"
    if request.reference is None:
        return None
    try:
        answer = json.loads(response.content)
    except ValueError:
        return "not JSON"
    return None if is_right(answer, request.reference, request.tolerance) else "wrong answer"


def make_requests(scenario: Scenario) -> list[tuple[float, list[Request]]]:
    """The requests of a scenario by kind, with the weight of each kind; no references yet."""
    return [
        (
            kind.weight,
            [
                Request(f"/models/{kind.name}/predict", body, None, kind.tolerance)
                for body in (SOURCES[kind.inputs]() if kind.inputs else json_bodies(kind.samples))
            ],
        )
        for kind in scenario.requests
    ]


def endless(kinds: Sequence[tuple[float, Sequence[Request]]]) -> Iterator[Request]:
    """Requests drawn by weight; the same order every time."""
    random = np.random.default_rng(0)
    weights = np.array([weight for weight, _ in kinds])
    while True:
        kind = kinds[random.choice(len(kinds), p=weights / weights.sum())][1]
        yield kind[int(random.integers(len(kind)))]


def closed(url: str, requests: Iterator[Request], users: int, seconds: float) -> Records:
    """`users` clients for `seconds`; each may finish what it began."""
    records = Records(time.perf_counter() + LEAD_S, seconds)
    kind = type("Closed", (ClosedLoop,), {"requests": requests, "records": records})
    environment = Environment(user_classes=[kind], host=url, stop_timeout=PATIENCE_S)
    runner = environment.create_local_runner()
    runner.start(users, spawn_rate=users)
    try:
        # Not one sleep: gevent's clock stands still while Python is busy, and it ends too soon.
        while (left_s := records.begin + seconds - time.perf_counter()) > 0:
            gevent.sleep(left_s)
    finally:
        runner.quit()
    runner.greenlet.join()
    return records


def opened(
    url: str, requests: Iterator[Request], rate: float, burst: int, seconds: float
) -> Records:
    """`rate` arrivals a second in bursts of `burst`, for `seconds`; all answers are waited for."""
    first = time.perf_counter() + 0.1
    records = Records(first + LEAD_S, seconds)
    count = int((LEAD_S + seconds) * rate / burst) * burst
    due = [first + n // burst * burst / rate for n in range(count)]
    kind = type("Open", (OpenLoop,), {"requests": requests, "records": records, "due": due})
    environment = Environment(user_classes=[kind], host=url)
    runner = environment.create_local_runner()
    runner.start(1, spawn_rate=1)
    try:
        while runner.user_count or runner.state in ("ready", "spawning"):
            gevent.sleep(0.01)
    finally:
        runner.quit()
    runner.greenlet.join()
    return records
