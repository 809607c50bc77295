"""The command line: flags over the configuration, every refusal as a text and an exit code.

    0  stopped cleanly, or printed what was asked for
    1  `doctor` found something that blocks compiling
    2  the configuration, a flag or a model reference cannot be used
    3  the server could not start, or the model could not be measured
    4  `bench`: a condition of --fail-if holds, or it got worse than --baseline

Imports nothing heavy before the configuration is known to be good: `--help` answers at once.
"""

from __future__ import annotations

import signal
import socket
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from pydantic import ValidationError
from rich.console import Console
from rich.table import Table

from models import registry
from models.base import ModelError
from report import render
from report.gate import Condition, GateError
from report.schema import Report
from report.tables import latency_table
from report.verdict import verdicts
from server import __version__, config, sources
from server.catalogue import make_models
from server.engine.environment import prepare_environment
from server.runtime import StartupError, runtime

BLOCKED = 1
BAD_CONFIG = 2
STARTUP_FAILED = 3
GATE_FAILED = 4

app = typer.Typer(pretty_exceptions_enable=False, add_completion=False)


def main() -> None:
    # From the first moment: as process 1 of a container a signal without a handler is ignored.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    app(prog_name="serve")


def _key(key: str, metavar: str | None = None) -> Any:
    return typer.Option(help=config.field(key).description, metavar=metavar)


def _print_version(asked: bool) -> None:
    if asked:
        typer.echo(f"gearshift {__version__}")
        raise typer.Exit


CONFIG = typer.Option(
    "--config",
    help="Config file. Default: $GEARSHIFT_CONFIG, or config.toml where there is one.",
    metavar="PATH",
)
MODEL = typer.Option(
    help="Model to serve, in place of those in the file; repeatable. See `serve models`.",
    metavar="[NAME=]REF",
)
CHECK = typer.Option(
    "--check", help="Print the resolved configuration as TOML and exit.", metavar=""
)
VERSION = typer.Option(
    "--version",
    help="Print the version and exit.",
    metavar="",
    callback=_print_version,
    is_eager=True,
)


TORCH_MODE = typer.Option(
    help="torch.compile's mode to measure beside eager; repeatable. Default: compile.torch_mode.",
    metavar="MODE",
)
OUT = typer.Option(
    help="Where to write PATH.json, PATH.md and PATH.html. Default: reports/bench-<time>.",
    metavar="PATH",
)
FAIL_IF = typer.Option(
    help='Condition that must not hold, like "speedup(batch=1) < 1.2"; repeatable.',
    metavar="CONDITION",
)
BASELINE = typer.Option(help="Older report (.json) to hold this one against.", metavar="PATH")
BATCH = typer.Option(help="Batch size to measure; repeatable. Default: 1.", min=1)
SEQ = typer.Option(help="Sequence length to measure; repeatable. Default: 32.", min=1)


@app.callback(invoke_without_command=True)
def serve(
    context: typer.Context,
    file: Annotated[Path | None, CONFIG] = None,
    model: Annotated[list[str] | None, MODEL] = None,
    weights: Annotated[str | None, _key("models.weights", "default|random|PATH")] = None,
    mode: Annotated[str | None, _key("mode", "eager|compiled|auto")] = None,
    device: Annotated[str | None, _key("device", "auto|cpu|cuda[:N]")] = None,
    dtype: Annotated[str | None, _key("dtype", "auto|float32|bfloat16|float16")] = None,
    threads: Annotated[int | None, _key("threads")] = None,
    workers: Annotated[int | None, _key("workers")] = None,
    host: Annotated[str | None, _key("server.host", "127.0.0.1|0.0.0.0|::")] = None,
    port: Annotated[int | None, _key("server.port")] = None,
    api_processes: Annotated[int | None, _key("server.api_processes")] = None,
    max_batch_size: Annotated[int | None, _key("batching.max_batch_size")] = None,
    log_format: Annotated[str | None, _key("log.format", "auto|text|json")] = None,
    log_level: Annotated[str | None, _key("log.level", "debug|info|warning|error")] = None,
    check: Annotated[bool, CHECK] = False,
    version: Annotated[bool, VERSION] = False,
) -> None:
    """Serve PyTorch models over HTTP, eager or compiled.

    Every other key is set in the config file, or in the environment:
    batching.max_queue is GEARSHIFT_BATCHING__MAX_QUEUE.
    """
    if context.invoked_subcommand:
        return
    flags = {
        "mode": mode,
        "device": device,
        "dtype": dtype,
        "threads": threads,
        "workers": workers,
        "server": {"host": host, "port": port, "api_processes": api_processes},
        "batching": {"max_batch_size": max_batch_size},
        "log": {"format": log_format, "level": log_level},
        "models": _models(model or [], weights),
    }
    settings = _load(file, _given(flags))
    if check:
        typer.echo(sources.to_toml(settings), nl=False)
        return
    _check_port(settings.server)
    _run(settings)


def _models(references: list[str], weights: str | None) -> list[dict[str, str]] | None:
    if weights is not None and len(references) != 1:
        _fail(BAD_CONFIG, f"--weights {weights}: needs exactly one --model, the one it is for")
    tables = [_model(reference) for reference in references]
    if weights is not None:
        tables[0]["weights"] = weights
    return tables or None


def _model(reference: str) -> dict[str, str]:
    name, equals, rest = reference.partition("=")
    # A "=" may also be part of a path or of a `kind:reference`; a name has neither "/" nor ":".
    named = equals and not set(name) & set("/:")
    return {"name": name, "model": rest} if named else {"model": reference}


def _given(flags: dict[str, Any]) -> dict[str, Any]:
    """Only the flags that were given, and the tables that have one."""
    kept = {k: _given(v) if isinstance(v, dict) else v for k, v in flags.items()}
    return {key: value for key, value in kept.items() if value is not None and value != {}}


def _load(file: Path | None, flags: dict[str, Any]) -> config.Settings:
    """The settings, every model reference in them known to be one."""
    try:
        settings = sources.load(file, flags)
        make_models(settings)
    except (config.ConfigError, ModelError) as error:
        _fail(BAD_CONFIG, str(error))
    return settings


def _check_port(section: config.ServerSection) -> None:
    family = socket.AF_INET6 if ":" in section.host else socket.AF_INET
    with socket.socket(family) as probe:
        # As uvicorn binds: a port that is only waiting out closed connections is free.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((section.host, section.port))
        except OSError as error:
            remedy = "stop what listens there, or choose another with --port"
            _fail(
                STARTUP_FAILED, f"port {section.port} on {section.host}: {error.strerror}; {remedy}"
            )


def _run(settings: config.Settings) -> None:
    try:
        prepare_environment(settings)
        with runtime() as made:
            from server.api.app import serve as run  # heavy: LitServe and FastAPI

            run(settings, made)
    except config.ConfigError as error:
        _fail(BAD_CONFIG, str(error))
    except StartupError as error:
        _fail(STARTUP_FAILED, str(error))
    except KeyboardInterrupt:
        raise typer.Exit from None  # stopped before it was all up: cleanly, too


@app.command()
def models() -> None:
    """List what can be served and how to write it."""
    _print_table(
        ("kind", "how to write it", "example", "what it is"), registry.describe_catalogue()
    )


@app.command()
def bench(
    file: Annotated[Path | None, CONFIG] = None,
    model: Annotated[list[str] | None, MODEL] = None,
    weights: Annotated[str | None, _key("models.weights", "default|random|PATH")] = None,
    device: Annotated[str | None, _key("device", "auto|cpu|cuda[:N]")] = None,
    dtype: Annotated[str | None, _key("dtype", "auto|float32|bfloat16|float16")] = None,
    threads: Annotated[int | None, _key("threads")] = None,
    torch_mode: Annotated[list[str] | None, TORCH_MODE] = None,
    batch: Annotated[list[int] | None, BATCH] = None,
    seq: Annotated[list[int] | None, SEQ] = None,
    seconds: Annotated[float, typer.Option(help="Measuring time of a bucket, all modes.")] = 5.0,
    out: Annotated[Path | None, OUT] = None,
    fail_if: Annotated[list[str] | None, FAIL_IF] = None,
    baseline: Annotated[Path | None, BASELINE] = None,
) -> None:
    """Compare eager and compiled without HTTP, and write a report: speed, cost, answers.

    Exit code 4: a condition of --fail-if holds, or a speed-up fell below that of --baseline.
    """
    settings = _tool_settings(file, _models(model or [], weights), device, dtype, threads)
    sections = [_compile_section(settings, one) for one in torch_mode or ()] or [settings.compile]
    try:
        conditions = [Condition.parse(text) for text in fail_if or ()]
        before = None if baseline is None else render.read(baseline)
        prepare_environment(settings)
        from server import bench  # heavy: torch

        report = bench.run(settings, sections, bench.Shapes(batch or [1], seq or [32], seconds))
        _print_report(report, out or Path("reports", f"bench-{report.created:%Y%m%d-%H%M%S}"))
        gates = list(bench.gate(report, conditions, before))
    except (config.ConfigError, GateError, OSError, ValidationError) as error:
        _fail(BAD_CONFIG, str(error))
    except (ModelError, StartupError) as error:
        _fail(STARTUP_FAILED, str(error))
    for table, _ in gates:
        typer.echo(table.title)
        _print_table(table.header, table.rows)
    if any(fails for _, fails in gates):
        raise typer.Exit(GATE_FAILED)


def _compile_section(settings: config.Settings, torch_mode: str) -> config.CompileSection:
    values = {**settings.compile.model_dump(), "torch_mode": torch_mode}
    try:
        return config.CompileSection.model_validate(values)
    except ValidationError as error:
        _fail(BAD_CONFIG, f"--torch-mode {torch_mode}: {error.errors()[0]['msg']}")


def _print_report(report: Report, path: Path) -> None:
    for what, verdict in verdicts(report):
        typer.echo(f"{what}: {verdict}")
    for one in report.benches:
        table = latency_table(one)
        _print_table(("model", *table.header), [(one.model, *row) for row in table.rows])
    for written in render.write(report, path):
        typer.echo(str(written))


@app.command()
def doctor(
    file: Annotated[Path | None, CONFIG] = None,
    model: Annotated[list[str] | None, MODEL] = None,
    weights: Annotated[str | None, _key("models.weights", "default|random|PATH")] = None,
    device: Annotated[str | None, _key("device", "auto|cpu|cuda[:N]")] = None,
    dtype: Annotated[str | None, _key("dtype", "auto|float32|bfloat16|float16")] = None,
    threads: Annotated[int | None, _key("threads")] = None,
    batch: Annotated[list[int] | None, BATCH] = None,
    seq: Annotated[list[int] | None, SEQ] = None,
    seconds: Annotated[float, typer.Option(help="Measuring time of a bucket, both modes.")] = 2.0,
) -> None:
    """Say what compiling lacks on this machine; with --model, what it buys there.

    Exit code 1: something blocks it, and a server would serve eager.
    """
    settings = _tool_settings(file, _models(model or [], weights), device, dtype, threads)
    try:
        prepare_environment(settings)
        from server import doctor  # heavy: torch

        findings = doctor.examine(settings)
        _print_table(doctor.FINDINGS, map(doctor.finding_row, findings))
        if doctor.blocks(findings):
            raise typer.Exit(BLOCKED)
        for one in make_models(settings).values() if model else ():
            _print_table(doctor.GRAPHS, doctor.graph_rows(one, settings))
            rows = doctor.verdict_rows(one, settings, batch or [1], seq or [32], seconds)
            _print_table(doctor.VERDICTS, rows)
    except config.ConfigError as error:
        _fail(BAD_CONFIG, str(error))
    except ModelError as error:
        _fail(STARTUP_FAILED, str(error))


def _tool_settings(
    file: Path | None,
    models: list[dict[str, str]] | None,
    device: str | None,
    dtype: str | None,
    threads: int | None,
) -> config.Settings:
    """For a command that serves nothing and prints its result."""
    flags = {"device": device, "dtype": dtype, "threads": threads, "models": models}
    return _load(file, _given({**flags, "log": {"level": "warning"}}))


def _print_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    if not sys.stdout.isatty():
        typer.echo("\n".join("\t".join(row) for row in (header, *rows)))
        return
    table = Table(*header)
    for row in rows:
        table.add_row(*row)
    Console(markup=False, highlight=False).print(table)


def _fail(code: int, text: str) -> NoReturn:
    for line in text.splitlines():
        typer.echo(f"serve: {line}", err=True)
    raise typer.Exit(code)


if __name__ == "__main__":
    main()
