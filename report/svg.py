"""Two kinds of chart as static SVG text: lines over two axes, and intervals in rows.

Colours come from the page's style sheet (classes `s0` to `s5` by series), so that one drawing
suits a light and a dark page. Knows nothing of what is drawn.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT = 560, 300
LEFT, RIGHT, TOP, BOTTOM = 58, 16, 34, 42
ROW = 22

Format = Callable[[float], str]


def plain(value: float) -> str:
    """Few digits, thousands apart."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


@dataclass(frozen=True, slots=True)
class Axis:
    """What it shows and how. `ticks` are found where they are not given."""

    label: str
    is_log: bool = False
    from_zero: bool = False
    ticks: tuple[float, ...] = ()
    text: Format = plain


@dataclass(frozen=True, slots=True)
class Line:
    """Points joined in their order; `series` is its colour."""

    name: str
    points: Sequence[tuple[float, float]]
    series: int
    dashed: bool = False
    dots: bool = False


@dataclass(frozen=True, slots=True)
class Interval:
    """One row: a value, and how far it reaches to either side."""

    label: str
    low: float
    value: float
    high: float
    series: int


@dataclass(frozen=True, slots=True)
class _Scale:
    low: float
    high: float
    start: float
    end: float
    is_log: bool

    def __call__(self, value: float) -> float:
        low, high = self.low, self.high
        if self.is_log:
            low, high, value = math.log(low), math.log(high), math.log(max(value, self.low))
        return self.start + (value - low) / (high - low) * (self.end - self.start)


def lines(
    title: str,
    x: Axis,
    y: Axis,
    drawn: Sequence[Line],
    marks: Sequence[tuple[float, str, int]] = (),
) -> str:
    """A chart of lines; `marks` (x, text, series) are vertical ones."""
    drawn = [line for line in drawn if line.points]
    xs, xticks = _scale(x, [p[0] for line in drawn for p in line.points], LEFT, WIDTH - RIGHT)
    ys, yticks = _scale(y, [p[1] for line in drawn for p in line.points], HEIGHT - BOTTOM, TOP)
    parts = [*_x_axis(x, xs, xticks, HEIGHT - BOTTOM), *_y_axis(y, ys, yticks)]
    for at, text, series in marks:
        parts.append(
            f'<line class="mark s{series}" x1="{xs(at):.1f}" x2="{xs(at):.1f}" y1="{TOP}" '
            f'y2="{HEIGHT - BOTTOM}"/>'
            f'<text class="s{series} fill" x="{xs(at) - 4:.1f}" y="{TOP + 10 + 12 * series}" '
            f'text-anchor="end">{escape(text)}</text>'
        )
    for line in drawn:
        points = " ".join(f"{xs(px):.1f},{ys(py):.1f}" for px, py in line.points)
        style = f"line s{line.series}" + (" dashed" if line.dashed else "")
        parts.append(f'<polyline class="{style}" points="{points}"/>')
        if line.dots:
            parts += [_dot(xs(px), ys(py), line.series) for px, py in line.points]
    parts += _legend(drawn)
    return _document(title, HEIGHT, parts)


def intervals(title: str, x: Axis, rows: Sequence[Interval], reference: float | None = None) -> str:
    """A chart of intervals, one a row; `reference` is a vertical line to hold them against."""
    values = [v for row in rows for v in (row.low, row.value, row.high)]
    left = min(260, 24 + 6.4 * max(len(row.label) for row in rows))
    scale, ticks = _scale(x, [*values, *filter(None, [reference])], left, WIDTH - RIGHT - 44)
    bottom = TOP + ROW * len(rows) + 6
    parts = _x_axis(x, scale, ticks, bottom)
    if reference is not None:
        at = f"{scale(reference):.1f}"
        parts.append(f'<line class="reference" x1="{at}" x2="{at}" y1="{TOP}" y2="{bottom}"/>')
    for index, row in enumerate(rows):
        y = TOP + ROW * (index + 0.5)
        parts.append(
            f'<text x="{left - 8:.0f}" y="{y + 4:.1f}" text-anchor="end">{escape(row.label)}</text>'
            f'<line class="bar s{row.series}" x1="{scale(row.low):.1f}" '
            f'x2="{scale(row.high):.1f}" y1="{y:.1f}" y2="{y:.1f}"/>'
            f"{_dot(scale(row.value), y, row.series)}"
            f'<text class="value" x="{WIDTH - RIGHT}" y="{y + 4:.1f}" text-anchor="end">'
            f"{escape(x.text(row.value))}</text>"
        )
    return _document(title, bottom + BOTTOM, parts)


def _scale(
    axis: Axis, values: Sequence[float], start: float, end: float
) -> tuple[_Scale, Sequence[float]]:
    low, high = min([*values, *axis.ticks]), max([*values, *axis.ticks])
    if axis.from_zero:
        low = min(0.0, low)
    if low == high:
        low, high = (low * 0.9, high * 1.1) if low else (0.0, 1.0)
    if axis.is_log:
        low, high = max(low, 1e-12) / 1.05, high * 1.05
    elif not axis.ticks:
        high += (high - low) * 0.05
    ticks = axis.ticks or (_log_ticks(low, high) if axis.is_log else _even_ticks(low, high))
    return _Scale(low, high, start, end, axis.is_log), ticks


def _even_ticks(low: float, high: float) -> list[float]:
    rough = (high - low) / 5
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * m for m in (1, 2, 2.5, 5, 10) if power * m >= rough)
    first = math.ceil(low / step)
    return [step * n for n in range(first, math.floor(high / step) + 1)]


def _log_ticks(low: float, high: float) -> list[float]:
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    steps = (1, 2, 5) if len(decades) <= 4 else (1,)
    found = [m * 10.0**d for d in decades for m in steps if low <= m * 10.0**d <= high]
    return found if len(found) > 1 else _even_ticks(low, high)


def _x_axis(axis: Axis, scale: _Scale, ticks: Iterable[float], bottom: float) -> list[str]:
    parts = [
        f'<line class="grid" x1="{scale(t):.1f}" x2="{scale(t):.1f}" y1="{TOP}" y2="{bottom}"/>'
        f'<text x="{scale(t):.1f}" y="{bottom + 15}" text-anchor="middle">'
        f"{escape(axis.text(t))}</text>"
        for t in ticks
    ]
    middle = (scale.start + scale.end) / 2
    label = f'<text class="label" x="{middle:.0f}" y="{bottom + 33}" text-anchor="middle">'
    return [*parts, f"{label}{escape(axis.label)}</text>"]


def _y_axis(axis: Axis, scale: _Scale, ticks: Iterable[float]) -> list[str]:
    parts = [
        f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{scale(t):.1f}" '
        f'y2="{scale(t):.1f}"/>'
        f'<text x="{LEFT - 6}" y="{scale(t) + 4:.1f}" text-anchor="end">'
        f"{escape(axis.text(t))}</text>"
        for t in ticks
    ]
    return [
        *parts,
        f'<text class="label" x="{LEFT - 6}" y="{TOP - 10}">{escape(axis.label)}</text>',
    ]


def _legend(drawn: Sequence[Line]) -> list[str]:
    parts, at = [], float(WIDTH - RIGHT)
    for line in reversed(drawn):
        at -= 6.4 * len(line.name)
        style = f"line s{line.series}" + (" dashed" if line.dashed else "")
        parts.append(
            f'<text x="{at:.0f}" y="{TOP - 10}">{escape(line.name)}</text>'
            f'<line class="{style}" x1="{at - 22:.0f}" x2="{at - 6:.0f}" y1="{TOP - 14}" '
            f'y2="{TOP - 14}"/>'
        )
        at -= 36
    return parts


def _dot(x: float, y: float, series: int) -> str:
    return f'<circle class="s{series} fill" cx="{x:.1f}" cy="{y:.1f}" r="3.5"/>'


def _document(title: str, height: float, parts: Iterable[str]) -> str:
    head = f'<svg class="chart" viewBox="0 0 {WIDTH} {height:.0f}" role="img">'
    return f"{head}<title>{escape(title)}</title>{''.join(parts)}</svg>"
