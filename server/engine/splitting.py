"""How a batch is best cut: padded whole, or in parts that fill their buckets, whichever was faster.

Where a run costs about the same whatever its size (a GPU, a tiny model) padding is free; where the
cost grows with the size (large models on a CPU) it is not. Goes by what warm-up measured.
"""

from __future__ import annotations

from collections.abc import Mapping

WORTH_IT = 0.9
"""Parts have to take less than this share of the whole: warm-up's timings are of two runs each."""


def cheapest_parts(size: int, run_s: Mapping[int, float]) -> tuple[int, ...]:
    """Sizes of the batches that run `size` samples in clearly the least time, each padded to its
    bucket; all in one where that is no clear gain.

    `run_s` has the seconds of a full bucket by its batch size; the largest is at least `size`.
    """
    best: list[tuple[float, tuple[int, ...]]] = [(0.0, ())]
    for count in range(1, size + 1):
        padded = min(bucket for bucket in run_s if bucket >= count)
        options: list[tuple[float, tuple[int, ...]]] = [(run_s[padded], (count,))]
        for full in run_s:
            if full < count:
                rest_s, rest = best[count - full]
                options.append((run_s[full] + rest_s, (full, *rest)))
        best.append(min(options))
    parts_s, parts = best[size]
    whole_s = run_s[min(bucket for bucket in run_s if bucket >= size)]
    return parts if parts_s < WORTH_IT * whole_s else (size,)
