"""Are the compiled answers as good as the eager ones? Compares the output arrays of one sample.

Both are held against the truth: the same model in float64 where there is one, else eager itself.
Compiled may be a few times as far from it as eager is, and a little more: the rule of torch's own
benchmark suite (`torch._dynamo.utils.same`). Knows nothing of how the arrays were made.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from server.types import Arrays

NdArray = np.ndarray[Any, Any]
Precision = Literal["float32", "tf32", "float16", "bfloat16"]

FEW = 1000  # elements: below that a root mean square is a matter of luck
TINY = 1e-6  # outputs that are smaller are noise


@dataclass(frozen=True, slots=True)
class Rule:
    """What compiled may add to `factor` times eager's own error, relative to the largest value."""

    tolerance: float
    factor: float
    cosine_distance: float


RULES: Mapping[Precision, Rule] = {
    "float32": Rule(1e-4, 2, 1e-5),
    "tf32": Rule(5e-3, 3, 1e-3),
    "float16": Rule(1e-2, 3, 1e-3),
    "bfloat16": Rule(2e-2, 3, 1e-3),
}


@dataclass(frozen=True, slots=True)
class Parity:
    """The figures, the worst of all float outputs, and what is wrong (None: nothing).

    `max_abs_error` and `cosine` are against eager, the RMSEs against the truth.
    """

    max_abs_error: float = 0.0
    rmse: float = 0.0
    eager_rmse: float = 0.0
    cosine: float = 1.0
    problem: str | None = None


def worst(parities: Iterable[Parity]) -> Parity:
    """The worst of each figure, and the first problem."""
    found = list(parities) or [Parity()]
    return Parity(
        max_abs_error=max(one.max_abs_error for one in found),
        rmse=max(one.rmse for one in found),
        eager_rmse=max(one.eager_rmse for one in found),
        cosine=min(one.cosine for one in found),
        problem=next((one.problem for one in found if one.problem is not None), None),
    )


def compare(eager: Arrays, compiled: Arrays, truth: Arrays | None, precision: Precision) -> Parity:
    """Holds `compiled` against `eager`, output by output; `truth` is the float64 answer."""
    return _compare(eager, compiled, truth, RULES[precision])


def compare_closely(eager: Arrays, compiled: Arrays, precision: Precision) -> Parity:
    """Without the truth, but a tenth of the tolerance. Each element is then no further from the
    truth than eager's own error and that tenth (triangle inequality): `compare` allows more."""
    rule = RULES[precision]
    return _compare(eager, compiled, None, replace(rule, tolerance=rule.tolerance / 10))


def _compare(eager: Arrays, compiled: Arrays, truth: Arrays | None, rule: Rule) -> Parity:
    for name, expected in eager.items():
        if problem := _unusable(expected, compiled[name]):
            return Parity(np.inf, problem=f"{name}: {problem}")
    floats = {name: array for name, array in eager.items() if _is_float(array)}
    compared = {
        name: Float(array, compiled[name], truth[name] if truth else None, rule)
        for name, array in floats.items()
    }
    found = [
        replace(one.figures(), problem=_told(name, one.problem())) for name, one in compared.items()
    ]
    for name in eager.keys() - floats.keys():
        problem = _wrong_integers(eager[name], compiled[name], compared.values())
        found.append(Parity(problem=_told(name, problem)))
    return worst(found)


class Float:
    """One float output of one sample: eager, compiled and the truth."""

    def __init__(
        self, eager: NdArray, compiled: NdArray, truth: NdArray | None, rule: Rule
    ) -> None:
        self._rule = rule
        self._is_eager_truth = truth is None
        self.eager = np.asarray(eager, np.float64)
        self._compiled = np.asarray(compiled, np.float64)
        self._truth = self.eager if truth is None else np.asarray(truth, np.float64)
        self._scale = max(TINY, float(np.abs(self._truth).max(initial=0.0)))
        self._factor = max(3.0, rule.factor) if self.eager.size < FEW else rule.factor
        self._eager_error = self._error(self.eager)

    @property
    def limit(self) -> float:
        """How far from the truth any one element may be."""
        return self._factor * self._eager_error + self._rule.tolerance * self._scale

    def figures(self) -> Parity:
        """What was measured, without a verdict."""
        return Parity(
            max_abs_error=float(np.abs(self._compiled - self.eager).max(initial=0.0)),
            rmse=_rmse(self._compiled, self._truth),
            eager_rmse=_rmse(self.eager, self._truth),
            cosine=_cosine(self._compiled, self.eager),
        )

    def problem(self) -> str | None:
        """What is wrong, if anything. Written so that NaN anywhere is wrong."""
        truth = "eager" if self._is_eager_truth else "float64"
        error = self._error(self._compiled)
        if not error <= self.limit:
            return f"differs from {truth} by {error:.1e}, limit {self.limit:.1e}"
        rmse, limit = _rmse(self._compiled, self._truth), self._rmse_limit()
        if not rmse <= limit:
            return f"RMSE to {truth} is {rmse:.1e}, limit {limit:.1e}"
        distance, limit = self._distance(self._compiled), self._distance_limit()
        if not distance <= limit:
            return f"cosine similarity to {truth} is {1 - distance:.6f}, limit {1 - limit:.6f}"
        if not self._is_same_choice():
            return f"another largest value than {truth}, which is not a close call"
        return None

    def _error(self, values: NdArray) -> float:
        return float(np.abs(values - self._truth).max(initial=0.0))

    def _rmse_limit(self) -> float:
        is_statistic = self.eager.size >= FEW and not self._is_eager_truth
        floor = self._rule.tolerance * self._scale / (10 if is_statistic else 1)
        return self._factor * _rmse(self.eager, self._truth) + floor

    def _distance(self, values: NdArray) -> float:
        if self.eager.size < 2 or self._scale <= TINY:
            return 0.0
        return 1 - _cosine(values, self._truth)

    def _distance_limit(self) -> float:
        return self._factor * self._distance(self.eager) + self._rule.cosine_distance

    def _is_same_choice(self) -> bool:
        """Whether the largest along the last axis is the true one, wherever eager, as far off as
        it is, could not have chosen another."""
        if self.eager.ndim == 0 or self.eager.shape[-1] < 2:
            return True
        is_close = (
            _margin(self._truth) <= 2 * self._eager_error + self._rule.tolerance * self._scale
        )
        same = self._compiled.argmax(-1) == self._truth.argmax(-1)
        return bool((same | is_close).all())


def _is_float(array: NdArray) -> bool:
    return bool(np.issubdtype(array.dtype, np.floating))


def _told(name: str, problem: str | None) -> str | None:
    return problem and f"{name}: {problem}"


def _unusable(eager: NdArray, compiled: NdArray) -> str | None:
    if eager.shape != compiled.shape:
        return f"shape {compiled.shape}, eager gives {eager.shape}"
    if not np.isfinite(compiled).all():
        return "not finite" if np.isfinite(eager).all() else "not finite, nor is eager"
    if not np.isfinite(eager).all():
        return "finite, which eager is not"
    return None


def _wrong_integers(eager: NdArray, compiled: NdArray, floats: Iterable[Float]) -> str | None:
    """Integers are exact, unless scores beside them show that the choice was a close call."""
    wrong = eager != compiled
    for scores in floats:
        wrong = wrong & ~_close_calls(scores.eager, np.shape(eager), 2 * scores.limit)
    count = int(np.sum(wrong))
    return f"{count} of {wrong.size} integers differ from eager" if count else None


def _close_calls(scores: NdArray, shape: tuple[int, ...], gap: float) -> NdArray:
    """Where an integer of `shape` may be another: it is one of the best (sorted, scores of the
    same shape) or the best (scores with one more axis), and the next is within `gap`."""
    if scores.shape == shape and scores.ndim:
        near = np.abs(np.diff(scores, axis=-1)) <= gap
        edge = np.ones_like(scores[..., :1], bool)  # what follows the last is not to be seen
        return np.asarray(np.concatenate([~edge, near], -1) | np.concatenate([near, edge], -1))
    if scores.shape[:-1] == shape and scores.ndim and scores.shape[-1] > 1:
        return np.asarray(_margin(scores) <= gap)
    return np.zeros(shape, bool)


def _margin(scores: NdArray) -> NdArray:
    best = np.partition(scores, -2, axis=-1)
    margin: NdArray = best[..., -1] - best[..., -2]
    return margin


def _rmse(one: NdArray, two: NdArray) -> float:
    return float(np.sqrt(np.mean(np.square(one - two)))) if one.size else 0.0


def _cosine(one: NdArray, two: NdArray) -> float:
    lengths = float(np.linalg.norm(one) * np.linalg.norm(two))
    if lengths == 0:
        return 1.0 if np.array_equal(one, two) else 0.0
    return float(np.vdot(one, two)) / lengths
