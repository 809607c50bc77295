"""The grid of padded static shapes: which exist, and which one a batch goes to.

The largest bucket equals the limits, so every admitted batch has one. Says too which dimensions one
compile leaves free, as that decides how fine a grid can be afforded. Knows no torch.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from models.base import ModelError, ServedModel
from server.config import CompileSection, Settings
from server.types import Bucket

FIRST_SEQ = 16
BATCH, SEQ = "batch", "seq"


@dataclass(frozen=True, slots=True)
class Grid:
    """Batch sizes and sequence lengths, both ascending; `seqs` is (0,) without a `seq`."""

    batches: tuple[int, ...]
    seqs: tuple[int, ...]

    def of(self, size: int, seq: int) -> Bucket:
        """The smallest bucket that holds `size` samples, the longest of them `seq` long."""
        return Bucket(_at_least(self.batches, size), self.seq_of(seq))

    def seq_of(self, seq: int) -> int:
        """The padded length of a sample of length `seq`."""
        return _at_least(self.seqs, seq)

    def largest(self, seq: int) -> int:
        """The largest batch at the padded length `seq`."""
        return self.batches[-1]

    def shortest(self, seq: int, least: int) -> int:
        """The shortest length that is padded to `seq`, `least` being the model's own."""
        at = self.seqs.index(seq)
        return self.seqs[at - 1] + 1 if at else min(seq, least)

    def largest_first(self) -> list[Bucket]:
        """All buckets in the order they are warmed up: later captures reuse freed memory."""
        return [Bucket(b, s) for s in reversed(self.seqs) for b in reversed(self.batches)]


def free_dims(section: CompileSection, model: ServedModel, device_type: str) -> frozenset[str]:
    """The dimensions that one compile leaves free; each combination of the others has its own.

    "auto" was measured: on a CPU text and series run as fast compiled once, for all shapes.
    """
    match section.dynamic:
        case "auto":
            on_cpu = device_type == "cpu" and model.max_seq is not None
            return frozenset({BATCH, SEQ} if on_cpu else ())
        case "batch":
            return frozenset({BATCH})
        case free:
            return frozenset({BATCH, SEQ} if free else ())


def make_grid(settings: Settings, model: ServedModel, device_type: str) -> Grid:
    """The grid from the configuration, or powers of two up to the limits.

    Where one compile serves all lengths, there is one more between every two powers of two: less is
    computed for padding, and mixed lengths have little else to lose.

    Raises ModelError when `compile.seq_buckets` does not end at the model's longest sequence.
    """
    batches = sorted(settings.compile.batch_buckets) or powers_of_two(
        1, settings.batching.max_batch_size
    )
    if model.max_seq is None:
        return Grid(tuple(batches), (0,))
    chosen = sorted(settings.compile.seq_buckets)
    if chosen and chosen[-1] != model.max_seq:
        raise ModelError(
            f"{model.name}: compile.seq_buckets = {chosen}: the largest must be the model's "
            f"longest sequence, {model.max_seq}; add it, or set max_seq = {chosen[-1]} for the "
            "model"
        )
    if not chosen:
        chosen = powers_of_two(max(FIRST_SEQ, model.min_seq), model.max_seq)
        if SEQ in free_dims(settings.compile, model, device_type):
            chosen = _with_midpoints(chosen)
    return Grid(tuple(batches), tuple(chosen))


def powers_of_two(first: int, limit: int) -> list[int]:
    """1, 2, 4, ... from `first` up, ending exactly at `limit`."""
    sizes = [first]
    while sizes[-1] * 2 < limit:
        sizes.append(sizes[-1] * 2)
    return [*(size for size in sizes if size < limit), limit]


def _with_midpoints(sizes: Sequence[int]) -> list[int]:
    """16, 32, 64 to 16, 24, 32, 48, 64."""
    midpoints = [(low + high) // 2 for low, high in pairwise(sizes)]
    return sorted({*sizes, *midpoints})


def _at_least(sizes: Sequence[int], needed: int) -> int:
    at = bisect_left(sizes, needed)
    assert at < len(sizes), f"{needed} is over the limit {sizes[-1]}: admission let it in"
    return sizes[at]
