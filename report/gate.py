"""A gate for CI: conditions that must not hold for a report, and a comparison with an older one.

    condition = metric [ "(" filter { "," filter } ")" ] comparison number
    filter    = ( "model" | "dtype" | "variant" | "batch" | "seq" ) "=" value
    comparison = "<" | "<=" | ">" | ">=" | "==" | "!="

`speedup(batch=1) < 1.2` holds when any compiled variant of any model is below 1.2 at batch 1;
`p99_ms(variant=eager) > 50` looks at eager alone. Where a bucket stayed eager the metric is not
there, which fails the gate too: what is not measured must not pass.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from report import figures
from report.schema import Bench, BucketBench, Report, Variant
from report.tables import Table, bucket_name, ms


class GateError(ValueError):
    """The condition or the baseline cannot be used; the text says what was expected."""


@dataclass(frozen=True, slots=True)
class Measured:
    """One variant of one bucket of one model."""

    bench: Bench
    bucket: BucketBench
    variant: Variant

    @property
    def key(self) -> tuple[str, ...]:
        """What it shares with the same measurement of another report."""
        bench = self.bench
        return (bench.model, bench.device, bench.dtype, bucket_name(self.bucket), self.variant.name)

    def fields(self) -> dict[str, str]:
        """What filters look at."""
        return {
            "model": self.bench.model,
            "dtype": self.bench.dtype,
            "variant": self.variant.name,
            "batch": str(self.bucket.batch),
            "seq": str(self.bucket.seq),
        }


def _speedup(one: Measured) -> float | None:
    speedup = figures.variant_speedup(one.bucket, one.variant)
    return speedup.ratio if speedup else None


def _break_even(one: Measured) -> float | None:
    if not one.variant.rounds:
        return None
    requests = figures.break_even(one.bucket, one.variant)
    return float("inf") if requests is None else requests


def _quantile_ms(q: float) -> Callable[[Measured], float | None]:
    def value(one: Measured) -> float | None:
        all_s = figures.calls(one.variant)
        return figures.quantile(all_s, q) * 1e3 if all_s else None

    return value


def _samples_per_s(one: Measured) -> float | None:
    return figures.samples_per_second(one.variant, one.bucket.batch) if one.variant.rounds else None


METRICS: dict[str, Callable[[Measured], float | None]] = {
    "speedup": _speedup,
    "break_even": _break_even,
    "p50_ms": _quantile_ms(0.5),
    "p90_ms": _quantile_ms(0.9),
    "p99_ms": _quantile_ms(0.99),
    "samples_per_s": _samples_per_s,
    "first_call_s": lambda one: one.variant.first_call_s,
    "warmup_s": lambda one: one.variant.warmup_s,
    "graphs": lambda one: one.variant.graphs,
    "graph_breaks": lambda one: one.variant.graph_breaks,
    "max_abs_error": lambda one: one.variant.parity_max_abs_error,
    "peak_bytes": lambda one: one.variant.peak_bytes,
    "pool_bytes": lambda one: one.variant.pool_bytes,
}
FILTERS = ("model", "dtype", "variant", "batch", "seq")
COMPARISONS: dict[str, Callable[[float, float], bool]] = {
    "<=": operator.le,
    ">=": operator.ge,
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    ">": operator.gt,
}
SHAPE = re.compile(r"\s*(\w+)\s*(?:\(([^()]*)\))?\s*(<=|>=|==|!=|<|>)\s*(\S+)\s*")


@dataclass(frozen=True, slots=True)
class Condition:
    """A parsed condition; `text` is how it was written."""

    text: str
    metric: str
    filters: dict[str, str]
    comparison: str
    number: float

    @classmethod
    def parse(cls, text: str) -> Condition:
        """Raises GateError, which names what was expected."""
        match = SHAPE.fullmatch(text)
        if match is None:
            raise _unusable(text, 'metric(filter=value, ...) comparison number, "(...)" optional')
        metric, filters, comparison, number = match.groups()
        if metric not in METRICS:
            raise _unusable(text, f"a metric: {', '.join(METRICS)}; not {metric!r}")
        try:
            limit = float(number)
        except ValueError:
            raise _unusable(text, f"a number after {comparison}, not {number!r}") from None
        return cls(text, metric, dict(_filters(text, filters or "")), comparison, limit)

    def failures(self, report: Report) -> Iterator[tuple[str, ...]]:
        """A row for each measurement that it holds for. Raises GateError when there is none that
        it is about."""
        chosen = [one for one in measurements(report) if self._is_about(one)]
        if not chosen:
            raise _unusable(self.text, "a measurement that was made; none matches")
        for one in chosen:
            value = METRICS[self.metric](one)
            if value is None:
                yield (self.text, *one.key, one.variant.reason or "not measured")
            elif COMPARISONS[self.comparison](value, self.number):
                yield (self.text, *one.key, f"{self.metric} is {value:.4g}")

    def _is_about(self, one: Measured) -> bool:
        fields = one.fields()
        is_wanted = "variant" in self.filters or one.variant.name != "eager"
        return is_wanted and all(fields[name] == value for name, value in self.filters.items())


def _filters(text: str, filters: str) -> Iterator[tuple[str, str]]:
    for part in filter(str.strip, filters.split(",")):
        name, equals, value = (piece.strip() for piece in part.partition("="))
        if name not in FILTERS or not equals or not value:
            raise _unusable(text, f"filters like batch=1 with {', '.join(FILTERS)}; not {part!r}")
        yield name, value


def _unusable(text: str, expected: str) -> GateError:
    return GateError(f"{text!r}: expected {expected}")


def measurements(report: Report) -> list[Measured]:
    """Every variant of every bucket of every model."""
    return [
        Measured(bench, bucket, variant)
        for bench in report.benches
        for bucket in bench.buckets
        for variant in bucket.variants
    ]


def failures(report: Report, conditions: Sequence[Condition]) -> Table:
    """Every measurement that a condition holds for."""
    header = ("condition", "model", "device", "dtype", "bucket", "variant", "found")
    rows = [row for condition in conditions for row in condition.failures(report)]
    return Table("Conditions that hold", header, tuple(rows))


def against(report: Report, baseline: Report) -> tuple[Table, bool]:
    """What both measured, older beside newer, and whether any of it got worse.

    Worse is a speed-up whose interval lies below the older one's, by enough to matter, or a bucket
    that no longer compiles: both hold on another machine of the kind, which latencies do not.
    """
    older = {one.key: one for one in measurements(baseline)}
    pairs = [(older[new.key], new) for new in measurements(report) if new.key in older]
    pairs = [(old, new) for old, new in pairs if new.variant.name != "eager"]
    if not pairs:
        raise GateError("the baseline has no model, bucket and variant in common with this run")
    header = (
        *("model", "device", "dtype", "bucket", "variant", "eager p50 ms", "compiled p50 ms"),
        *("speed-up", "verdict"),
    )
    rows = tuple(_pair_row(old, new) for old, new in pairs)
    return Table("Against the baseline", header, rows), any(row[-1] == WORSE for row in rows)


WORSE = "worse"


def _pair_row(old: Measured, new: Measured) -> tuple[str, ...]:
    was = figures.variant_speedup(old.bucket, old.variant)
    now = figures.variant_speedup(new.bucket, new.variant)
    eager = [one.bucket.variants[0] for one in (old, new)]
    return (
        *new.key,
        _change(*(_p50(variant) for variant in eager)),
        _change(*(_p50(one.variant) for one in (old, new))),
        _change(*("stayed eager" if s is None else str(s) for s in (was, now))),
        _judge(was, now),
    )


def _judge(was: figures.Speedup | None, now: figures.Speedup | None) -> str:
    if was is None or now is None:
        return WORSE if was is not None else "better" if now is not None else "same"
    if now.high < was.low and now.ratio * figures.NOTABLE <= was.ratio:
        return WORSE
    if now.low > was.high and now.ratio >= was.ratio * figures.NOTABLE:
        return "better"
    return "same"


def _p50(variant: Variant) -> str:
    all_s = figures.calls(variant)
    return ms(figures.quantile(all_s, 0.5)) if all_s else "-"


def _change(old: str, new: str) -> str:
    return f"{old} -> {new}"
