"""The tables of a report, as rows of texts: the same on a terminal, in Markdown and in HTML."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from report import figures
from report.schema import Bench, BucketBench, Load, Machine, Run, Side, Variant

CLOCKS = (
    "Means of all that was sent, the lead-in too. `server` is from a request's headers to its "
    "encoded answer; `queue` is a sample's wait "
    "for the device, `inference` a batch on it (a batch counts once, however many share it); `rest "
    "in server` is decoding, preprocessing, the way to the worker and back, and encoding. "
    "`outside` is the client's time beyond the server's: connecting, the network, waiting to be "
    "accepted, and how late the client itself was."
)


@dataclass(frozen=True, slots=True)
class Table:
    """A header and rows of as many cells; `note` says how to read it."""

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""


def machine_table(machine: Machine) -> Table:
    """Where it was measured."""
    memory = f"{machine.memory_bytes / 2**30:.0f} GiB"
    rows = [("CPU", f"{machine.cpu}, {machine.cpus} usable, {memory}")]
    if machine.gpu is not None:
        rows.append(("GPU", f"{machine.gpu}, {(machine.gpu_memory_bytes or 0) / 2**30:.0f} GiB"))
    rows.append(("system", machine.system))
    rows += sorted(machine.versions.items())
    return Table("Machine", ("", ""), tuple(rows))


def bench_tables(bench: Bench) -> Iterator[Table]:
    """Of one model without HTTP."""
    yield latency_table(bench)
    yield evidence_table(bench)


def latency_table(bench: Bench) -> Table:
    """How long a call takes."""
    header = (
        *("bucket", "variant", "p50 ms", "p90 ms", "p99 ms", "samples/s"),
        *("speed-up (95 %)", "break-even requests", "max abs difference"),
    )
    rows = tuple(_latency_row(b, v) for b in bench.buckets for v in b.variants)
    return Table("Latency", header, rows, "All calls, outliers kept.")


def _latency_row(bucket: BucketBench, variant: Variant) -> tuple[str, ...]:
    name = bucket_name(bucket)
    if not variant.rounds:
        return (name, variant.name, "-", "-", "-", "-", "-", "-", variant.reason or "")
    all_s = figures.calls(variant)
    is_eager = variant.name == "eager"
    speedup = None if is_eager else figures.variant_speedup(bucket, variant)
    requests = None if is_eager else figures.break_even(bucket, variant)
    return (
        name,
        variant.name,
        *(ms(figures.quantile(all_s, q)) for q in (0.5, 0.9, 0.99)),
        f"{figures.samples_per_second(variant, bucket.batch):,.1f}",
        "" if speedup is None else str(speedup),
        "" if is_eager else "never" if requests is None else f"{requests:,.0f}",
        _error(variant.parity_max_abs_error),
    )


def evidence_table(bench: Bench) -> Table:
    """What it took, and what proves it."""
    header = (
        *("bucket", "variant", "first call s", "warm-up s", "cache", "graphs", "breaks"),
        *("replays", "peak MiB", "pool MiB", "remark"),
    )
    rows = tuple(_evidence_row(b, v) for b in bench.buckets for v in b.variants)
    weights = f"Weights: {bench.weight_bytes / 2**20:,.1f} MiB, {bench.weights}."
    return Table("Cost and evidence", header, rows, weights)


def _evidence_row(bucket: BucketBench, variant: Variant) -> tuple[str, ...]:
    return (
        bucket_name(bucket),
        variant.name,
        _seconds(variant.first_call_s),
        _seconds(variant.warmup_s),
        variant.cache or "-",
        _count(variant.graphs),
        _count(variant.graph_breaks),
        _count(variant.replays_per_call),
        _mib(variant.peak_bytes),
        _mib(variant.pool_bytes),
        "; ".join(filter(None, (variant.reason, variant.note, *variant.skips))),
    )


def load_tables(load: Load) -> Iterator[Table]:
    """Of one scenario over HTTP."""
    yield Table(
        "Latency and throughput",
        (
            *("load", "side", "answered/s", "p50 ms", "p90 ms", "p99 ms", "p99.9 ms"),
            *("slowest ms", "speed-up (95 %)", "failures"),
        ),
        tuple(_step_rows(load)),
        "Client's clock, from when a request was due to its answer; warm-up left out.",
    )
    yield Table(
        "The server's own clock",
        (
            *("load", "side", "client ms", "server ms", "queue ms", "inference ms"),
            *("rest in server ms", "outside ms", "batch size"),
        ),
        tuple(_server_rows(load)),
        CLOCKS,
    )
    yield Table(
        "Start and memory",
        (
            "side",
            "started with",
            "live after s",
            "ready after s",
            "break-even requests",
            "memory MiB",
        ),
        tuple(_start_row(load, side) for side in load.sides),
    )


def _step_rows(load: Load) -> Iterator[tuple[str, ...]]:
    for side in load.sides:
        speedups = {step.load: speedup for step, speedup in figures.load_speedups(load, side)}
        for step in figures.steps(side):
            failed = ", ".join(f"{count} {reason}" for reason, count in step.failures.items())
            all_s = step.latency_s
            quantiles = (0.5, 0.9, 0.99, 0.999, 1.0)
            yield (
                step.load,
                side.name,
                f"{step.answered_rps:,.1f}",
                *(ms(figures.quantile(all_s, q)) if all_s else "-" for q in quantiles),
                "" if side is load.sides[0] else str(speedups.get(step.load, "-")),
                failed or "none",
            )


def _server_rows(load: Load) -> Iterator[tuple[str, ...]]:
    for side in load.sides:
        for step in figures.steps(side):
            runs = [run for run in step.runs if run.server is not None and run.latency_s]
            if runs:
                yield (step.load, side.name, *_server_cells(runs))


def _server_cells(runs: list[Run]) -> tuple[str, ...]:
    """Means of the runs' means."""
    servers = [run.server for run in runs if run.server is not None]
    client = mean([run.server.client_s or mean(run.latency_s) for run in runs if run.server])
    request = mean([server.request_s for server in servers])
    queue = mean([server.queue_s for server in servers])
    inference = mean([server.inference_s for server in servers])
    rest = request - queue - inference
    times = (client, request, queue, inference, rest, client - request)
    return (*map(ms, times), f"{mean([server.batch_size for server in servers]):.1f}")


def _start_row(load: Load, side: Side) -> tuple[str, ...]:
    requests = figures.load_break_even(load, side)
    memory = ", ".join(f"{kind} {_mib(size)}" for kind, size in side.memory_bytes.items())
    return (
        side.name,
        side.started_with,
        _seconds(side.live_s),
        _seconds(side.ready_s),
        "-" if requests is None else f"{requests:,.0f}",
        memory or "-",
    )


def bucket_name(bucket: BucketBench) -> str:
    """As the server writes it."""
    return f"{bucket.batch}x{bucket.seq}" if bucket.seq else str(bucket.batch)


def mean(values: list[float] | tuple[float, ...]) -> float:
    return sum(values) / len(values)


def ms(seconds: float) -> str:
    """Milliseconds, three figures or so."""
    value = seconds * 1e3
    return f"{value:.1f}" if abs(value) >= 100 else f"{value:.2f}"


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}" if value >= 1 else f"{value:.2g}"


def _mib(value: int | None) -> str:
    return "-" if value is None else f"{value / 2**20:,.1f}"


def _count(value: int | None) -> str:
    return "-" if value is None else str(value)


def _error(value: float | None) -> str:
    return "" if value is None else f"{value:.0e}"
