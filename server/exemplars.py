"""Exemplars: the id of the last request in each boundary of the latency histogram.

prometheus_client has none in multiprocess mode, so each API process keeps its own and publishes
them as a small file, as it does its latencies; whoever is scraped takes the newest. Knows nothing
of metrics but the boundaries.
"""

from __future__ import annotations

import multiprocessing
import time
from bisect import bisect_left
from collections.abc import Sequence
from pathlib import Path

import orjson
from prometheus_client.core import Exemplar, Sample

LABEL = "request_id"
LONGEST_ID = 128 - len(LABEL)  # OpenMetrics: names and values of an exemplar together

Seen = tuple[float, str, float]  # seconds, request id, time


class Exemplars:
    """The newest request in each boundary that this process saw, by model and mode."""

    def __init__(self, directory: Path, boundaries: Sequence[float]) -> None:
        self._directory = directory
        self._boundaries = boundaries
        self._seen: dict[str, Seen] = {}

    def observe(self, model: str, mode: str, seconds: float, request_id: str) -> None:
        """Keep one answered request."""
        if len(request_id) <= LONGEST_ID:
            at = bisect_left(self._boundaries, seconds)
            boundary = self._boundaries[at] if at < len(self._boundaries) else float("inf")
            self._seen[_key(model, mode, boundary)] = (seconds, request_id, time.time())

    def publish(self) -> None:
        """Let the other processes see them."""
        # Asked for here: this object is made before the fork. Who replaces a process has its name.
        fresh = self._directory / f"{multiprocessing.current_process().name}.new"
        fresh.write_bytes(orjson.dumps(self._seen))
        fresh.replace(fresh.with_suffix(".json"))

    def attach(self, samples: Sequence[Sample]) -> list[Sample]:
        """The samples of the latency histogram, those of a boundary with its exemplar."""
        newest: dict[str, Seen] = {}
        for path in self._directory.glob("*.json"):
            for key, seen in orjson.loads(path.read_bytes()).items():
                if key not in newest or newest[key][2] < seen[2]:
                    newest[key] = seen
        return [_with_exemplar(sample, newest) for sample in samples]


def _with_exemplar(sample: Sample, newest: dict[str, Seen]) -> Sample:
    labels = sample.labels
    if "le" not in labels:
        return sample
    seen = newest.get(_key(labels["model"], labels["mode"], float(labels["le"])))
    if seen is None:
        return sample
    seconds, request_id, at = seen
    return sample._replace(exemplar=Exemplar({LABEL: request_id}, seconds, at))


def _key(model: str, mode: str, boundary: float) -> str:
    return f"{model} {mode} {boundary}"
