"""The forecaster: series of any length in, twelve months out."""

import numpy as np
import pytest
import torch
from statsmodels.datasets import elnino

from models.base import BadSample, ModelError, ModelSource
from models.lstm import LSTMForecaster
from tests.models.batches import answers, run


def make(**options):
    return LSTMForecaster(ModelSource(name="lstm", reference="lstm", **options))


@pytest.fixture(scope="module")
def temperatures():
    return elnino.load_pandas().data.drop(columns="YEAR").to_numpy().reshape(-1)


def forecasts(payloads, model=None, dtype="float32"):
    model = model or make()
    return [
        np.array(answer["forecast"])
        for answer in answers((model, model.load("cpu", dtype)), payloads)
    ]


def test_it_forecasts_better_than_last_year_again(temperatures):
    months = range(len(temperatures) - 144, len(temperatures) - 12)
    payloads = [{"series": temperatures[month - 120 : month].tolist()} for month in months]
    actual = np.stack([temperatures[month : month + 12] for month in months])
    naive = np.stack([temperatures[month - 12 : month] for month in months])
    error = np.sqrt(np.square(np.stack(forecasts(payloads)) - actual).mean())
    assert error < 0.75 * np.sqrt(np.square(naive - actual).mean())


def test_a_short_series_gets_the_same_answer_beside_a_long_one(temperatures):
    payloads = [{"series": temperatures[:length].tolist()} for length in (128, 12, 37)]
    together = forecasts(payloads)
    for payload, answer in zip(payloads, together, strict=True):
        assert np.allclose(forecasts([payload])[0], answer, atol=1e-4)


def test_the_scale_of_a_series_is_that_of_its_forecast(temperatures):
    celsius = temperatures[:60]
    fahrenheit = celsius * 1.8 + 32
    one, other = forecasts([{"series": celsius.tolist()}, {"series": fahrenheit.tolist()}])
    assert np.allclose(one * 1.8 + 32, other, atol=1e-3)


def test_extreme_series_have_finite_forecasts():
    series = ([5.0] * 12, [0.0] * 20, [1e6, -1e6] * 20, [1e-6 * i for i in range(12)])
    constant, *others = forecasts([{"series": values} for values in series])
    assert np.allclose(constant, 5.0, atol=1e-3)
    assert np.isfinite(others).all()


@pytest.mark.parametrize(
    ("series", "problem"),
    [
        ([1.0] * 11, "11 values; expected 12 to 128"),
        ([1.0] * 129, "129 values; expected 12 to 128"),
        ([1.0] * 12 + [float("nan")], "finite numbers"),
        ([1.0] * 12 + [float("inf")], "finite numbers"),
        ([1.0] * 12 + [1e300], "between -1e6 and 1e6"),
    ],
)
def test_what_it_cannot_use_is_refused(series, problem):
    with pytest.raises(BadSample, match=f"series: .*{problem}"):
        make().preprocess({"series": series})


def test_max_seq_lowers_the_limit():
    model = make(max_seq=24)
    assert model.max_seq == 24
    with pytest.raises(BadSample, match="25 values; expected 12 to 24"):
        model.preprocess({"series": [1.0] * 25})


@pytest.mark.parametrize("limit", [11, 129])
def test_a_limit_it_was_not_made_for_is_refused(limit):
    with pytest.raises(ModelError, match=f"max_seq = {limit}: expected 12 to 128"):
        make(max_seq=limit)


def test_random_weights_are_marked_and_the_same_every_time(temperatures):
    payload = {"series": temperatures[:24].tolist()}
    model = make(weights="random")
    first, second = forecasts([payload], model), forecasts([payload], make(weights="random"))
    assert model.random_weights
    assert np.array_equal(first, second)
    assert not np.allclose(first, forecasts([payload]))


def test_half_precision_forecasts_nearly_the_same(temperatures):
    payload = {"series": temperatures[:48].tolist()}
    half = forecasts([payload], dtype="bfloat16")
    assert np.allclose(half, forecasts([payload]), atol=0.2)


def test_examples_fill_the_sequence_they_are_asked_for():
    example = make().example(3, 64)
    assert example["series"].shape == (3, 64)
    assert example["length"][0] == 64
    assert (example["length"] >= 12).all()
    assert np.array_equal(example["series"], make().example(3, 64)["series"])


def test_dynamo_takes_it_whole():
    model = make()
    module = model.load("cpu", "float32")
    with torch._dynamo.config.patch(allow_rnn=True):
        compiled = torch.compile(module, fullgraph=True, dynamic=False, backend="eager")
        example = model.example(2, 16)
        forecast = run(model, compiled, example)["forecast"]
    assert np.allclose(forecast, run(model, module, example)["forecast"], atol=1e-5)
