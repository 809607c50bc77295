"""Runs a batch: eager, or compiled with eager beside it. The mode is chosen here, once.

Knows nothing of queues, deadlines or clients.
"""

from __future__ import annotations

import logging
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from server.config import CompileSection
from server.engine.buckets import free_dims
from server.engine.capture import Evidence
from server.engine.compiling import (
    Strictness,
    compile_module,
    mark_dynamic,
    set_freezing,
    wants_cuda_graphs,
)
from server.engine.contract import BatchResult, Loaded, Report, Runner
from server.engine.reference import in_float64
from server.engine.splitting import cheapest_parts
from server.engine.tensors import Staging, named_outputs, rows_of, seq_length, split
from server.engine.thread_state import kept
from server.engine.warmup import Proof
from server.types import Arrays, Bucket, BucketStatus, Fallback, Mode

log = logging.getLogger(__name__)

GUARD_FAILURE = "Detected recompile"  # how torch's error under `fail_on_recompile` begins
NOTHING_SKIPPED: Mapping[str, str] = MappingProxyType({})


class EagerRunner:
    """Runs the module as it is: batches unpadded, sequences padded to the longest among them."""

    mode: Mode = "eager"
    buckets: Sequence[Bucket] = ()

    def __init__(self, loaded: Loaded) -> None:
        self._loaded = loaded
        self._staged = Bucket(0, 0)
        self._staging: Staging | None = None  # of the last shape: often the next one's too

    def warm_up(self, report: Report) -> None:
        """One run of the largest bucket: a broken model, or too little memory, shows at start."""
        bucket = self._loaded.grid.largest_first()[0]
        self.run(rows_of(self._loaded.model.example(bucket.batch, bucket.seq)))

    def parts(self, size: int, seq: int) -> Sequence[int]:
        return (size,)

    def run(self, samples: Sequence[Arrays]) -> BatchResult:
        loaded = self._loaded
        started = time.perf_counter()
        lengths = [seq_length(loaded.model, sample) for sample in samples]
        shape = Bucket(len(samples), max(lengths))
        if self._staging is None or shape != self._staged:
            self._staging, self._staged = make_staging(loaded, shape), shape
        with kept():
            outputs = named_outputs(loaded.model, loaded.module(*self._staging.fill(samples)))
        rows = split(loaded.model, outputs, lengths)
        return BatchResult(
            outputs=rows,
            mode="eager",
            bucket=loaded.grid.of(shape.batch, shape.seq),
            padded_size=shape.batch,
            padded_seq=shape.seq,
            inference_s=time.perf_counter() - started,
        )

    def run_eager(self, samples: Sequence[Arrays], reason: Fallback) -> BatchResult:
        return replace(self.run(samples), fallback=reason)


class CompiledRunner:
    """Runs proven buckets compiled, padded to the bucket; everything else eager, saying why."""

    mode: Mode = "compiled"

    def __init__(
        self,
        loaded: Loaded,
        section: CompileSection,
        evidence: Evidence,
        skipped: Mapping[str, str],
    ) -> None:
        self._loaded = loaded
        self._section = section
        self._skipped = skipped
        self.buckets: Sequence[Bucket] = loaded.grid.largest_first()
        self._eager = EagerRunner(loaded)
        self._evidence = evidence
        self._free_dims = free_dims(section, loaded.model, loaded.device.type)
        self._strictness = Strictness()
        self._compiled = compile_module(loaded.module, section.torch_mode, self._strictness)
        self._loosened: list[str] = []
        self._staging: dict[Bucket, Staging] = {}
        self._unproven: dict[Bucket, str] = {}
        self._run_s: dict[int, dict[int, float]] = defaultdict(dict)  # by seq, by batch

    def warm_up(self, report: Report) -> None:
        """Compile, run, prove and compare every bucket, largest first."""
        reference = in_float64(self._loaded) if self._loaded.model.compilable else None
        proof = Proof(
            self._loaded,
            self._run_compiled,
            self._eager.run,
            EagerRunner(reference).run if reference else None,
            self._evidence,
            wants_cuda_graphs(self._section.torch_mode, self._loaded.device),
        )
        # Here, not beside torch.compile(): torch reads it at the first call of each shape.
        set_freezing(self._section, self._loaded)
        may_loosen = True  # decided on the first bucket, for all
        for bucket in self.buckets:
            status = self._not_tried(bucket)
            if status is None:
                report(BucketStatus(str(bucket), "compiling"))
                status = self._prove(proof, bucket, may_loosen)
                may_loosen = False
            if status.reason is not None:
                self._unproven[bucket] = status.reason
            elif status.run_s is not None:
                self._run_s[bucket.seq][bucket.batch] = status.run_s
            report(status)

    def _not_tried(self, bucket: Bucket) -> BucketStatus | None:
        reason = self._skipped.get(str(bucket))
        if not self._loaded.model.compilable:
            reason = "0 graphs: Dynamo cannot take a model of this kind"
        return BucketStatus(str(bucket), "eager", reason) if reason else None

    def _prove(self, proof: Proof, bucket: Bucket, may_loosen: bool) -> BucketStatus:
        """Strict first; then looser, as far as that may help."""
        status, failure = proof.of(bucket)
        while may_loosen and (looser := self._strictness.looser(failure)):
            self._strictness = looser
            self._loosened.append(str(failure))
            self._compiled = compile_module(self._loaded.module, self._section.torch_mode, looser)
            status, failure = proof.of(bucket)
        if not self._loosened:
            return status
        why = "; ".join(self._loosened)
        if failure is not None:
            return replace(status, reason=f"{status.reason}; as a whole: {why}")
        parts = f"{status.graphs} graphs, {status.graph_breaks} breaks"
        if status.replays_per_call is not None:
            parts += f", {status.replays_per_call} CUDA graphs"
        return replace(status, note=f"partial: {parts}; as a whole: {why}")

    def parts(self, size: int, seq: int) -> Sequence[int]:
        run_s = self._run_s[seq]
        if len(run_s) < len(self._loaded.grid.batches):
            return (size,)  # some would run eager, at a cost that is not known
        return cheapest_parts(size, run_s)

    def run(self, samples: Sequence[Arrays]) -> BatchResult:
        longest = max(seq_length(self._loaded.model, sample) for sample in samples)
        bucket = self._loaded.grid.of(len(samples), longest)
        if bucket in self._unproven:
            return self._eager.run_eager(samples, "bucket_not_compiled")
        try:
            return self._run_compiled(bucket, samples)
        except RuntimeError as error:
            if GUARD_FAILURE not in str(error):
                raise
            log.warning("a compile was prevented, bucket %s ran eager: %s", bucket, error)
            return self._eager.run_eager(samples, "recompile_prevented")

    def run_eager(self, samples: Sequence[Arrays], reason: Fallback) -> BatchResult:
        return self._eager.run_eager(samples, reason)

    def _run_compiled(self, bucket: Bucket, samples: Sequence[Arrays]) -> BatchResult:
        loaded = self._loaded
        started = time.perf_counter()
        staging = self._staging.get(bucket)
        if staging is None:
            staging = make_staging(loaded, bucket)
            mark_dynamic(loaded.model, staging.tensors, self._free_dims)
            self._staging[bucket] = staging
        # NOTE: the outputs may be the CUDA graph's own memory, which the next replay overwrites:
        # named_outputs copies them to the host before this returns.
        with kept():
            outputs = named_outputs(loaded.model, self._compiled(*staging.fill(samples)))
        lengths = [seq_length(loaded.model, sample) for sample in samples]
        rows = split(loaded.model, outputs, lengths)
        return BatchResult(
            outputs=rows,
            mode="compiled",
            bucket=bucket,
            padded_size=bucket.batch,
            padded_seq=bucket.seq,
            inference_s=time.perf_counter() - started,
        )


def make_staging(loaded: Loaded, shape: Bucket) -> Staging:
    """Input tensors of `shape` for `loaded`."""
    return Staging(loaded.model, shape, loaded.device, loaded.dtype, loaded.layout)


def make_runner(
    mode: Mode,
    loaded: Loaded,
    section: CompileSection,
    evidence: Evidence,
    skipped: Mapping[str, str] = NOTHING_SKIPPED,
) -> Runner:
    """The runner of a mode. No other code asks which mode it is.

    `skipped` buckets are not compiled, for the reason given.
    """
    makers: dict[Mode, Callable[[], Runner]] = {
        "eager": lambda: EagerRunner(loaded),
        "compiled": lambda: CompiledRunner(loaded, section, evidence, skipped),
    }
    return makers[mode]()


def make_runners(
    mode: Mode,
    loaded: Loaded,
    section: CompileSection,
    evidence: Evidence,
    skipped: Mapping[str, str] = NOTHING_SKIPPED,
) -> dict[Mode, Runner]:
    """By mode, what a server of `mode` can shift between: down to eager, and up again."""
    return {
        "eager": EagerRunner(loaded),
        mode: make_runner(mode, loaded, section, evidence, skipped),
    }
