"""The charts of a report: which figures are drawn, and how. `svg` draws."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from report import figures, svg
from report.schema import Bench, BucketBench, Load, Side
from report.tables import bucket_name
from report.verdict import where

SHOWN = (0.5, 0.75, 0.9, 0.95, 0.99, 0.995, 0.999)
SLICES = 120


@dataclass(frozen=True, slots=True)
class Plot:
    """A chart, with what it shows and how to read it."""

    title: str
    caption: str
    svg: str


def bench_plots(bench: Bench) -> Iterator[Plot]:
    """Of one model without HTTP."""
    yield _bench_latency(bench)
    smallest = bench.buckets[0]
    named = [(variant.name, figures.calls(variant)) for variant in smallest.variants]
    yield _distribution(f"All calls at {where(smallest)}, outliers kept.", named)
    speedups = list(_speedups(bench))
    if speedups:
        axis = svg.Axis("times faster than eager", text=_times)
        yield Plot(
            "Speed-up",
            "Median ratio of paired rounds and its 95 % interval; right of the line compiling is "
            "faster.",
            svg.intervals("Speed-up", axis, speedups, reference=1.0),
        )
        yield _bench_break_even(smallest)


def _bench_latency(bench: Bench) -> Plot:
    rows = [
        _spread(f"{bucket_name(bucket)} {variant.name}", figures.calls(variant), series)
        for bucket in bench.buckets
        for series, variant in enumerate(bucket.variants)
        if variant.rounds
    ]
    axis = svg.Axis("milliseconds a call", is_log=True)
    caption = "Median of all calls, outliers kept; the bar reaches from the 10th percentile to p99."
    return Plot("Latency of a batch", caption, svg.intervals("Latency", axis, rows))


def _speedups(bench: Bench) -> Iterator[svg.Interval]:
    for bucket in bench.buckets:
        for series, variant in enumerate(bucket.variants[1:], 1):
            speedup = figures.variant_speedup(bucket, variant)
            if speedup is not None:
                label = f"{bucket_name(bucket)} {variant.name}"
                yield svg.Interval(label, speedup.low, speedup.ratio, speedup.high, series)


def _bench_break_even(bucket: BucketBench) -> Plot:
    starts = [(v.name, figures.cost_s(v), v.rounds) for v in bucket.variants]
    sides = [
        (name, cost, figures.quantile([s for r in rounds for s in r], 0.5) / bucket.batch)
        for name, cost, rounds in starts
        if rounds
    ]
    return _break_even(f"at {where(bucket)}", sides)


def _break_even(at: str, sides: Sequence[tuple[str, float, float]]) -> Plot:
    """`sides`: name, seconds before the first request, seconds a request."""
    base_cost, base_each = sides[0][1:]
    crossings = [
        (cost - base_cost) / (base_each - each) for _, cost, each in sides if each < base_each
    ]
    dearest = max(cost for _, cost, _ in sides)
    end = max([2 * c for c in crossings if c > 0] or [2 * dearest / base_each, 1.0])
    drawn = [
        svg.Line(name, [(0, cost), (end, cost + each * end)], series)
        for series, (name, cost, each) in enumerate(sides)
    ]
    x, y = (
        svg.Axis("requests, one after another"),
        svg.Axis("seconds, start included", text=svg.plain),
    )
    caption = f"Time spent {at}: where the lines cross, compiling has paid."
    return Plot("Break-even", caption, svg.lines("Break-even", x, y, drawn))


def load_plots(load: Load) -> Iterator[Plot]:
    """Of one scenario over HTTP."""
    caption = f"All requests at {figures.steps(load.sides[0])[0].load}, from when they were due."
    yield _distribution(caption, [(side.name, _lightest(side)) for side in load.sides])
    yield from _by_load(load)
    yield _over_time(load)
    yield _by_bucket(load)
    rows = [
        svg.Interval(f"{step.load} {side.name}", speedup.low, speedup.ratio, speedup.high, series)
        for series, side in enumerate(load.sides[1:], 1)
        for step, speedup in figures.load_speedups(load, side)
    ]
    if rows:
        axis = svg.Axis(f"times faster than {load.sides[0].name}", text=_times)
        caption = "Of the median latency: median ratio of paired runs and its 95 % interval."
        yield Plot("Speed-up", caption, svg.intervals("Speed-up", axis, rows, reference=1.0))
    yield from _memory(load)
    starts = [(s.name, s.ready_s, figures.steps(s)[0].latency_s) for s in load.sides]
    sides = [
        (name, ready_s, figures.quantile(latency_s, 0.5))
        for name, ready_s, latency_s in starts
        if ready_s is not None and latency_s
    ]
    if len(sides) == len(load.sides):
        yield _break_even("from the start of the process", sides)


def _distribution(caption: str, named: Sequence[tuple[str, Sequence[float]]]) -> Plot:
    x = svg.Axis(
        "share that was faster",
        is_log=True,
        ticks=(2, 10, 100, 1000),
        text=lambda t: f"{100 * (1 - 1 / t):g} %",
    )
    drawn = [
        svg.Line(name, [(1 / (1 - q), figures.quantile(all_s, q) * 1e3) for q in SHOWN], series)
        for series, (name, all_s) in enumerate(named)
        if all_s
    ]
    y = svg.Axis("milliseconds", is_log=True)
    return Plot("Distribution", caption, svg.lines("Latency distribution", x, y, drawn))


def _lightest(side: Side) -> list[float]:
    return figures.steps(side)[0].latency_s


def _by_load(load: Load) -> Iterator[Plot]:
    """Against the offered rate, then against the number of users, where there are several."""
    by_rate = [
        (side, [(rate, s) for s in figures.steps(side) if (rate := s.offered_rps) is not None])
        for side in load.sides
    ]
    by_users = [
        (side, [(float(n), s) for s in figures.steps(side) if (n := s.runs[0].users) is not None])
        for side in load.sides
    ]
    marks = [
        (rate, f"{side.name} keeps up", series)
        for series, side in enumerate(load.sides)
        if (rate := figures.knee(side)) is not None
    ]
    in_time = f"; a side keeps up while it gives {figures.ANSWERED:.0%} of them in time"
    if max(len(found) for _, found in by_rate) > 1:
        yield from _against("offered rate", "offered, requests a second", by_rate, marks, in_time)
    if max(len(found) for _, found in by_users) > 1:
        yield from _against("users", "users at once", by_users)


def _against(
    what: str,
    label: str,
    sides: Sequence[tuple[Side, Sequence[tuple[float, figures.Step]]]],
    marks: Sequence[tuple[float, str, int]] = (),
    in_time: str = "",
) -> Iterator[Plot]:
    x = svg.Axis(label, from_zero=True)
    answered = [
        svg.Line(side.name, [(at, step.answered_rps) for at, step in found], series, dots=True)
        for series, (side, found) in enumerate(sides)
    ]
    y = svg.Axis("answered, requests a second", from_zero=True)
    title = f"Throughput against {what}"
    caption = f"Right answers a second{in_time}."
    yield Plot(title, caption, svg.lines(title, x, y, answered, marks))
    tails = [
        svg.Line(
            f"{side.name} {name}",
            [
                (at, figures.quantile(step.latency_s, q) * 1e3)
                for at, step in found
                if step.latency_s
            ],
            series,
            dots=True,
            dashed=dashed,
        )
        for series, (side, found) in enumerate(sides)
        for name, q, dashed in (("p50", 0.5, True), ("p99", 0.99, False))
    ]
    y = svg.Axis("milliseconds", is_log=True)
    title = f"Latency against {what}"
    caption = "From when a request was due to its answer; median dashed."
    yield Plot(title, caption, svg.lines(title, x, y, tails))


def _over_time(load: Load) -> Plot:
    """The median and the slowest of each slice of time, the lightest load's rounds end to end."""
    drawn = []
    for series, side in enumerate(load.sides):
        slices = _slices(figures.steps(side)[0])
        for name, q, dashed in ((side.name, 0.5, False), ("slowest", 1.0, True)):
            points = [(at, figures.quantile(values, q) * 1e3) for at, values in slices]
            drawn.append(svg.Line(name, points, series, dashed=dashed))
    x, y = svg.Axis("seconds of load"), svg.Axis("milliseconds", is_log=True)
    caption = "By when a request was due: median, and the slowest dashed. Rounds end to end."
    return Plot("Latency over time", caption, svg.lines("Latency over time", x, y, drawn))


def _slices(step: figures.Step) -> list[tuple[float, list[float]]]:
    total = sum(run.seconds for run in step.runs)
    found: dict[int, list[float]] = {}
    before = 0.0
    for run in step.runs:
        for start, latency in zip(run.start_s, run.latency_s, strict=True):
            found.setdefault(math.floor((before + start) / total * SLICES), []).append(latency)
        before += run.seconds
    return [((n + 0.5) / SLICES * total, found[n]) for n in sorted(found)]


def _by_bucket(load: Load) -> Plot:
    """Over all loads: what a bucket costs a request, its waiting included."""
    found: dict[tuple[str, int], list[float]] = {}
    for series, side in enumerate(load.sides):
        for run in side.runs:
            for bucket, latency in zip(run.bucket, run.latency_s, strict=True):
                found.setdefault((bucket, series), []).append(latency)
    rows = [
        _spread(f"{bucket} {load.sides[series].name}", found[bucket, series], series)
        for bucket, series in sorted(found, key=_size)
        if "," not in bucket
    ]
    caption = (
        "Requests by the bucket that their batch belongs to: p10, median, p99, waiting included, "
        "all loads together."
    )
    axis = svg.Axis("milliseconds", is_log=True)
    return Plot("Latency by bucket", caption, svg.intervals("Latency by bucket", axis, rows))


def _size(key: tuple[str, int]) -> tuple[list[int], int]:
    bucket, series = key
    return [int(n) for n in bucket.split("x") if n.isdigit()], series


def _memory(load: Load) -> Iterator[Plot]:
    rows = [
        svg.Interval(f"{kind} {side.name}", 0.0, size / 2**20, size / 2**20, series)
        for kind in dict.fromkeys(kind for side in load.sides for kind in side.memory_bytes)
        for series, side in enumerate(load.sides)
        if (size := side.memory_bytes.get(kind)) is not None
    ]
    if rows:
        axis = svg.Axis("MiB", from_zero=True)
        caption = "After the load. `resident` is the worker process, the rest is the device's."
        yield Plot("Memory", caption, svg.intervals("Memory", axis, rows))


def _spread(label: str, seconds: Sequence[float], series: int) -> svg.Interval:
    low, middle, high = (figures.quantile(seconds, q) * 1e3 for q in (0.1, 0.5, 0.99))
    return svg.Interval(label, low, middle, high, series)


def _times(value: float) -> str:
    return f"{value:.2f} ×"
