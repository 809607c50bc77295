"""A report in words: one sentence a model, for whoever reads nothing else."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from report import figures
from report.figures import Speedup
from report.schema import Bench, BucketBench, Load, Report, Side, Variant

FEW = 3  # more than this many are given as a range


def verdicts(report: Report) -> list[tuple[str, str]]:
    """What was compared, and what came of it."""
    found = [
        (f"{bench.model}, {bench.device}, {bench.dtype}", "; ".join(bench_verdicts(bench)))
        for bench in report.benches
    ]
    for load in report.loads:
        found += [
            (f"{load.scenario} over HTTP, {load.arrivals}", load_verdict(load, side))
            for side in load.sides[1:]
        ]
    return found


def bench_verdicts(bench: Bench) -> list[str]:
    """One sentence for each variant that was to be compiled."""
    names = dict.fromkeys(variant.name for _, variant in figures.compiled(bench))
    return [f"compiled ({name}): {_variant_verdict(bench, name)}" for name in names]


def _variant_verdict(bench: Bench, name: str) -> str:
    pairs = [(b, v) for b, v in figures.compiled(bench) if v.name == name]
    measured = [(b, v, s) for b, v in pairs if (s := figures.variant_speedup(b, v)) is not None]
    if not measured:
        return f"stayed eager: {pairs[0][1].reason}"
    parts = [gains([(where(b), s) for b, _, s in measured])]
    parts += _pays_back(measured)
    errors = [v.parity_max_abs_error for _, v, _ in measured if v.parity_max_abs_error is not None]
    if errors:
        parts.append(f"answers agree to {max(errors):.0e}" if max(errors) else "answers are equal")
    stayed = [where(b) for b, v in pairs if not v.rounds]
    if stayed:
        parts.append(f"{', '.join(stayed)} stayed eager")
    return "; ".join(parts)


def _pays_back(measured: Sequence[tuple[BucketBench, Variant, Speedup]]) -> list[str]:
    for bucket, variant, _ in measured:
        requests = figures.break_even(bucket, variant)
        if requests is not None:
            cached = " (its code was in the cache)" if variant.cache == "hit" else ""
            return [f"pays back after {requests:,.0f} requests at {where(bucket)}{cached}"]
    return []


def where(bucket: BucketBench) -> str:
    """A bucket in words."""
    return f"batch {bucket.batch}" + (f", length {bucket.seq}" if bucket.seq else "")


def gains(found: Sequence[tuple[str, Speedup]]) -> str:
    """Speed-ups by place, in the places' order: those that gain, gain nothing, lose."""
    parts = [
        _group(found, lambda s: s.is_gain, "faster", lambda s: s.ratio),
        _none(found),
        _group(found, lambda s: s.is_loss, "slower", lambda s: 1 / s.ratio),
    ]
    return ", ".join(part for part in parts if part)


def _group(
    found: Sequence[tuple[str, Speedup]],
    belongs: Callable[[Speedup], bool],
    word: str,
    factor: Callable[[Speedup], float],
) -> str:
    chosen = [(place, factor(speedup)) for place, speedup in found if belongs(speedup)]
    if len(chosen) > FEW:
        factors = [value for _, value in chosen]
        places = f"in {len(chosen)} of {len(found)}, from {chosen[0][0]} to {chosen[-1][0]}"
        return f"{min(factors):.2g} to {max(factors):.2g} × {word} {places}"
    return ", ".join(f"{value:.2g} × {word} at {place}" for place, value in chosen)


def _none(found: Sequence[tuple[str, Speedup]]) -> str:
    is_none = [not (speedup.is_gain or speedup.is_loss) for _, speedup in found]
    if not any(is_none):
        return ""
    first = is_none.index(True)
    if all(is_none):
        return "no gain"
    if all(is_none[first:]) and len(is_none) - first > 1:
        return f"no gain from {found[first][0]} on"
    places = [place for (place, _), none in zip(found, is_none, strict=True) if none]
    return f"no gain at {'; '.join(places)}"


def load_verdict(load: Load, side: Side) -> str:
    """One sentence for one side against the first."""
    base = load.sides[0]
    speedups = [(step.load, speedup) for step, speedup in figures.load_speedups(load, side)]
    parts = [gains(speedups) if speedups else "no request was answered on both sides"]
    knees = figures.knee(base), figures.knee(side)
    if any(knees):
        parts.append(f"keeps up to {_rate(knees[1])} ({base.name}: {_rate(knees[0])})")
    requests = figures.load_break_even(load, side)
    if requests is not None:
        parts.append(f"pays back after {requests:,.0f} requests")
    parts.append(_agreement(load))
    return f"{side.name} against {base.name}: {'; '.join(parts)}"


def _rate(rps: float | None) -> str:
    return "no rate offered" if rps is None else f"{rps:g} req/s"


def _agreement(load: Load) -> str:
    failures: dict[str, int] = {}
    for side in load.sides:
        for step in figures.steps(side):
            for reason, count in step.failures.items():
                failures[reason] = failures.get(reason, 0) + count
    if not failures:
        return "every answer right"
    return "failures: " + ", ".join(f"{count} {reason}" for reason, count in failures.items())
