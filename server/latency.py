"""Latency quantiles over a sliding window, right across several processes.

A DDSketch (Masson, Rim, Lee: "DDSketch", VLDB 2019): counts by logarithmic bin, so that a quantile
is within 1 % of the true value and sketches of several processes add up. Each process counts into
slices of ten seconds and publishes them as a small file; whoever is scraped adds all of them.
"""

from __future__ import annotations

import multiprocessing
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import orjson
from ddsketch.mapping import LogarithmicMapping

WINDOW_S = 60
SLICE_S = 10
RELATIVE_ACCURACY = 0.01
QUANTILES = (0.5, 0.9, 0.99, 0.999)

Bins = Counter[int]
Key = str  # "model mode": a JSON object's key


class LatencyWindow:
    """The latencies that this process saw in the last minute, by model and mode."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._mapping = LogarithmicMapping(RELATIVE_ACCURACY)
        self._slices: dict[int, dict[Key, Bins]] = {}

    def observe(self, model: str, mode: str, seconds: float) -> None:
        """Count one answered request."""
        slice_ = self._slices.setdefault(_now(), {})
        slice_.setdefault(f"{model} {mode}", Counter())[self._mapping.key(seconds)] += 1

    def publish(self) -> None:
        """Let the other processes see what was counted; forgets what left the window."""
        self._slices = {at: keys for at, keys in self._slices.items() if _in_window(at)}
        # The name is asked for here: this object may have been made before a fork. A process that
        # replaces another has its name, and its file.
        fresh = self._directory / f"{multiprocessing.current_process().name}.new"
        fresh.write_bytes(orjson.dumps(self._slices, option=orjson.OPT_NON_STR_KEYS))
        fresh.replace(fresh.with_suffix(".json"))

    def quantiles(self) -> Iterator[tuple[str, str, float, float]]:
        """(model, mode, quantile, seconds) over what all processes published; nothing for an idle
        window."""
        for key, bins in sorted(self._added_up().items()):
            model, mode = key.split(" ")
            for quantile in QUANTILES:
                yield model, mode, quantile, self._value(bins, quantile)

    def _added_up(self) -> dict[Key, Bins]:
        total: dict[Key, Bins] = {}
        for path in self._directory.glob("*.json"):
            for at, keys in orjson.loads(path.read_bytes()).items():
                if not _in_window(int(at)):
                    continue
                for key, bins in keys.items():
                    counted = {int(index): count for index, count in bins.items()}
                    total.setdefault(key, Counter()).update(counted)
        return total

    def _value(self, bins: Bins, quantile: float) -> float:
        rank = quantile * (bins.total() - 1)
        seen = 0
        for index in sorted(bins):
            seen += bins[index]
            if seen > rank:
                return float(self._mapping.value(index))
        raise AssertionError("the last bin's running count is the total, which is above any rank")


def _now() -> int:
    return int(time.time()) // SLICE_S


def _in_window(at: int) -> bool:
    return at > _now() - WINDOW_S // SLICE_S
