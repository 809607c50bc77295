"""Are the compiled answers the eager answers? Compares two sets of output arrays.

Knows nothing of how either was made. Tolerances are relative to the largest eager value, one per
dtype: torch's own benchmark suite accepts 1e-4 (float32) and 1e-3 to 8e-2 (half) per model.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from server.types import Arrays

TOLERANCES = {"float32": 1e-4, "float16": 1e-2, "bfloat16": 2e-2}


@dataclass(frozen=True, slots=True)
class Parity:
    """The largest absolute difference, and what is wrong with it (None: nothing)."""

    max_abs_error: float
    problem: str | None = None


def compare(eager: Arrays, compiled: Arrays, dtype: str) -> Parity:
    """Holds `compiled` against `eager`, output by output. `dtype` is that of the weights."""
    worst = 0.0
    for name, expected in eager.items():
        actual = compiled[name]
        if expected.shape != actual.shape:
            return Parity(np.inf, f"{name}: shape {actual.shape}, eager gives {expected.shape}")
        if not np.isfinite(actual).all():
            return Parity(np.inf, f"{name}: not finite")
        error = float(np.abs(actual.astype(np.float64) - expected).max(initial=0.0))
        limit = _limit(expected, dtype)
        worst = max(worst, error)
        if error > limit:
            return Parity(error, f"{name}: differs from eager by {error:.1e}, limit {limit:.1e}")
    return Parity(worst)


def _limit(expected: np.ndarray[Any, Any], dtype: str) -> float:
    if not np.issubdtype(expected.dtype, np.floating):
        return 0.0
    return TOLERANCES[dtype] * max(1e-6, float(np.abs(expected).max(initial=0.0)))
