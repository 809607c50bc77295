"""Trains the LSTM forecaster on El Nino sea surface temperatures and writes its weights.

Monthly means off Peru, 1950 to 2010, from statsmodels; the last 12 years are held out. RMSE there,
in degrees, of 12 months forecast at every month: 1.03 from the 12 months before, 0.98 from 24, 0.83
from 120; "the same as last year" has 1.19. Run `python -m models.train_lstm`, some 15 seconds.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import numpy as np

from models.lstm import HORIZON, LONGEST, SHORTEST, WEIGHTS, build

if TYPE_CHECKING:
    from torch import nn

log = logging.getLogger(__name__)

SEED = 0
STEPS, BATCH, LEARNING_RATE = 300, 64, 1e-2
HELD_OUT_MONTHS = 12 * 12
NOISE = 0.3
"""In degrees. Without it some 500 months are soon known by heart."""

Floats = np.ndarray[Any, np.dtype[np.float32]]
Ints = np.ndarray[Any, np.dtype[np.int64]]


def main() -> None:
    """Train, compare with the naive forecast, write."""
    import torch
    from safetensors.torch import save_file

    logging.basicConfig(level=logging.INFO, format="%(message)s")
    torch.manual_seed(SEED)
    months = read_temperatures()
    module = build()
    train(module, months[:-HELD_OUT_MONTHS])
    for history in (12, 24, 120):
        learned, naive = evaluate(module, months, history)
        log.info("held out, %d months known: RMSE %.3f, naive %.3f", history, learned, naive)
    save_file(module.state_dict(), WEIGHTS)


def read_temperatures() -> Floats:
    """All months in one row."""
    from statsmodels.datasets import elnino

    table = elnino.load_pandas().data.drop(columns="YEAR")
    return np.asarray(table, np.float32).reshape(-1)


def train(module: nn.Module, months: Floats) -> None:
    """Fits `module` to windows of every length from one year up."""
    import torch

    rng = np.random.default_rng(SEED)
    optimizer = torch.optim.AdamW(module.parameters(), LEARNING_RATE)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, LEARNING_RATE, total_steps=STEPS)
    for step in range(STEPS):
        series, lengths, following = (torch.from_numpy(array) for array in _draw(rng, months))
        # Absolute, not squared: the two great El Ninos must not rule the rest.
        loss = (module(series, lengths) - following).abs().mean()
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        torch.nn.utils.clip_grad_norm_(module.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % 50 == 0:
            log.info("step %d: error %.3f", step, loss.item())


def _draw(rng: np.random.Generator, months: Floats) -> tuple[Floats, Ints, Floats]:
    """Series padded at the end [B, S], their lengths [B], and what came next [B, HORIZON]."""
    share = np.square(rng.random(BATCH))  # short windows more often: they are harder
    lengths = SHORTEST + (share * (LONGEST - SHORTEST)).astype(np.int64)
    ends = rng.integers(lengths, len(months) - HORIZON, endpoint=True)
    series = np.zeros((BATCH, lengths.max()), np.float32)
    for row, length, end in zip(series, lengths, ends, strict=True):
        row[:length] = months[end - length : end]
    series += NOISE * rng.standard_normal(series.shape, np.float32)
    return series, lengths, np.stack([months[end : end + HORIZON] for end in ends])


def evaluate(module: nn.Module, months: Floats, history: int) -> tuple[float, float]:
    """RMSE of the module and of "the same as last year", at every month held out."""
    import torch

    first = len(months) - HELD_OUT_MONTHS
    ends = range(first, len(months) - HORIZON + 1)
    series = np.stack([months[end - history : end] for end in ends])
    following = np.stack([months[end : end + HORIZON] for end in ends])
    with torch.inference_mode():
        lengths = torch.full((len(series),), history)
        forecast = module(torch.from_numpy(series), lengths).numpy()
    return _rmse(forecast - following), _rmse(series[:, -HORIZON:] - following)


def _rmse(error: Floats) -> float:
    return float(np.sqrt(np.square(error).mean()))


if __name__ == "__main__":
    main()
