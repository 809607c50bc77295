"""A compile that never ends costs one bucket, not the server."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.e2e

CONFIG = """
[[models]]
name = "double"
model = "tests.engine.faults:HangsWhenCompiled"
[batching]
max_batch_size = 2
[compile]
timeout_s = 10
"""


def test_a_bucket_whose_compile_hangs_is_served_eager_after_a_restart(start, tmp_path):
    file = tmp_path / "config.toml"
    file.write_text(CONFIG)
    server = start("--config", str(file), "--mode", "compiled")
    told = server.http.get("/readyz").json()["models"]["double"]
    reason = "compiling took longer than compile.timeout_s = 10 s"
    assert told["served_eager"]["2"] == reason
    both = server.http.post("/predict", json=[{"x": [1, 2, 3, 4]}] * 2)
    assert both.json()["predictions"] == [[2, 4, 6, 8]] * 2
    assert both.headers["X-Gearshift-Mode"] == "eager"
    one = server.http.post("/predict", json={"x": [1, 2, 3, 4]})
    assert one.json()["prediction"] == [2, 4, 6, 8]
    assert f"double: bucket 2: {reason}; starting the worker again" in server.log.read_text()
