"""What compiling buys, without HTTP: eager and torch's modes on the same inputs, in turn.

Drives the runners that serve. The clock stops after the outputs are on the host, so the device is
done; warm-up is reported apart. Knows nothing of how the figures are shown.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

import torch

from models.base import ServedModel
from report.schema import Bench, BucketBench, Variant
from server.config import CompileSection, Settings
from server.engine import memory
from server.engine.buckets import Grid
from server.engine.capture import Evidence
from server.engine.contract import Loaded, Runner
from server.engine.devices import pick_device, pick_dtype
from server.engine.environment import configure_thread, cpu_count
from server.engine.loading import layout_of, load_module
from server.engine.runner import make_runner
from server.engine.tensors import rows_of
from server.types import Arrays, Bucket, BucketStatus

LEAST_ROUNDS = 7
MOST_ROUNDS = 40
UNTIMED_CALLS = 3

Show = Callable[[Bench], None]


@dataclass(slots=True)
class Contender:
    """One runner, and what was seen of it in each bucket."""

    name: str
    runner: Runner
    first_call_s: dict[Bucket, float] = field(default_factory=dict)
    statuses: dict[str, BucketStatus] = field(default_factory=dict)
    skips: dict[str, tuple[str, ...]] = field(default_factory=dict)
    rounds: dict[Bucket, list[tuple[float, ...]]] = field(default_factory=dict)
    peak_bytes: dict[Bucket, int | None] = field(default_factory=dict)

    def is_measured_in(self, bucket: Bucket) -> bool:
        """Not where it would run eager: that is measured already."""
        status = self.statuses.get(str(bucket))
        return status is None or status.state == "compiled"

    def variant(self, bucket: Bucket) -> Variant:
        """As a report has it."""
        status = self.statuses.get(str(bucket), BucketStatus(str(bucket)))
        return Variant(
            name=self.name,
            rounds=tuple(self.rounds.get(bucket, ())),
            reason=status.reason,
            note=status.note,
            first_call_s=self.first_call_s.get(bucket, status.compile_s),
            warmup_s=status.warmup_s,
            cache=status.cache,
            graphs=status.graphs,
            graph_breaks=status.graph_breaks,
            replays_per_call=status.replays_per_call,
            skips=self.skips.get(str(bucket), ()),
            peak_bytes=self.peak_bytes.get(bucket),
            pool_bytes=status.graph_pool_bytes,
            parity_max_abs_error=status.parity_max_abs_error,
            parity_rmse=status.parity_rmse,
            parity_eager_rmse=status.parity_eager_rmse,
            parity_cosine=status.parity_cosine,
            parity_rule=status.parity_rule,
        )


def measure(
    model: ServedModel,
    settings: Settings,
    sections: Sequence[CompileSection],
    batches: Sequence[int],
    seqs: Sequence[int],
    seconds: float,
    show: Show,
) -> Bench:
    """Measure `model` in every bucket of `batches` times `seqs`, each for about `seconds`: eager,
    and compiled as each of `sections` says. `show` is given what is known, now and then.

    `seqs` beyond the model's limits are cut to them; none are used by a model without `seq`.
    """
    configure_thread(settings)
    with torch.inference_mode():
        loaded = _load(model, settings, batches, seqs)
        return _Measurement(loaded, settings, sections, show).run(seconds)


class _Measurement:
    """One model, from its first call to its last."""

    def __init__(
        self, loaded: Loaded, settings: Settings, sections: Sequence[CompileSection], show: Show
    ) -> None:
        self._loaded = loaded
        self._threads = settings.threads or cpu_count()
        self._evidence = Evidence()
        self._contenders = [
            Contender("eager", make_runner("eager", loaded, settings.compile, self._evidence))
        ]
        self._contenders += [
            Contender(section.torch_mode, make_runner("compiled", loaded, section, self._evidence))
            for section in sections
        ]
        self._buckets = loaded.grid.largest_first()[::-1]
        self._show = show

    def run(self, seconds: float) -> Bench:
        for contender in self._contenders:
            self._warm_up(contender)
        for bucket in self._buckets:
            self._measure(bucket, seconds)
        return self._bench()

    def _warm_up(self, contender: Contender) -> None:
        seen = len(self._evidence.skip_reasons)

        def report(status: BucketStatus) -> None:
            nonlocal seen
            contender.statuses[status.bucket] = status
            skips = self._evidence.skip_reasons[seen:]
            contender.skips[status.bucket] = tuple(dict.fromkeys(skips))
            seen = len(self._evidence.skip_reasons)
            self._show(self._bench())

        contender.runner.warm_up(report)
        for bucket in self._buckets if not contender.runner.buckets else ():
            contender.first_call_s[bucket] = _seconds(contender.runner, self._rows(bucket))

    def _measure(self, bucket: Bucket, seconds: float) -> None:
        rows = self._rows(bucket)
        contenders = [one for one in self._contenders if one.is_measured_in(bucket)]
        a_call_s = 0.0
        for one in contenders:
            peak = memory.peak_during(self._loaded.device, partial(one.runner.run, rows))
            one.peak_bytes[bucket] = peak
            a_call_s += min(_seconds(one.runner, rows) for _ in range(UNTIMED_CALLS))
            one.rounds[bucket] = []
        calls = max(1, int(seconds / MOST_ROUNDS / a_call_s))
        end = time.perf_counter() + seconds
        for number in range(MOST_ROUNDS):
            if number >= LEAST_ROUNDS and time.perf_counter() > end:
                break
            # Every other round the other way around: who comes after whom must not matter.
            for one in contenders if number % 2 == 0 else reversed(contenders):
                timed = tuple(_seconds(one.runner, rows) for _ in range(calls))
                one.rounds[bucket].append(timed)
            self._show(self._bench())

    def _rows(self, bucket: Bucket) -> Sequence[Arrays]:
        return rows_of(self._loaded.model.example(bucket.batch, bucket.seq))

    def _bench(self) -> Bench:
        loaded = self._loaded
        return Bench(
            model=loaded.model.name,
            weights="random" if loaded.model.random_weights else "real",
            device=str(loaded.device),
            dtype=str(loaded.dtype).removeprefix("torch."),
            threads=self._threads,
            weight_bytes=memory.weight_bytes(loaded.module),
            buckets=tuple(
                BucketBench(
                    batch=bucket.batch,
                    seq=bucket.seq,
                    variants=tuple(one.variant(bucket) for one in self._contenders),
                )
                for bucket in self._buckets
            ),
        )


def _load(
    model: ServedModel, settings: Settings, batches: Sequence[int], seqs: Sequence[int]
) -> Loaded:
    device, dtype = pick_device(settings.device), pick_dtype(settings.dtype)
    module = load_module(model, device, dtype)
    if model.max_seq is None:
        cut = [0]
    else:
        cut = sorted({min(max(seq, model.min_seq), model.max_seq) for seq in seqs})
    grid = Grid(tuple(sorted(set(batches))), tuple(cut))
    return Loaded(model, module, device, dtype, layout_of(module), grid)


def _seconds(runner: Runner, rows: Sequence[Arrays]) -> float:
    started = time.perf_counter()
    runner.run(rows)
    return time.perf_counter() - started
