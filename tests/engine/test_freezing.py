"""`compile.freezing` changes how a convolutional model is compiled, never what it answers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from models.base import TensorSpec
from server.engine.tensors import rows_of
from tests.fakes import Double


class ConvNorm(Double):
    """A convolution with a batch norm that does something."""

    inputs = (TensorSpec("x", "float32", ("batch", 3, 16, 16)),)
    outputs = (TensorSpec("y", "float32", ("batch", 8)),)

    def load(self, device: str, dtype: str) -> nn.Module:
        torch.manual_seed(0)
        norm = nn.BatchNorm2d(8)
        norm.running_mean, norm.running_var = torch.randn(8), torch.rand(8) + 0.5
        layers = (nn.Conv2d(3, 8, 3), norm, nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
        return nn.Sequential(*layers).eval()

    def example(self, batch: int, seq: int) -> dict[str, Any]:
        return {"x": np.random.default_rng(0).standard_normal((batch, 3, 16, 16), np.float32)}


@pytest.mark.parametrize("freezing", [False, True])
def test_a_convolutional_model_answers_alike_however_it_is_frozen(start, freezing):
    torch.compiler.reset()  # in one process, the code of another freezing would serve this one
    running = start([ConvNorm()], mode="compiled", compile={"freezing": freezing})
    assert set(running.buckets("double").values()) == {"compiled"}
    rows = rows_of(ConvNorm().example(3, 0))
    with torch.inference_mode():
        module = ConvNorm().load("cpu", "float32")
        expected = module(torch.from_numpy(ConvNorm().example(3, 0)["x"])).numpy()
    for reply, row in zip(running.run("double", rows), expected, strict=True):
        assert (reply.mode, reply.fallback) == ("compiled", None)
        np.testing.assert_allclose(reply.outputs["y"], row, atol=1e-5)
