"""What `serve doctor` says, as rows of tables: what the machine lacks, what compiling a model buys.

Puts findings and measurements into words; how a table is shown is the command line's.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from models.base import ServedModel
from server.config import Settings
from server.engine.bench import Comparison, compare
from server.engine.checks import Finding
from server.engine.devices import StartFailed, pick_device
from server.engine.inspection import inspect
from server.engine.preflight import preflight
from server.engine.probe import probe

FINDINGS = ("check", "state", "found", "remedy")
GRAPHS = ("model", "graphs", "graph breaks")
VERDICTS = ("model", "bucket", "eager p50 ms", "compiled p50 ms", "speed-up", "verdict")

WORTH_IT = 1.05


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


def verdict_row(row: Comparison) -> tuple[str, ...]:
    """A measured bucket, and whether to compile it."""
    eager_s, compiled_s = row.eager.quantile(0.5), row.compiled.quantile(0.5)
    eager_ms = f"{eager_s * 1e3:.2f}"
    if row.status.state != "compiled":
        why = f"stays eager: {row.status.reason}"
        return (row.model, str(row.bucket), eager_ms, "-", "-", why)
    verdict = _verdict(row.speedup, eager_s - compiled_s, row.status.compile_s or 0)
    compiled_ms, speedup = f"{compiled_s * 1e3:.2f}", f"{row.speedup:.2f}"
    verdict = "; ".join(filter(None, (verdict, row.status.note)))
    return (row.model, str(row.bucket), eager_ms, compiled_ms, speedup, verdict)


def _verdict(speedup: float, saved_s: float, compile_s: float) -> str:
    if speedup >= WORTH_IT and saved_s > 0:
        return f"compile: its {compile_s:.0f} s are won back in {compile_s / saved_s:,.0f} batches"
    if speedup > 1 / WORTH_IT:
        return "no difference: stay eager"
    return "stay eager: compiled is slower"


def verdict_rows(
    model: ServedModel,
    settings: Settings,
    batches: Sequence[int],
    seqs: Sequence[int],
    seconds: float,
) -> Iterator[tuple[str, ...]]:
    """Compile and measure `model` in every bucket of `batches` times `seqs`."""
    yield from map(verdict_row, compare(model, settings, batches, seqs, seconds))
