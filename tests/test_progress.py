"""The start-up lines: what a person is told of every bucket."""

from __future__ import annotations

import logging

from server.config import LogSection
from server.progress import progress
from server.types import BucketStatus, ModelStatus

PROVEN = BucketStatus(
    "2",
    "compiled",
    note="partial: 2 graphs, 1 breaks; as a whole: Unsupported",
    compile_s=3.0,
    warmup_s=0.5,
    cache="hit",
    graphs=2,
    graph_breaks=1,
    parity_rule="float64",
    parity_max_abs_error=1e-7,
)
REFUSED = BucketStatus("1", "eager", reason="parity: y: not finite")


def told(caplog, device: str) -> list[str]:
    shown = progress(LogSection(format="text"))
    with caplog.at_level(logging.INFO):
        shown.update(ModelStatus("m", "ready", "compiled", device, buckets=(PROVEN, REFUSED)))
    return [record.getMessage() for record in caplog.records]


def test_every_bucket_has_a_line_and_a_row_of_evidence(caplog):
    lines = told(caplog, "cpu")
    assert f"m: bucket 2 compiled in 3.5 s (2 of 2): {PROVEN.note}" in lines
    assert "m: bucket 1 stays eager (2 of 2): parity: y: not finite" in lines
    proven, refused = lines[-2:]
    assert proven.split()[:6] == ["2", "compiled", "3.0", "0.5", "hit", "2"]
    assert proven.count("no CUDA") == 2
    assert "1.0e-07" in proven
    assert "float64" in proven
    assert refused.endswith("parity: y: not finite")


def test_on_cuda_what_was_not_measured_is_left_open(caplog):
    assert not any("no CUDA" in line for line in told(caplog, "cuda:0"))
