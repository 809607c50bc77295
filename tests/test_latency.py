"""The sliding window's quantiles against exact ones, over several processes."""

from __future__ import annotations

import multiprocessing
import time

import numpy as np
import pytest

from server.latency import RELATIVE_ACCURACY, SLICE_S, WINDOW_S, LatencyWindow


def observe_all(directory, seconds):
    window = LatencyWindow(directory)
    for value in seconds:
        window.observe("m", "compiled", value)
    window.publish()


def test_quantiles_over_two_processes_are_within_one_percent_of_the_exact_ones(tmp_path):
    latencies = np.random.default_rng(1).lognormal(-6, 1, 20_000)
    spawn = multiprocessing.get_context("spawn")
    other = spawn.Process(target=observe_all, args=(tmp_path, latencies[:12_000].tolist()))
    other.start()
    other.join()
    assert other.exitcode == 0
    window = LatencyWindow(tmp_path)
    for value in latencies[12_000:]:
        window.observe("m", "compiled", float(value))
    window.publish()
    found = {quantile: seconds for _, _, quantile, seconds in window.quantiles()}
    for quantile, seconds in found.items():
        exact = np.quantile(latencies, quantile, method="lower")
        assert seconds == pytest.approx(exact, rel=RELATIVE_ACCURACY)
    assert sorted(found) == [0.5, 0.9, 0.99, 0.999]


def test_an_idle_window_has_no_quantiles(tmp_path):
    assert list(LatencyWindow(tmp_path).quantiles()) == []


def test_what_left_the_window_is_forgotten(tmp_path, monkeypatch):
    window = LatencyWindow(tmp_path)
    window.observe("m", "eager", 1.0)
    window.publish()
    later = time.time() + WINDOW_S + SLICE_S
    monkeypatch.setattr(time, "time", lambda: later)
    assert list(window.quantiles()) == []


def test_modes_and_models_are_kept_apart(tmp_path):
    window = LatencyWindow(tmp_path)
    window.observe("a", "eager", 1.0)
    window.observe("a", "compiled", 0.5)
    window.observe("b", "eager", 2.0)
    window.publish()
    medians = {(m, mode): s for m, mode, q, s in window.quantiles() if q == 0.5}
    assert medians == {
        ("a", "eager"): pytest.approx(1.0, rel=0.01),
        ("a", "compiled"): pytest.approx(0.5, rel=0.01),
        ("b", "eager"): pytest.approx(2.0, rel=0.01),
    }
