"""The three demo models, served for real in both modes: right answers, and the same ones."""

from __future__ import annotations

import numpy as np
import pytest
from statsmodels.datasets import elnino

pytestmark = pytest.mark.e2e

MODELS = """
[[models]]
model = "efficientnet-lite0"
[[models]]
model = "all-MiniLM-L6-v2"
max_seq = 32
[[models]]
model = "lstm"
max_seq = 32
"""


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    path = tmp_path_factory.mktemp("demo") / "config.toml"
    path.write_text(MODELS)
    return path


@pytest.fixture(scope="module")
def servers(start, config):
    """Eager and compiled, side by side; batches of up to 2 keep the compiling short."""
    flags = ("--config", str(config), "--max-batch-size", "2")
    servers = {mode: start(*flags, "--mode", mode, wait=False) for mode in ("eager", "compiled")}
    for server in servers.values():
        server.wait_ready()
    return servers


def ask(servers, name: str, **request) -> dict[str, object]:
    answers = {}
    for mode, server in servers.items():
        answer = server.http.post(f"/models/{name}/predict", **request)
        assert answer.status_code == 200, answer.text
        assert answer.headers["X-Gearshift-Mode"] == mode
        assert "X-Gearshift-Fallback" not in answer.headers
        answers[mode] = answer.json().get("prediction") or answer.json()["predictions"]
    return answers


@pytest.mark.parametrize(("picture", "label"), [("flower", "daisy"), ("china", "palace")])
def test_pictures_get_their_labels_in_both_modes(servers, picture, label, request):
    jpeg = request.getfixturevalue(picture)
    answers = ask(
        servers, "efficientnet-lite0", content=jpeg, headers={"Content-Type": "image/jpeg"}
    )
    for answer in answers.values():
        assert answer["labels"][0]["label"] == label
    eager, compiled = (
        [(each["label"], each["score"]) for each in answer["labels"]] for answer in answers.values()
    )
    assert [label for label, _ in eager] == [label for label, _ in compiled]
    np.testing.assert_allclose(
        [score for _, score in eager], [score for _, score in compiled], atol=1e-5
    )


def test_texts_of_mixed_length_get_the_same_embeddings_in_both_modes(servers):
    texts = ["a daisy", "the palace in the city, seen from the lake on a summer's day", "rain"]
    answers = ask(servers, "all-MiniLM-L6-v2", json=[{"text": text} for text in texts])
    eager, compiled = (
        np.array([each["embedding"] for each in answer]) for answer in answers.values()
    )
    assert eager.shape == (3, 384)
    np.testing.assert_allclose(compiled, eager, atol=1e-5)
    np.testing.assert_allclose(np.linalg.norm(eager, axis=1), 1, atol=1e-5)


@pytest.mark.parametrize("months", [12, 17, 32])
def test_series_of_any_length_get_the_same_forecast_in_both_modes(servers, months):
    table = elnino.load_pandas().data.set_index("YEAR").to_numpy().ravel()
    series, later = table[-months - 12 : -12], table[-12:]
    answers = ask(servers, "lstm", json={"series": series.tolist()})
    eager, compiled = (np.array(answer["forecast"]) for answer in answers.values())
    np.testing.assert_allclose(compiled, eager, atol=1e-4)
    assert np.abs(eager - later).max() < 5


def test_every_bucket_of_every_demo_model_is_compiled(servers):
    for model in servers["compiled"].http.get("/info").json()["models"]:
        for bucket in model["buckets"]:
            assert (bucket["bucket"], bucket["state"]) == (bucket["bucket"], "compiled")
            assert bucket["parity_max_abs_error"] < 1e-4
