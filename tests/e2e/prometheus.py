"""A real Prometheus with the rules of deploy/, scraping servers every second."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from tests.e2e.conftest import ROOT, free_port

DEPLOY = ROOT / "deploy"
PATIENCE_S = 60


def need(*programs: str) -> None:
    """Skips the test where Debian's `prometheus` is not installed; never in CI."""
    if not all(map(shutil.which, programs)):
        assert os.environ.get("CI") != "true", "scripts/test installs it in CI"
        pytest.skip("needs prometheus and promtool: apt-get install prometheus")


@dataclass
class Prometheus:
    """A running one. Queries are at its own now."""

    http: httpx.Client

    def query(self, expression: str) -> list[dict[str, Any]]:
        """The series of an instant query: labels under `metric`, and `value`."""
        answer = self._get("query", query=expression)
        return [
            {"metric": one["metric"], "value": float(one["value"][1])} for one in answer["result"]
        ]

    def value(self, expression: str) -> float:
        """The value of a query that has one series."""
        (one,) = self.query(expression)
        return float(one["value"])

    def wait_for(self, expression: str) -> None:
        """Until the query returns something: an expression like `metric == 3`."""
        deadline = time.monotonic() + PATIENCE_S
        while not self.query(expression):
            assert time.monotonic() < deadline, f"still nothing: {expression}"
            time.sleep(0.2)

    def rules(self) -> list[dict[str, Any]]:
        """Every rule, with its `health`."""
        return [rule for group in self._get("rules")["groups"] for rule in group["rules"]]

    def exemplars(self, expression: str) -> list[dict[str, Any]]:
        """All exemplars of the series that a selector selects."""
        window = {"start": time.time() - 3600, "end": time.time() + 60}
        found = self._get("query_exemplars", query=expression, **window)
        return [exemplar for series in found for exemplar in series["exemplars"]]

    def _get(self, path: str, **params: Any) -> Any:
        answer = self.http.get(f"/api/v1/{path}", params=params)
        assert answer.status_code == 200, answer.text
        return answer.json()["data"]


@contextmanager
def scraping(jobs: Mapping[str, Sequence[int]], directory: Path) -> Iterator[Prometheus]:
    """A Prometheus that scrapes these ports as deploy/prometheus says, but every second."""
    need("prometheus")
    shutil.copytree(DEPLOY / "prometheus", directory, dirs_exist_ok=True)
    config = yaml.safe_load((directory / "prometheus.yml").read_text())
    config["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    config["scrape_configs"] = [
        {
            "job_name": job,
            "static_configs": [{"targets": [f"127.0.0.1:{port}" for port in ports]}],
        }
        for job, ports in jobs.items()
    ]
    (directory / "prometheus.yml").write_text(yaml.safe_dump(config))
    address = f"127.0.0.1:{free_port()}"
    command = [
        *("prometheus", f"--config.file={directory}/prometheus.yml"),
        *(f"--storage.tsdb.path={directory}/data", f"--web.listen-address={address}"),
        "--enable-feature=exemplar-storage",
    ]
    with (directory / "log").open("wb") as log:
        process = subprocess.Popen(command, stderr=log)
    try:
        with httpx.Client(base_url=f"http://{address}", timeout=30) as http:
            _wait_up(process, http)
            yield Prometheus(http)
    finally:
        process.terminate()
        process.wait(30)


def _wait_up(process: subprocess.Popen[bytes], http: httpx.Client) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while process.poll() is None and time.monotonic() < deadline:
        try:
            if http.get("/-/ready").status_code == 200:
                return
        except httpx.TransportError:
            time.sleep(0.1)
    raise AssertionError("prometheus did not come up")
