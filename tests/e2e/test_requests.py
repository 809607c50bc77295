"""Requests to a real server: every form of body, every refusal, and what is counted."""

from __future__ import annotations

import io
import re
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from prometheus_client.openmetrics.parser import (
    text_string_to_metric_families as open_metrics_families,
)
from prometheus_client.parser import text_string_to_metric_families

from tests.e2e.conftest import ROOT

PUBLISH_S = 1.0
DOCS = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def server(start):
    return start(
        *("--model", "colors=tests.fakes:Colors"),
        *("--model", "tokens=tests.fakes:Tokens"),
        *("--model", "double=tests.fakes:Double"),
        *("--mode", "compiled", "--max-batch-size", "4", "--api-processes", "2"),
    )


def metric(server, name: str, **labels: str) -> float:
    families = text_string_to_metric_families(server.http.get("/metrics").text)
    return sum(
        sample.value
        for family in families
        for sample in family.samples
        if sample.name == name and labels.items() <= sample.labels.items()
    )


def test_every_answer_says_how_it_was_made(server):
    answer = server.http.post(
        "/models/double/predict", json={"x": [1, 2, 3, 4]}, headers={"X-Request-Id": "mine"}
    )
    assert answer.json() == {"model": "double", "prediction": [2, 4, 6, 8]}
    assert answer.headers["X-Request-Id"] == "mine"
    assert answer.headers["X-Gearshift-Mode"] == "compiled"
    assert answer.headers["X-Gearshift-Bucket"] == "1"
    stages = [stage.split(";")[0] for stage in answer.headers["Server-Timing"].split(", ")]
    assert stages == ["queue", "preprocess", "inference"]


def test_a_list_is_answered_by_a_list_in_order_and_runs_in_one_batch(server):
    answer = server.http.post(
        "/models/double/predict", json=[{"x": [n, 0, 0, 0]} for n in range(3)]
    )
    assert [row[0] for row in answer.json()["predictions"]] == [0, 2, 4]
    assert answer.headers["X-Gearshift-Bucket"] == "4"


def test_an_image_comes_raw_as_multipart_or_as_base64_and_the_first_model_takes_it(server, flower):
    raw = server.http.post("/predict", content=flower, headers={"Content-Type": "image/jpeg"})
    form = server.http.post("/predict", files={"image": ("flower.jpg", flower, "image/jpeg")})
    assert raw.status_code == 200
    assert raw.json()["model"] == "colors"
    assert form.json() == raw.json()


def test_a_text_comes_raw_too(server):
    url, plain = "/models/tokens/predict", {"Content-Type": "text/plain"}
    raw = server.http.post(url, content="grüße", headers=plain)
    assert raw.json() == server.http.post(url, json={"text": "grüße"}).json()
    assert len(raw.json()["prediction"]["scores"]) == len("grüße".encode())


def test_tensors_come_raw_and_as_npy(server):
    array = np.array([1, 2, 3, 4], np.float32)
    url, file = "/models/double/predict", io.BytesIO()
    np.save(file, array)
    headers = {
        "Content-Type": "application/octet-stream",
        "X-Tensor-Dtype": "float32",
        "X-Tensor-Shape": "4",
    }
    raw = server.http.post(url, content=array.tobytes(), headers=headers)
    npy = server.http.post(
        url, content=file.getvalue(), headers={"Content-Type": "application/x-npy"}
    )
    assert raw.json() == npy.json() == {"model": "double", "prediction": [2, 4, 6, 8]}


BROKEN_JPEG = b"\xff\xd8\xff\xe0" + b"broken" * 100


@pytest.mark.parametrize(
    ("path", "options", "status", "says"),
    [
        ("/predict", {"content": BROKEN_JPEG, "type": "image/jpeg"}, 422, "image"),
        ("/predict", {"content": b"", "type": "image/jpeg"}, 422, "image"),
        ("/predict", {"content": b"hello", "type": "text/plain"}, 415, "image/*"),
        ("/predict", {"content": b"{", "type": "application/json"}, 422, "JSON"),
        ("/models/double/predict", {"json": []}, 422, "empty list"),
        ("/models/double/predict", {"json": {"x": [1, 2]}}, 422, "x: list should have"),
        ("/models/double/predict", {"json": [{"x": [1, 2, 3, 4]}, {}]}, 422, "[1].x"),
        ("/models/double/predict", {"json": {"y": 1}}, 422, "y"),
        ("/models/nope/predict", {"json": {}}, 404, "served: colors, tokens, double"),
        ("/predict", {"content": b"x" * 10_000_000, "type": "image/png"}, 413, "max_body_bytes"),
        ("/models/tokens/predict", {"json": {"text": "x" * 33}}, 422, "33 bytes"),
    ],
)
def test_bad_input_gets_a_problem_that_names_it(server, path, options, status, says):
    options = dict(options)
    if media := options.pop("type", None):
        options["headers"] = {"Content-Type": media}
    answer = server.http.post(path, **options)
    assert answer.status_code == status
    assert answer.headers["Content-Type"] == "application/problem+json"
    assert answer.json()["status"] == status
    assert says in answer.json()["detail"]
    assert answer.json()["request_id"] == answer.headers["X-Request-Id"]
    assert server.http.post("/models/double/predict", json={"x": [0] * 4}).status_code == 200


def test_a_tensor_of_another_dtype_is_refused_by_name(server):
    headers = {
        "Content-Type": "application/octet-stream",
        "X-Tensor-Dtype": "float64",
        "X-Tensor-Shape": "4",
    }
    answer = server.http.post("/models/double/predict", content=bytes(32), headers=headers)
    assert answer.status_code == 422
    assert answer.json()["detail"] == "X-Tensor-Dtype: float64, expected float32"


def test_a_deadline_that_cannot_be_met_is_504(server):
    answer = server.http.post(
        "/models/double/predict", json={"x": [0] * 4}, headers={"X-Request-Timeout": "0.000001"}
    )
    assert answer.status_code == 504
    wrong = server.http.post(
        "/models/double/predict", json={"x": [0] * 4}, headers={"X-Request-Timeout": "soon"}
    )
    assert (wrong.status_code, "X-Request-Timeout" in wrong.json()["detail"]) == (422, True)


def test_unknown_paths_and_methods_are_problems_too(server):
    assert server.http.get("/nope").json()["status"] == 404
    assert server.http.get("/predict").json()["status"] == 405
    assert server.http.get("/predict").headers["Content-Type"] == "application/problem+json"


def test_concurrent_requests_of_mixed_lengths_each_get_their_own_answer(server):
    def score(length: int) -> tuple[str, list[float]]:
        text = chr(97 + length % 26) * length
        answer = server.http.post("/models/tokens/predict", json={"text": text})
        return text, answer.json()["prediction"]["scores"]

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(score, [length % 32 + 1 for length in range(200)]))
    for text, scores in answers:
        expected = np.sin(np.frombuffer(text.encode(), np.uint8).astype(np.float32))
        np.testing.assert_allclose(scores, expected, atol=1e-6)
    assert metric(server, "gearshift_compiles_total", phase="serving") == 0
    assert metric(server, "gearshift_eager_fallbacks_total") == 0


def test_every_request_is_counted_once_by_how_it_ended(server):
    def count(outcome: str) -> float:
        return metric(server, "gearshift_requests_total", model="double", outcome=outcome)

    ok, invalid = count("ok"), count("invalid")
    for _ in range(10):
        server.http.post("/models/double/predict", json={"x": [0] * 4})
    server.http.post("/models/double/predict", json={"x": [0]})
    assert (count("ok"), count("invalid")) == (ok + 10, invalid + 1)


def test_latency_and_memory_are_told_per_mode(server):
    for _ in range(20):
        server.http.post("/models/double/predict", json={"x": [0] * 4})
    labels = {"model": "double", "mode": "compiled"}
    median, tail = (
        metric(server, "gearshift_request_latency_seconds", quantile=quantile, **labels)
        for quantile in ("0.5", "0.99")
    )
    assert 0 < median <= tail < 60
    assert metric(server, "gearshift_worker_resident_memory_bytes", mode="compiled") > 1e7
    weights = metric(
        server, "gearshift_device_memory_bytes", mode="compiled", kind="weights", device="cpu"
    )
    assert weights == 16 + 256 * 4  # Double's factor and Tokens' table
    assert metric(server, "gearshift_ready", model="double") == 1
    assert metric(server, "gearshift_compile_seconds", **labels) > 0


def test_the_id_of_a_request_is_an_exemplar_in_openmetrics_alone(server):
    open_metrics = {"Accept": "application/openmetrics-text; version=1.0.0"}
    server.http.post(
        "/models/double/predict", json={"x": [0] * 4}, headers={"X-Request-Id": "find-me"}
    )
    time.sleep(2 * PUBLISH_S)  # another API process may be asked
    told = server.http.get("/metrics", headers=open_metrics)
    assert told.headers["Content-Type"].startswith("application/openmetrics-text")
    exemplars = [
        sample.exemplar.labels["request_id"]
        for family in open_metrics_families(told.text)
        if family.name == "gearshift_request_duration_seconds"
        for sample in family.samples
        if sample.exemplar and sample.labels["model"] == "double"
    ]
    assert "find-me" in exemplars
    plain = server.http.get("/metrics")
    assert plain.headers["Content-Type"].startswith("text/plain")
    assert "find-me" not in plain.text


def test_every_metric_is_in_the_documentation_and_the_other_way_round(server):
    for path in ("double", "tokens"):
        server.http.post(f"/models/{path}/predict", json={})
    live = {
        family.name + ("_total" if family.type == "counter" else ""): (
            family.type,
            {label for sample in family.samples for label in sample.labels} - {"le", "quantile"},
        )
        for family in text_string_to_metric_families(server.http.get("/metrics").text)
    }
    rows = re.findall(r"^\| `(gearshift_\w+)` \| (\w+) \|([^|]*)\| (.+) \|$", DOCS, re.MULTILINE)
    documented = {
        name: (kind, {label.strip() for label in labels.split(",") if label.strip()})
        for name, kind, labels, meaning in rows
        if not meaning.startswith("CUDA only")
    }
    assert documented == live


def test_info_shows_the_evidence_of_every_bucket(server):
    models = {model["name"]: model for model in server.http.get("/info").json()["models"]}
    assert list(models) == ["colors", "tokens", "double"]
    assert [bucket["bucket"] for bucket in models["double"]["buckets"]] == ["4", "2", "1"]
    for bucket in models["tokens"]["buckets"]:
        assert bucket["state"] == "compiled"
        assert bucket["compile_s"] > 0
        assert bucket["parity_max_abs_error"] < 1e-6
        assert bucket["replays_per_call"] is None  # no CUDA here


def test_the_documentation_is_served(server):
    assert server.http.get("/docs").status_code == 200
    assert "/models/{name}/predict" in server.http.get("/openapi.json").json()["paths"]
