"""What `serve doctor` says, as rows of tables: what the machine lacks, what compiling a model buys.

Puts findings and measurements into words; how a table is shown is the command line's.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from models.base import ServedModel
from report import figures
from report.schema import BucketBench, Variant
from report.tables import bucket_name, ms
from server.config import Settings
from server.engine.bench import measure
from server.engine.checks import Finding
from server.engine.devices import StartFailed, pick_device
from server.engine.inspection import inspect
from server.engine.preflight import preflight
from server.engine.probe import probe

FINDINGS = ("check", "state", "found", "remedy")
GRAPHS = ("model", "graphs", "graph breaks")
VERDICTS = ("model", "bucket", "eager p50 ms", "compiled p50 ms", "speed-up", "verdict")


def examine(settings: Settings) -> list[Finding]:
    """Every check of this machine; a probe compile too, where nothing blocks it."""
    try:
        device = pick_device(settings.device)
    except StartFailed as error:
        found, _, remedy = str(error).partition("; ")
        return [Finding("device", "blocking", found, remedy)]
    findings = [Finding("device", "ok", str(device)), *preflight(settings, device)]
    return findings if blocks(findings) else [*findings, probe(settings, device)]


def blocks(findings: Sequence[Finding]) -> bool:
    """Whether nothing can be compiled here."""
    return any(finding.state == "blocking" for finding in findings)


def finding_row(finding: Finding) -> tuple[str, ...]:
    return (finding.check, finding.state, finding.found, finding.remedy)


def graph_rows(model: ServedModel, settings: Settings) -> Iterator[tuple[str, ...]]:
    """A row for each graph break; one row when there is none."""
    graphs = inspect(model, settings)
    for graph_break in graphs.breaks or ("none",):
        yield (model.name, str(graphs.count), graph_break)


def verdict_rows(
    model: ServedModel,
    settings: Settings,
    batches: Sequence[int],
    seqs: Sequence[int],
    seconds: float,
) -> Iterator[tuple[str, ...]]:
    """Compile and measure `model` in every bucket of `batches` times `seqs`."""
    bench = measure(
        model, settings, [settings.compile], batches, seqs, seconds, show=lambda _: None
    )
    for bucket, variant in figures.compiled(bench):
        yield (bench.model, bucket_name(bucket), *_verdict_cells(bucket, variant))


def _verdict_cells(bucket: BucketBench, variant: Variant) -> tuple[str, ...]:
    eager_ms = ms(figures.quantile(figures.calls(bucket.variants[0]), 0.5))
    speedup = figures.variant_speedup(bucket, variant)
    if speedup is None:
        return (eager_ms, "-", "-", f"stays eager: {variant.reason}")
    compiled_ms = ms(figures.quantile(figures.calls(variant), 0.5))
    requests = figures.break_even(bucket, variant)
    verdict = "; ".join(filter(None, (_verdict(speedup, requests), variant.note)))
    return (eager_ms, compiled_ms, str(speedup), verdict)


def _verdict(speedup: figures.Speedup, requests: float | None) -> str:
    if requests is not None:
        return f"compile: it has paid after {requests:,.0f} requests"
    return "stay eager: compiled is slower" if speedup.is_loss else "no difference: stay eager"
