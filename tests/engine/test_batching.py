"""The batcher: like with like, the device shared fairly, nobody starved or run for nothing."""

from __future__ import annotations

import threading
import time

import pytest

from server.engine.batching import Batcher, Pending
from server.errors import DeadlineExceeded
from server.types import Sample


def pending(length: int = 0, deadline_s: float = 60.0, alone: bool = False) -> Pending:
    return Pending(Sample({}, time.monotonic() + deadline_s, alone=alone), length)


def batcher(max_batch_size: int = 4, timeout_s: float = 0.0) -> Batcher:
    return Batcher(["a", "b"], max_batch_size, timeout_s)


def test_what_is_queued_when_the_device_is_free_goes_together_up_to_the_limit():
    queue = batcher()
    samples = [pending() for _ in range(6)]
    queue.put("a", samples)
    assert queue.next() == ("a", samples[:4])
    assert queue.next() == ("a", samples[4:])


def test_a_lone_sample_does_not_wait():
    queue = batcher()
    sample = pending()
    queue.put("a", [sample])
    assert queue.next() == ("a", [sample])


def test_the_oldest_chooses_the_length_and_others_keep_their_order():
    queue = batcher()
    long_one, short_one, long_two, short_two = (pending(length) for length in (32, 16, 32, 16))
    for sample in (long_one, short_one, long_two, short_two):
        queue.put("a", [sample])
    assert queue.next() == ("a", [long_one, long_two])
    assert queue.next() == ("a", [short_one, short_two])


def test_a_sample_that_must_run_alone_neither_joins_a_batch_nor_is_joined():
    queue = batcher()
    before, alone, after = pending(), pending(alone=True), pending()
    queue.put("a", [before, alone, after])
    assert queue.next() == ("a", [before, after])
    assert queue.next() == ("a", [alone])


def test_a_rare_length_is_not_overtaken_for_ever():
    queue = batcher(max_batch_size=2)
    queue.put("a", [pending(16), pending(16), pending(16), rare := pending(32)])
    taken = []
    while rare not in taken:
        queue.put("a", [pending(16), pending(16)])  # more come than are taken
        model, taken = queue.next()
        assert queue.depth(model) < 8


def test_a_slow_model_with_a_long_queue_costs_a_fast_one_one_batch_at_most():
    queue = batcher()
    queue.put("a", [pending() for _ in range(40)])
    batches = []
    for _ in range(6):
        queue.put("b", [pending()])  # its client has just had an answer and asks again
        model, _ = queue.next()
        batches.append(model)
        time.sleep(0.2 if model == "a" else 0.001)
    assert batches == ["a", "b", "b", "b", "b", "b"]


def test_two_busy_models_share_the_time_of_the_device_not_its_batches():
    queue = batcher()
    for model in ("a", "b"):
        queue.put(model, [pending() for _ in range(200)])
    had_s = {"a": 0.0, "b": 0.0}
    cost_s = {"a": 0.012, "b": 0.003}
    for _ in range(40):
        model, _ = queue.next()
        started = time.monotonic()
        time.sleep(cost_s[model])
        had_s[model] += time.monotonic() - started
    assert 0.5 < had_s["a"] / had_s["b"] < 2


def test_a_model_that_was_idle_has_saved_up_nothing():
    queue = batcher()
    queue.put("a", [pending() for _ in range(40)])
    for _ in range(9):
        queue.next()
        time.sleep(0.02)
    queue.put("b", [pending() for _ in range(40)])
    models = []
    for _ in range(4):
        model, _ = queue.next()
        models.append(model)
        time.sleep(0.02)
    assert "a" in models  # not: b nine times, to catch up


def test_a_model_that_waits_for_company_does_not_hold_up_another():
    queue = batcher(max_batch_size=2, timeout_s=60)
    queue.put("a", [pending()])
    full = [pending(), pending()]
    queue.put("b", full)
    assert queue.next() == ("b", full)


def test_between_models_that_had_as_much_the_oldest_sample_is_next():
    queue = batcher()
    first, second = pending(), pending()
    queue.put("b", [first])
    queue.put("a", [second])
    assert queue.next() == ("b", [first])
    assert queue.next() == ("a", [second])


def test_a_withdrawn_sample_never_runs():
    queue = batcher()
    gone, wanted = pending(), pending()
    queue.put("a", [gone])
    queue.put("a", [wanted])
    gone.future.cancel()
    assert queue.next() == ("a", [wanted])


def test_a_sample_past_its_deadline_is_told_and_never_runs():
    queue = batcher()
    late, wanted = pending(deadline_s=-1), pending()
    queue.put("a", [late])
    queue.put("a", [wanted])
    assert queue.next() == ("a", [wanted])
    with pytest.raises(DeadlineExceeded):
        late.future.result(0)


def test_with_a_batch_timeout_the_oldest_waits_for_company():
    queue = batcher(max_batch_size=2, timeout_s=60)
    first, second = pending(), pending()
    queue.put("a", [first])
    late = threading.Timer(0.05, queue.put, ("a", [second]))
    late.start()
    assert queue.next() == ("a", [first, second])


def test_closing_hands_out_what_is_queued_and_then_ends():
    queue = batcher(timeout_s=60)
    sample = pending()
    queue.put("a", [sample])
    queue.close()
    assert queue.next() == ("a", [sample])
    assert queue.next() is None


def test_closing_wakes_a_waiting_thread():
    queue = batcher()
    got: list[object] = []
    waiting = threading.Thread(target=lambda: got.append(queue.next()))
    waiting.start()
    queue.close()
    waiting.join(10)
    assert got == [None]
