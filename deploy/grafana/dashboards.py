"""Writes the dashboards beside it: `python deploy/grafana/dashboards.py`.

Each panel says in its title what it answers, or the quantity, and in its description how to read
it. Expressions use the rules of deploy/prometheus/recording.yml where there is one. Knows nothing
of how Grafana gets the files: provisioning does.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from grafana_foundation_sdk.builders import dashboard, prometheus, stat, timeseries
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.common import VisibilityMode
from grafana_foundation_sdk.models.dashboard import (
    DataSourceRef,
    VariableOption,
    VariableRefresh,
)

HERE = Path(__file__).parent / "dashboards"
SOURCE = DataSourceRef(type_val="prometheus", uid="${datasource}")
HEIGHT = 8

Builder = timeseries.Panel | stat.Panel


@dataclass(frozen=True)
class Panel:
    """One panel; `queries` are expressions by legend. `$m` stands for the chosen job and models."""

    title: str
    description: str
    unit: str
    queries: dict[str, str]
    is_stat: bool = False
    width: int = 8

    def build(self) -> Builder:
        """Grafana's panel."""
        panel: Builder = stat.Panel() if self.is_stat else timeseries.Panel()
        if isinstance(panel, timeseries.Panel):
            panel.show_points(VisibilityMode.NEVER)
        panel.title(self.title).description(self.description).unit(self.unit)
        panel.datasource(SOURCE).height(HEIGHT // (2 if self.is_stat else 1)).span(self.width)
        for ref, (legend, expression) in zip("ABCD", self.queries.items(), strict=False):
            query = prometheus.Dataquery().ref_id(ref).legend_format(legend)
            query.expr(expression.replace("$m", 'job=~"$job",model=~"$model"'))
            query.exemplar("_bucket" in expression and not self.is_stat)
            panel.with_target(query.instant() if self.is_stat else query.range())
        return panel


def quantile(q: float, histogram: str, by: str) -> str:
    """A quantile of a histogram."""
    rates = f"rate({histogram}_bucket{{$m}}[$__rate_interval])"
    return f"histogram_quantile({q}, sum by ({by}, le) ({rates}))"


def mean(histogram: str, by: str) -> str:
    """The mean of a histogram."""
    rate = f"sum by ({by}) (rate({histogram}_%s{{$m}}[$__rate_interval]))"
    return f"{rate % 'sum'} / ({rate % 'count'} > 0)"


def per_second(counter: str, by: str) -> str:
    """Events a second."""
    return f"sum by ({by}) (rate({counter}{{$m}}[$__rate_interval]))"


EAGER_OR_COMPILED = {
    "What does compiling buy?": [
        Panel(
            "How much faster is compiled? (times)",
            "Device time of a sample, eager over compiled, in the batches the traffic made in the "
            "last five minutes. Needs traffic in both modes, alike: at other loads batches have "
            "other sizes. Above 1 compiled is the faster one.",
            "none",
            {"{{model}}": "model:gearshift_speedup:ratio5m{$m}"},
            is_stat=True,
            width=6,
        ),
        Panel(
            "After how many samples has compiling paid off?",
            "What compiled's warm-up took longer than eager's, over the device time it saves on a "
            "sample. No value: it is not the faster one, or there was no traffic in both modes.",
            "none",
            {"{{model}}": "model:gearshift_break_even:samples{$m}"},
            is_stat=True,
            width=6,
        ),
        Panel(
            "What does warm-up cost? (seconds)",
            "From loaded to ready. Compiled: every bucket compiled, or taken from the cache, run, "
            "proven and compared with eager.",
            "s",
            {"{{model}} {{mode}}": "max by (model, mode) (gearshift_warmup_seconds{$m})"},
            is_stat=True,
            width=6,
        ),
        Panel(
            "How far are the answers apart? (largest absolute difference)",
            "Compiled against eager on the same inputs, at warm-up, worst bucket.",
            "sci",
            {"{{model}}": "max by (model) (gearshift_parity_max_abs_error{$m})"},
            is_stat=True,
            width=6,
        ),
    ],
    "What clients see": [
        Panel(
            "Median latency by mode (seconds)",
            "Half of the requests were answered faster. From a request's headers to its encoded "
            "answer, outcome ok. Dots are single requests with their id.",
            "s",
            {
                "{{model}} {{mode}}": quantile(
                    0.5, "gearshift_request_duration_seconds", "model, mode"
                )
            },
        ),
        Panel(
            "Latency of the slowest 1 % by mode (seconds)",
            "p99. Dots are single requests: their request_id is in the server's log and in the "
            "client's X-Request-Id.",
            "s",
            {
                "{{model}} {{mode}}": quantile(
                    0.99, "gearshift_request_duration_seconds", "model, mode"
                )
            },
        ),
        Panel(
            "Throughput by mode (requests answered a second)",
            "Outcome ok. A gap in what is offered shows here too: throughput is demand until the "
            "server is full.",
            "reqps",
            {
                "{{model}} {{mode}}": "sum by (model, mode) "
                '(rate(gearshift_requests_total{$m,outcome="ok"}[$__rate_interval]))'
            },
        ),
    ],
    "Where the difference comes from": [
        Panel(
            "Device time of a batch, by bucket (seconds)",
            "Mean. A bucket is the padded shape a batch belongs to, in either mode, so the lines "
            "of one bucket compare like with like.",
            "s",
            {
                "{{model}} {{bucket}} {{mode}}": mean(
                    "gearshift_inference_duration_seconds", "model, bucket, mode"
                )
            },
        ),
        Panel(
            "How much faster is compiled, by bucket? (times)",
            "Mean device time of a batch, eager over compiled, last five minutes. Small batches "
            "usually gain most: there the overhead that compiling removes weighs most.",
            "none",
            {"{{model}} {{bucket}}": "model_bucket:gearshift_speedup:ratio5m{$m}"},
        ),
        Panel(
            "Compile time by bucket (seconds)",
            "The first call of each bucket at the last warm-up. Small with a warm cache.",
            "s",
            {
                "{{model}} {{bucket}}": "max by (model, bucket) (gearshift_compile_seconds{$m})",
            },
        ),
    ],
    "What it costs in memory": [
        Panel(
            "Device memory by mode (bytes)",
            "What torch's allocator reserved in the worker of each mode, CUDA graphs' pools "
            "included, and the process as the driver sees it. CUDA only.",
            "bytes",
            {
                "{{mode}} reserved": "max by (mode) "
                '(gearshift_device_memory_bytes{job=~"$job",kind="reserved"})',
                "{{mode}} process": "max by (mode) "
                '(gearshift_device_memory_bytes{job=~"$job",kind="process"})',
                "{{mode}} graph pools": "max by (mode) "
                '(gearshift_device_memory_bytes{job=~"$job",kind="graph_pool"})',
            },
        ),
        Panel(
            "Host memory of the worker by mode (bytes)",
            "Resident. The compiler itself, once loaded, stays in the compiled worker.",
            "bytes",
            {"{{mode}}": 'max by (mode) (gearshift_worker_resident_memory_bytes{job=~"$job"})'},
        ),
        Panel(
            "How much more memory does compiled take? (bytes)",
            "Compiled worker less eager worker; both hold the same weights.",
            "bytes",
            {
                "device": "max(gearshift_device_memory_bytes"
                '{job=~"$job",kind="reserved",mode="compiled"}) '
                "- max(gearshift_device_memory_bytes"
                '{job=~"$job",kind="reserved",mode="eager"})',
                "host": "max(gearshift_worker_resident_memory_bytes"
                '{job=~"$job",mode="compiled"}) '
                "- max(gearshift_worker_resident_memory_bytes"
                '{job=~"$job",mode="eager"})',
            },
        ),
    ],
}

OPERATIONS = {
    "Is it well?": [
        Panel(
            "Is every model ready? (1 = yes)",
            "Warmed up, and its worker connected, in the eyes of every HTTP process.",
            "none",
            {"{{instance}} {{model}}": "min by (instance, model) (gearshift_ready{$m})"},
            is_stat=True,
            width=6,
        ),
        Panel(
            "Which mode serves? (1 = this one)",
            "The mode each model is served in now.",
            "none",
            {
                "{{instance}} {{model}} {{mode}}": "max by (instance, model, mode) "
                "(gearshift_mode_active{$m})"
            },
            is_stat=True,
            width=6,
        ),
        Panel(
            "Did a worker die? (restarts in the last hour)",
            "Requests it had are answered by the next one or get 503. More than none: see the log.",
            "none",
            {
                "{{instance}}": "sum by (instance) "
                '(increase(gearshift_worker_restarts_total{job=~"$job"}[1h]))'
            },
            is_stat=True,
            width=6,
        ),
        Panel(
            "Did anything compile while serving? (events in the last hour)",
            "Compiles and CUDA-graph recordings after ready. More than none is a fault of ours.",
            "none",
            {
                "{{instance}}": "sum by (instance) (increase("
                'gearshift_compiles_total{job=~"$job",phase="serving"}[1h]))'
            },
            is_stat=True,
            width=6,
        ),
    ],
    "Traffic": [
        Panel(
            "How do requests end? (requests a second)",
            "Every request ends in exactly one outcome.",
            "reqps",
            {"{{outcome}}": per_second("gearshift_requests_total", "outcome")},
        ),
        Panel(
            "In flight (requests)",
            "Admitted and not yet answered, all HTTP processes.",
            "none",
            {"{{model}}": "sum by (model) (gearshift_inflight_requests{$m})"},
        ),
        Panel(
            "Waiting for the device (samples)",
            "In the worker's queue when its last batch was done.",
            "none",
            {"{{model}}": "sum by (model) (gearshift_queue_depth{$m})"},
        ),
        Panel(
            "How long do samples wait? (seconds)",
            "In the worker's queue until their batch starts: median and p99. Grows first when the "
            "device is full.",
            "s",
            {
                "{{model}} p50": quantile(0.5, "gearshift_queue_duration_seconds", "model"),
                "{{model}} p99": quantile(0.99, "gearshift_queue_duration_seconds", "model"),
            },
        ),
        Panel(
            "Latency over the last minute (seconds)",
            "Quantiles that the servers count themselves, within 1 %; the worst server.",
            "s",
            {
                "{{model}} {{mode}} {{quantile}}": "max by (model, mode, quantile) "
                '(gearshift_request_latency_seconds{$m,quantile=~"0.5|0.99|0.999"})'
            },
        ),
        Panel(
            "How busy is the device? (share of time)",
            "Seconds spent on batches a second, by mode. Near 1 the device is full.",
            "percentunit",
            {
                "{{instance}} {{mode}}": per_second(
                    "gearshift_inference_duration_seconds_sum", "instance, mode"
                )
            },
        ),
    ],
    "Batches": [
        Panel(
            "How large are batches? (samples)",
            "Mean of what ran together, padding not counted.",
            "none",
            {"{{model}} {{mode}}": mean("gearshift_batch_size", "model, mode")},
        ),
        Panel(
            "How much of the work is padding? (share)",
            "Mean share of a batch that was padding. Much of it: other buckets would fit better.",
            "percentunit",
            {"{{model}} {{mode}}": mean("gearshift_padding_ratio", "model, mode")},
        ),
        Panel(
            "Batches by bucket (batches a second)",
            "Buckets nobody uses cost warm-up and memory for nothing.",
            "ops",
            {
                "{{model}} {{bucket}}": per_second(
                    "gearshift_inference_duration_seconds_count", "model, bucket"
                )
            },
        ),
    ],
    "Compiled": [
        Panel(
            "Why did batches fall back? (batches a second)",
            "Batches that were to run compiled, or together, and ran eager or alone.",
            "ops",
            {
                "{{model}} {{reason}}": per_second(
                    "gearshift_eager_fallbacks_total", "model, reason"
                )
            },
        ),
        Panel(
            "Recompiles prevented (batches a second)",
            "Would have compiled while serving; ran eager instead.",
            "ops",
            {"{{model}}": per_second("gearshift_recompiles_prevented_total", "model")},
        ),
        Panel(
            "CUDA graphs replayed (a second)",
            "By the compiled worker. None on a CPU.",
            "ops",
            {
                "{{instance}}": "sum by (instance) "
                '(rate(gearshift_graph_replays_total{job=~"$job"}[$__rate_interval]))'
            },
        ),
    ],
    "Memory": [
        Panel(
            "Device memory by kind (bytes)",
            "docs/metrics.md says what each kind is. CUDA has all of them, a CPU the weights.",
            "bytes",
            {
                "{{instance}} {{kind}}": "max by (instance, kind) "
                '(gearshift_device_memory_bytes{job=~"$job"})'
            },
            width=12,
        ),
        Panel(
            "Host memory of the workers (bytes)",
            "Resident.",
            "bytes",
            {
                "{{instance}} {{mode}}": "max by (instance, mode) "
                '(gearshift_worker_resident_memory_bytes{job=~"$job"})'
            },
            width=12,
        ),
    ],
}


def variable(name: str, metric: str) -> dashboard.QueryVariable:
    """A choice among the values of a label; all of them at first."""
    made = dashboard.QueryVariable(name).datasource(SOURCE).multi(True).include_all(True)
    made.query({"query": f"label_values({metric}, {name})", "refId": name})
    made.current(VariableOption(selected=True, text="All", value="$__all"))
    return made.refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)


def build(title: str, uid: str, rows: dict[str, list[Panel]]) -> str:
    """A dashboard as JSON."""
    made = dashboard.Dashboard(title).uid(uid).tags(["gearshift"]).readonly()
    made.refresh("10s").time("now-15m", "now").timezone("browser")
    made.with_variable(dashboard.DatasourceVariable("datasource").type("prometheus"))
    made.with_variable(variable("job", "gearshift_build_info"))
    made.with_variable(variable("model", 'gearshift_ready{job=~"$job"}'))
    ids = count(1)
    for row, panels in rows.items():
        made.with_row(dashboard.Row(row).id(next(ids)))
        for panel in panels:
            made.with_panel(panel.build().id(next(ids)))
    return json.dumps(made.build(), cls=JSONEncoder, indent=2, sort_keys=True) + "\n"


def files() -> Iterable[tuple[Path, str]]:
    """Every dashboard, and where it is written."""
    yield (
        HERE / "eager-or-compiled.json",
        build("Eager or compiled?", "gearshift-eager-or-compiled", EAGER_OR_COMPILED),
    )
    yield HERE / "operations.json", build("Operations", "gearshift-operations", OPERATIONS)


if __name__ == "__main__":
    for path, text in files():
        path.write_text(text, encoding="utf-8")
