"""More than the server can do, and clients that leave: who gets in, who is told what, and that
every request ends once."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from dataclasses import dataclass

import pytest

from tests.e2e.raw import Answer, ask, hang_up, json_message
from tests.e2e.test_requests import metric

pytestmark = pytest.mark.e2e

MAX_QUEUE = 64
BATCH = 4
CONFIG = f"""
[batching]
max_batch_size = {BATCH}
max_queue = {MAX_QUEUE}
"""
NAMES = ("gone", "told", "loaded", "mixed", "late", "lists")


@pytest.fixture(scope="module")
def server(start, tmp_path_factory):
    """One worker; a model for each test, so that each counts from 0."""
    file = tmp_path_factory.mktemp("overload") / "config.toml"
    file.write_text(CONFIG)
    models = [flag for name in NAMES for flag in ("--model", f"{name}=tests.fakes:Sleeps")]
    models += ["--model", "raises=tests.fakes:Raises"]
    return start("--config", str(file), *models, "--mode", "eager")


def sample(seconds: float) -> dict[str, list[float]]:
    return {"x": [seconds, 0, 0, 0]}


def ask_for(name: str, body: object, **headers: str) -> bytes:
    return json_message(f"/models/{name}/predict", body, **headers)


async def post(server, name: str, body: object, **headers: str) -> Answer:
    return await ask(server, ask_for(name, body, **headers))


def outcomes(server, name: str) -> dict[str, float]:
    kinds = ("ok", "invalid", "overloaded", "timeout", "failed", "cancelled")
    counts = {
        kind: metric(server, "gearshift_requests_total", model=name, outcome=kind) for kind in kinds
    }
    return {kind: count for kind, count in counts.items() if count}


def settled(server, name: str, total: int) -> dict[str, float]:
    """The outcomes once there are as many as requests were sent."""
    deadline = time.monotonic() + 20
    while sum((counts := outcomes(server, name)).values()) < total:
        assert time.monotonic() < deadline, counts
        time.sleep(0.05)
    return counts


async def test_clients_that_hang_up_cost_no_batch(server):
    gone = MAX_QUEUE - 1
    busy = asyncio.create_task(post(server, "gone", sample(1.5)))
    await asyncio.sleep(0.3)
    for _ in range(gone):
        hang_up(server, ask_for("gone", sample(0)))
    assert (await busy).status == 200
    assert (await post(server, "gone", sample(0))).status == 200
    assert settled(server, "gone", gone + 2) == {"ok": 2, "cancelled": gone}
    # The two, and what a busy machine may not have noticed before the first was done.
    assert metric(server, "gearshift_batch_size_sum", model="gone") <= 2 + BATCH
    assert metric(server, "gearshift_inflight_requests", model="gone") == 0


async def test_a_full_queue_says_when_to_come_back_by_how_fast_it_drains(server):
    known = await asyncio.gather(*(post(server, "told", sample(0.5)) for _ in range(2 * BATCH)))
    assert {answer.status for answer in known} == {200}
    impatient = {"X-Request-Timeout": "1.5"}
    crowd = [
        asyncio.create_task(post(server, "told", sample(0.5), **impatient))
        for _ in range(MAX_QUEUE)
    ]
    await asyncio.sleep(0.5)
    refused = server.http.post("/models/told/predict", json=sample(0))
    answers = Counter([answer.status for answer in await asyncio.gather(*crowd)])
    assert refused.status_code == 429
    assert f"{MAX_QUEUE} of {MAX_QUEUE} places are taken" in refused.json()["detail"]
    # 4 samples in half a second: 64 take 8 seconds.
    assert 4 <= int(refused.headers["Retry-After"]) <= 16
    assert answers[504] > answers[200] > 0
    assert answers.keys() == {200, 504}


def test_a_list_that_can_never_fit_is_refused_for_good(server):
    fits = server.http.post("/models/lists/predict", json=[sample(0)] * MAX_QUEUE)
    assert len(fits.json()["predictions"]) == MAX_QUEUE
    larger = server.http.post("/models/lists/predict", json=[sample(0)] * (MAX_QUEUE + 1))
    assert larger.status_code == 413
    assert "65 samples" in larger.json()["detail"]
    assert "trying again will not help" in larger.json()["detail"]
    assert "Retry-After" not in larger.headers


async def test_what_waits_beyond_its_deadline_is_told_at_its_deadline_and_never_runs(server):
    busy = asyncio.create_task(post(server, "late", sample(1.5)))
    await asyncio.sleep(0.3)
    late = await post(server, "late", sample(0), **{"X-Request-Timeout": "0.2"})
    assert late.status == 504
    assert not busy.done()
    assert (await busy).status == 200
    assert (await post(server, "late", sample(0))).status == 200
    assert metric(server, "gearshift_batch_size_sum", model="late") == 2


@pytest.mark.parametrize("where", [1, 2, 3])
def test_what_a_model_raises_is_for_the_log_and_not_for_the_client(server, where):
    headers = {"X-Request-Id": f"broken-{where}"}
    answer = server.http.post("/models/raises/predict", json=sample(where), headers=headers)
    assert answer.status_code == 500
    assert answer.json()["request_id"] == f"broken-{where}"
    for hidden in ("secret", "ValueError", "Traceback", ".py"):
        assert hidden not in answer.text
    assert "/srv/secret/weights.pt" in server.log.read_text()


@dataclass
class Load:
    """What came back: (seconds into the run, status, latency)."""

    answers: list[tuple[float, int, float]]
    seconds: float

    @property
    def goodput(self) -> float:
        in_time = [status for at, status, _ in self.answers if at < self.seconds]
        return in_time.count(200) / self.seconds

    def latency(self, status: int, quantile: float) -> float:
        ordered = sorted(latency for _, got, latency in self.answers if got == status)
        return ordered[int(quantile * (len(ordered) - 1))]


async def offer(server, rate: float, seconds: float, batch_s: float) -> Load:
    """`rate` requests a second, whether or not they are answered."""
    load = Load([], seconds)
    request = ask_for("loaded", sample(batch_s))
    began = time.monotonic()

    async def one() -> None:
        sent = time.monotonic()
        answer = await ask(server, request)
        now = time.monotonic()
        load.answers.append((now - began, answer.status, now - sent))

    async with asyncio.TaskGroup() as group:
        for number in range(int(rate * seconds)):
            await asyncio.sleep(began + number / rate - time.monotonic())
            group.create_task(one())
    return load


async def test_at_four_times_the_load_goodput_stays_and_the_rest_is_refused_at_once(server):
    batch_s, seconds = 0.1, 4.0
    can_serve = BATCH / batch_s
    peak = await offer(server, can_serve, seconds, batch_s)
    over = await offer(server, 4 * can_serve, seconds, batch_s)
    print(  # noqa: T201
        f"goodput {peak.goodput:.1f}/s at the load it can serve, {over.goodput:.1f}/s at 4 times; "
        f"admitted p99 {over.latency(200, 0.99):.3f} s; "
        f"refused p50 {over.latency(429, 0.5):.4f} s, p99 {over.latency(429, 0.99):.4f} s"
    )
    assert {status for _, status, _ in over.answers} == {200, 429}
    assert over.goodput > 0.7 * peak.goodput
    # A whole queue, a batch that runs, and room for a busy machine.
    assert over.latency(200, 0.99) < 2 * (MAX_QUEUE / can_serve + batch_s)
    assert over.latency(429, 0.5) < over.latency(200, 0.5) / 2


async def test_every_request_of_a_mixed_crowd_is_answered_and_counted_once(server):
    chooser = random.Random(0)
    kinds = chooser.choices(("ok", "invalid", "late", "gone", "list"), (4, 2, 2, 2, 2), k=400)
    loop = asyncio.get_running_loop()

    async def one(kind: str, at: float) -> int | None:
        await asyncio.sleep(at)
        if kind == "gone":
            await loop.run_in_executor(None, hang_up, server, ask_for("mixed", sample(0.1)))
            return None
        body = {"invalid": {"x": [1]}, "list": [sample(0.1)] * 8}.get(kind, sample(0.1))
        timeout = {"X-Request-Timeout": "0.2"} if kind == "late" else {}
        return (await post(server, "mixed", body, **timeout)).status

    sent = [one(kind, chooser.uniform(0, 1.5)) for kind in kinds]
    answers = Counter(await asyncio.gather(*sent))
    counted = settled(server, "mixed", len(kinds))
    assert sum(counted.values()) == len(kinds)
    by_outcome = {"ok": 200, "invalid": 422, "overloaded": 429, "timeout": 504}
    # Whoever hangs up may have been answered, or refused, just before.
    unseen = {kind: counted.get(kind, 0) - answers[status] for kind, status in by_outcome.items()}
    assert all(count >= 0 for count in unseen.values()), (counted, answers)
    assert sum(unseen.values()) + counted["cancelled"] == answers[None] == kinds.count("gone")
    assert all(answers[status] for status in by_outcome.values()), answers
    assert metric(server, "gearshift_inflight_requests", model="mixed") == 0
