"""OpenTelemetry's own instrumentation around the server: no code of ours, off unless asked for."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest

from tests.e2e.conftest import free_port

pytestmark = pytest.mark.e2e

TRACE = "0af7651916cd43dd8448eb211c80319c"


@pytest.mark.skipif(
    not shutil.which("opentelemetry-instrument", path=str(Path(sys.executable).parent)),
    reason="needs the extra `otel`",
)
def test_a_request_is_a_span_of_its_callers_trace_with_its_request_id(environment, tmp_path):
    port, spans = free_port(), tmp_path / "spans"
    traced = {
        "OTEL_TRACES_EXPORTER": "console",
        "OTEL_METRICS_EXPORTER": "none",
        "OTEL_LOGS_EXPORTER": "none",
        "OTEL_INSTRUMENTATION_HTTP_CAPTURE_HEADERS_SERVER_RESPONSE": "x-request-id",
    }
    command = [
        *(Path(sys.executable).parent / "opentelemetry-instrument", sys.executable, "-m"),
        *("server.cli", "--port", str(port), "--model", "double=tests.fakes:Double"),
    ]
    with spans.open("wb") as out, (tmp_path / "log").open("wb") as log:
        server = subprocess.Popen(
            command, cwd=tmp_path, env={**environment, **traced}, stdout=out, stderr=log
        )
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as http:
            _until(lambda: _is_up(http))
            http.post(
                "/predict",
                json={"x": [1, 2, 3, 4]},
                headers={"traceparent": f"00-{TRACE}-b7ad6b7169203331-01", "X-Request-Id": "mine"},
            )
            _until(lambda: f'"trace_id": "0x{TRACE}"' in spans.read_text())
            _until(lambda: '"mine"' in spans.read_text())
    finally:
        server.terminate()
        server.wait(60)


def _is_up(http: httpx.Client) -> bool:
    try:
        return http.get("/livez").status_code == 200
    except httpx.TransportError:
        return False


def _until(holds) -> None:
    deadline = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.2)
