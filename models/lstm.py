"""A forecaster of monthly series: an LSTM over as many months as there are, the next 12 out.

Its weights are in the repository; `train_lstm` made them. Series of different lengths are padded
at their end, which no earlier step of an LSTM sees.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from pydantic import BaseModel, ConfigDict

from models.base import Arrays, BadSample, ModelError, ModelSource, ServedModel, TensorSpec
from models.checkpoint import check_weights, load_weights, seeded, settle

if TYPE_CHECKING:
    from torch import Tensor, nn

WEIGHTS = Path(__file__).parent / "weights" / "lstm_elnino.safetensors"
HORIZON = 12
SHORTEST, LONGEST = 12, 128
"""Months; the windows it was trained on."""
LARGEST = 1e6
"""Larger numbers have squares that a float32 mean of them would not survive."""


class SeriesSample(BaseModel):
    """One series."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)

    series: list[float]
    """Monthly values, oldest first: 12 to 128 of them, each between -1e6 and 1e6."""


class LSTMForecaster(ServedModel):
    """The 12 values that follow a series."""

    sample = SeriesSample
    preprocess_inline = True
    inputs = (
        TensorSpec("series", "float32", ("batch", "seq")),
        TensorSpec("length", "int64", ("batch",), limits=(1, LONGEST)),
    )
    outputs = (TensorSpec("forecast", "float32", ("batch", HORIZON)),)
    min_seq = SHORTEST

    def __init__(self, source: ModelSource) -> None:
        check_weights(source)
        self.name = source.name
        self.random_weights = source.weights == "random"
        self._weights = str(WEIGHTS) if source.weights == "default" else source.weights
        self._longest = source.max_seq or LONGEST
        if not SHORTEST <= self._longest <= LONGEST:
            raise ModelError(f"max_seq = {self._longest}: expected {SHORTEST} to {LONGEST}")
        self.max_seq = self._longest

    def load(self, device: str, dtype: str) -> nn.Module:
        with seeded():
            module = build()
        if not self.random_weights:
            load_weights(module, self._weights)
        return settle(module, device, dtype)

    def preprocess(self, payload: Mapping[str, Any]) -> Arrays:
        values = np.asarray(payload["series"], np.float64)
        if not SHORTEST <= len(values) <= self._longest:
            raise BadSample(f"series: {len(values)} values; expected {SHORTEST} to {self._longest}")
        if not (np.abs(values) <= LARGEST).all():
            raise BadSample("series: expected finite numbers between -1e6 and 1e6")
        return {"series": values.astype(np.float32), "length": np.asarray(len(values))}

    def postprocess(self, outputs: Arrays) -> Any:
        return {"forecast": outputs["forecast"]}

    def example(self, batch: int, seq: int) -> Arrays:
        """Noisy years; the first series as long as `seq`, the others up to that."""
        rng = np.random.default_rng(0)
        months = np.arange(seq)
        noise = rng.normal(0, 0.5, (batch, seq))
        series = 23 + 3 * np.sin(2 * np.pi * months / 12) + noise
        length = rng.integers(min(SHORTEST, seq), seq, batch, endpoint=True)
        length[0] = seq
        series[months >= length[:, None]] = 0
        return {"series": series.astype(np.float32), "length": length}


def build(hidden: int = 32) -> nn.Module:
    """The module, untrained: (series [B, S], length [B]) to forecast [B, HORIZON]."""
    import torch

    class Forecaster(torch.nn.Module):
        """Sees each series at mean 0 and deviation 1, and answers on its own scale."""

        def __init__(self) -> None:
            super().__init__()
            self.lstm = torch.nn.LSTM(1, hidden, batch_first=True)
            self.head = torch.nn.Linear(hidden, HORIZON)

        def forward(self, series: Tensor, length: Tensor) -> Tensor:
            steps = torch.arange(series.shape[1], device=series.device)
            length = length.clamp(1, series.shape[1]).unsqueeze(1)  # [B, 1]
            known = steps < length  # [B, S]
            mean, deviation = _scale(series.float(), known, length)
            scaled = (series.float() - mean) / (deviation + 1e-6) * known
            states, _ = self.lstm(scaled.to(series.dtype).unsqueeze(-1))  # [B, S, H]
            last = (length - 1).unsqueeze(-1).expand(-1, 1, hidden)
            forecast = self.head(states.gather(1, last).squeeze(1))
            result: Tensor = forecast * deviation + mean
            return result

    return Forecaster()


def _scale(series: Tensor, known: Tensor, length: Tensor) -> tuple[Tensor, Tensor]:
    mean = (series * known).sum(1, keepdim=True) / length  # [B, 1]
    variance = ((series - mean) * known).square().sum(1, keepdim=True) / length
    return mean, variance.sqrt()
