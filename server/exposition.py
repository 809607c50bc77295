"""The requests of one API process, and all metrics of all processes as whoever scrapes wants them.

prometheus_client adds up what the processes counted; quantiles and exemplars it does not have in
multiprocess mode, so each process publishes its own. Knows no HTTP.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4, CollectorRegistry, generate_latest
from prometheus_client.core import Metric
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.registry import Collector

from server import __version__, metrics
from server.errors import Outcome
from server.exemplars import Exemplars
from server.latency import WINDOW_S, LatencyWindow


class Requests:
    """Records the requests of one API process, and shows all metrics of all processes."""

    def __init__(self, latency: Path, exemplars: Path) -> None:
        self._window = LatencyWindow(latency)
        self._exemplars = Exemplars(exemplars, metrics.DURATION_BOUNDARIES_S)

    def record(
        self, model: str, mode: str, outcome: Outcome, seconds: float, request_id: str
    ) -> None:
        """One request that ended, however."""
        metrics.record_request(model, mode, outcome, seconds)
        if outcome == "ok":
            self._window.observe(model, mode, seconds)
            self._exemplars.observe(model, mode, seconds, request_id)

    def publish(self) -> None:
        """Let whichever process is scraped see what this one recorded. On the event loop."""
        self._window.publish()
        self._exemplars.publish()

    def exposition(self, accept: str) -> tuple[bytes, str]:
        """All metrics of all processes and their content type: OpenMetrics, which alone has
        exemplars, where `accept` names it, else Prometheus text."""
        metrics.BUILD_INFO.labels(__version__).set(1)
        registry = CollectorRegistry()
        registry.register(_AllProcesses(self._exemplars))
        registry.register(_Quantiles(self._window))
        if "application/openmetrics-text" in accept:
            text: bytes = openmetrics.generate_latest(registry)  # type: ignore[no-untyped-call]
            return text, openmetrics.CONTENT_TYPE_LATEST
        return generate_latest(registry), CONTENT_TYPE_PLAIN_0_0_4


class _AllProcesses(Collector):
    """What all processes recorded, with exemplars."""

    def __init__(self, exemplars: Exemplars) -> None:
        self._files = MultiProcessCollector(None)  # type: ignore[no-untyped-call]
        self._exemplars = exemplars

    def collect(self) -> Iterable[Metric]:
        for metric in self._files.collect():  # type: ignore[no-untyped-call]
            if metric.name == "gearshift_request_duration_seconds":
                metric.samples = self._exemplars.attach(metric.samples)
            yield metric


class _Quantiles(Collector):
    """The sliding window's quantiles at the moment of the scrape."""

    def __init__(self, window: LatencyWindow) -> None:
        self._window = window

    def collect(self) -> Iterable[Metric]:
        family = Metric(
            "gearshift_request_latency_seconds",
            f"Quantiles of gearshift_request_duration_seconds over the last {WINDOW_S} s, all API "
            "processes, within 1 %. Absent when idle.",
            "summary",
        )
        for model, mode, quantile, seconds in self._window.quantiles():
            labels = {"model": model, "mode": mode, "quantile": str(quantile)}
            family.add_sample(family.name, labels, seconds)
        yield family
