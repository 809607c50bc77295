"""The command line: flags over the configuration, every refusal as a text and an exit code.

    0  stopped cleanly, or printed what was asked for
    1  `doctor` found something that blocks compiling
    2  the configuration, a flag or a model reference cannot be used
    3  the server could not start

Imports nothing heavy before the configuration is known to be good: `--help` answers at once.
"""

from __future__ import annotations

import signal
import socket
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer
from rich.console import Console
from rich.table import Table

from models import registry
from models.base import ModelError
from server import __version__, config, sources
from server.catalogue import make_models
from server.engine.environment import prepare_environment
from server.runtime import StartupError, runtime

if TYPE_CHECKING:
    from server.engine.bench import Comparison, Latencies

BLOCKED = 1
BAD_CONFIG = 2
STARTUP_FAILED = 3

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
    batch: Annotated[list[int] | None, BATCH] = None,
    seq: Annotated[list[int] | None, SEQ] = None,
    seconds: Annotated[float, typer.Option(help="Measuring time of a bucket, both modes.")] = 5.0,
) -> None:
    """Compare eager and compiled without HTTP: latency of a batch, its answers, compile time."""
    settings = _tool_settings(file, _models(model or [], weights), device, dtype, threads)
    header = ("model", "bucket", "eager p50 ms", "compiled p50 ms", "speed-up", "compile s")
    try:
        prepare_environment(settings)
        from server.engine.bench import compare  # heavy: torch

        rows = [
            _bench_row(row)
            for one in make_models(settings).values()
            for row in compare(one, settings, batch or [1], seq or [32], seconds)
        ]
    except (config.ConfigError, ModelError) as error:
        _fail(STARTUP_FAILED, str(error))
    _print_table((*header, "max abs difference"), rows)


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


def _bench_row(row: Comparison) -> tuple[str, ...]:
    if row.status.state != "compiled":
        return (row.model, str(row.bucket), _ms(row.eager), "-", "-", "-", row.status.reason or "")
    return (
        row.model,
        str(row.bucket),
        _ms(row.eager),
        _ms(row.compiled),
        f"{row.speedup:.2f}",
        f"{row.status.compile_s:.1f}",
        f"{row.status.parity_max_abs_error:.0e}",
    )


def _ms(latencies: Latencies) -> str:
    return f"{latencies.quantile(0.5) * 1e3:.2f}"


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
