"""What follows from a report's measurements: quantiles, speed-ups, break-even, the knee.

Speed-ups are the median ratio of paired rounds, and their 95 % intervals come from drawing rounds
again (bootstrap): calls of one round share their fate on a busy machine and are not independent.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, takewhile

import numpy as np

from report.schema import Bench, BucketBench, Load, Run, Side, Variant

DRAWS = 4000
NOTABLE = 1.05  # smaller differences decide nothing, however sure they are
ANSWERED = 0.95  # of what arrived: below that a server has fallen behind


@dataclass(frozen=True, slots=True)
class Speedup:
    """How many times faster, with its 95 % interval."""

    ratio: float
    low: float
    high: float

    @property
    def is_gain(self) -> bool:
        """Surely faster, and by enough to matter."""
        return self.low > 1 and self.ratio >= NOTABLE

    @property
    def is_loss(self) -> bool:
        """Surely slower, and by enough to matter."""
        return self.high < 1 and self.ratio <= 1 / NOTABLE

    def __str__(self) -> str:
        return f"{self.ratio:.2f} ({self.low:.2f} to {self.high:.2f})"


def paired_speedup(base: Sequence[float], other: Sequence[float]) -> Speedup:
    """Of `other` over `base`: seconds by round, the rounds in pairs."""
    ratios = np.asarray(base) / np.asarray(other)
    draws = np.random.default_rng(0).integers(0, len(ratios), (DRAWS, len(ratios)))
    low, high = np.quantile(np.median(ratios[draws], axis=1), (0.025, 0.975))
    return Speedup(float(np.median(ratios)), float(low), float(high))


def quantile(seconds: Sequence[float], q: float) -> float:
    """Of all calls, outliers and all."""
    return float(np.quantile(np.asarray(seconds), q))


# Without HTTP


def calls(variant: Variant) -> list[float]:
    """Seconds of every call of every round."""
    return list(chain.from_iterable(variant.rounds))


def samples_per_second(variant: Variant, batch: int) -> float:
    """While it ran without a pause."""
    return batch / float(np.mean(calls(variant)))


def variant_speedup(bucket: BucketBench, variant: Variant) -> Speedup | None:
    """Over eager in the same bucket; None where nothing was compiled."""
    if not variant.rounds:
        return None
    medians = [[float(np.median(r)) for r in one.rounds] for one in (bucket.variants[0], variant)]
    return paired_speedup(*medians)


def cost_s(variant: Variant) -> float:
    """What had to be done before a compiled bucket could serve."""
    return (variant.first_call_s or 0) + (variant.warmup_s or 0)


def break_even(bucket: BucketBench, variant: Variant) -> float | None:
    """Requests (of one sample, in full batches) after which compiling has paid; None: never."""
    speedup = variant_speedup(bucket, variant)
    if speedup is None or not speedup.is_gain:
        return None
    saved_s = quantile(calls(bucket.variants[0]), 0.5) - quantile(calls(variant), 0.5)
    return cost_s(variant) / saved_s * bucket.batch if saved_s > 0 else None


def compiled(bench: Bench) -> Iterator[tuple[BucketBench, Variant]]:
    """Every bucket with every variant that is not eager."""
    for bucket in bench.buckets:
        for variant in bucket.variants[1:]:
            yield bucket, variant


# Over HTTP


@dataclass(frozen=True, slots=True)
class Step:
    """The runs of one side under one load: so many arrivals a second, or so many users."""

    runs: tuple[Run, ...]

    @property
    def offered_rps(self) -> float | None:
        return self.runs[0].offered_rps

    @property
    def load(self) -> str:
        """In words."""
        run = self.runs[0]
        return f"{run.users} users" if run.offered_rps is None else f"{run.offered_rps:g} req/s"

    @property
    def latency_s(self) -> list[float]:
        return list(chain.from_iterable(run.latency_s for run in self.runs))

    @property
    def failures(self) -> dict[str, int]:
        total: dict[str, int] = {}
        for run in self.runs:
            for reason, count in run.failures.items():
                total[reason] = total.get(reason, 0) + count
        return total

    @property
    def answered_rps(self) -> float:
        """Right answers a second, those counted alone that came while requests still arrived."""
        in_time = sum(
            start + latency <= run.seconds
            for run in self.runs
            for start, latency in zip(run.start_s, run.latency_s, strict=True)
        )
        return in_time / sum(run.seconds for run in self.runs)

    @property
    def keeps_up(self) -> bool:
        """Nearly all that arrived was answered rightly while it arrived."""
        return self.offered_rps is None or self.answered_rps >= ANSWERED * self.offered_rps


def steps(side: Side) -> list[Step]:
    """The runs of a side by load, lightest first."""
    by_load: dict[tuple[float, int], list[Run]] = {}
    for run in side.runs:
        by_load.setdefault((run.offered_rps or 0, run.users or 0), []).append(run)
    return [Step(tuple(by_load[load])) for load in sorted(by_load)]


def knee(side: Side) -> float | None:
    """The highest arrival rate that the side kept up with, as with all below it; None: with none,
    or none was offered."""
    offered = [step for step in steps(side) if step.offered_rps is not None]
    held = [step.offered_rps for step in takewhile(lambda step: step.keeps_up, offered)]
    return held[-1] if held else None


def load_speedups(load: Load, side: Side) -> list[tuple[Step, Speedup]]:
    """Of the median latency over the first side's, for each load that both answered."""
    found = []
    theirs = {step.load: step for step in steps(load.sides[0])}
    for step in steps(side):
        base = theirs.get(step.load)
        if base is None:
            continue
        medians = [
            (quantile(one.latency_s, 0.5), quantile(two.latency_s, 0.5))
            for one, two in _pairs(base, step)
        ]
        if medians:
            found.append((step, paired_speedup(*zip(*medians, strict=True))))
    return found


def _pairs(base: Step, other: Step) -> Iterator[tuple[Run, Run]]:
    by_round = {run.round: run for run in base.runs}
    for run in other.runs:
        one = by_round.get(run.round)
        if one is not None and one.latency_s and run.latency_s:
            yield one, run


def load_break_even(load: Load, side: Side) -> float | None:
    """Requests after which a later start has paid, at the lightest load; None: never, or unknown.

    What is saved is the median latency: one request after another.
    """
    speedups = load_speedups(load, side)
    if side.ready_s is None or load.sides[0].ready_s is None or not speedups:
        return None
    later_s = side.ready_s - load.sides[0].ready_s
    step, speedup = speedups[0]
    base = next(one for one in steps(load.sides[0]) if one.load == step.load)
    saved_s = quantile(base.latency_s, 0.5) - quantile(step.latency_s, 0.5)
    return max(0.0, later_s) / saved_s if speedup.is_gain and saved_s > 0 else None
