"""Two servers under the same load, in turn, and a report of what differs: `loadtest/compare`.

    start -> references -> warm-up -> rounds of runs, A B then B A -> report

The answers of the first server, asked one by one, are what every later answer is held against.
What ends it early, Ctrl-C or a server that dies, leaves a report of the rounds that were complete.
"""

from __future__ import annotations

import shlex
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from statistics import mean
from typing import Annotated, NoReturn

import typer

from loadtest import drive, servers
from loadtest.drive import Records, Request
from loadtest.scenario import (
    Arrivals,
    Scenario,
    ScenarioError,
    Stage,
    read_arrivals,
    read_scenario,
)
from loadtest.servers import Samples, Server, ServerFailed
from report import figures, render
from report.machine import describe_machine
from report.schema import Load, Report, Run, ServerFigures, Side
from report.verdict import verdicts

Kinds = Sequence[tuple[float, Sequence[Request]]]
Early = KeyboardInterrupt | ServerFailed

WARMUP_USERS = 16
NONE: tuple[tuple[()], tuple[()], tuple[()]] = ((), (), ())
BUCKETS = ("bucket_compiled", "compile_cache_hit")
UNUSABLE = 2
FAILED = 3
INTERRUPTED = 130
ENOUGH_ROUNDS = 6

SIDE = typer.Argument(help="A mode, flags of `serve` in quotes, or the URL of a server that runs.")
SCENARIO = typer.Option(help="What is sent: a name from loadtest/scenarios, or a path.")
ARRIVALS = typer.Option(
    help="When: a name from loadtest/arrivals, or a path; repeatable. Default: steady and open."
)
OUT = typer.Option(help="Where to write PATH.json, PATH.md and PATH.html.", metavar="PATH")


app = typer.Typer(pretty_exceptions_enable=False, add_completion=False)


# Flags of `serve` may stand where a side does.
@app.command(context_settings={"ignore_unknown_options": True})
def main(
    a: Annotated[str, SIDE] = "eager",
    b: Annotated[str, SIDE] = "compiled",
    scenario: Annotated[str, SCENARIO] = "image",
    arrivals: Annotated[list[str] | None, ARRIVALS] = None,
    rounds: Annotated[
        int, typer.Option(help="How often each load is put on each side.", min=1)
    ] = 6,
    seconds: Annotated[float, typer.Option(help="Length of a run, lead-in left out.")] = 10.0,
    warmup: Annotated[float, typer.Option(help="Seconds of warm-up on each side, left out.")] = 5.0,
    out: Annotated[Path | None, OUT] = None,
) -> None:
    """Compare two servers under load: latency, throughput, start-up, memory, answers."""
    # However this is ended, the servers that it started end with it.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        what = read_scenario(scenario)
        when = {Path(name).stem: read_arrivals(name) for name in arrivals or ("steady", "open")}
        pace = Pace(rounds, seconds, warmup)
        report, ended = compare((a, b), Path(scenario).stem, what, when, pace)
    except ScenarioError as error:
        _fail(UNUSABLE, str(error))
    except ServerFailed as error:
        _fail(FAILED, str(error))
    except KeyboardInterrupt:
        _fail(INTERRUPTED, "interrupted before a round was complete: no report")
    path = out or Path("reports", f"load-{report.created:%Y%m%d-%H%M%S}")
    for about, verdict in verdicts(report):
        typer.echo(f"{about}: {verdict}")
    for written in render.write(report, path):
        typer.echo(str(written))
    if ended is not None:
        code = INTERRUPTED if isinstance(ended, KeyboardInterrupt) else FAILED
        _fail(code, _early(ended))


def _fail(code: int, text: str) -> NoReturn:
    typer.echo(f"compare: {text}", err=True)
    raise typer.Exit(code)


def _early(ended: Early) -> str:
    return f"Ended early, complete rounds only: {str(ended) or 'interrupted'}"


@dataclass(frozen=True, slots=True)
class Pace:
    """How long, how often."""

    rounds: int
    seconds: float
    warmup_s: float


def compare(
    sides: Sequence[str], name: str, scenario: Scenario, when: Mapping[str, Arrivals], pace: Pace
) -> tuple[Report, Early | None]:
    """Start `sides`, put every load of `when` on them, in turn; and what ended that early.

    Raises ServerFailed and KeyboardInterrupt when not one round was complete.
    """
    with ExitStack() as stack:
        found = [stack.enter_context(servers.serving(s, scenario.serve_flags)) for s in sides]
        if found[0].name == found[1].name:
            found[1] = replace(found[1], name=f"{found[1].name} again")
        kinds = [
            (weight, [_with_reference(found[0], request) for request in requests])
            for weight, requests in drive.make_requests(scenario)
        ]
        most_rps = max(_warm_up(server, kinds, pace.warmup_s) for server in found)
        done: dict[str, list[Round]] = {arrivals: [] for arrivals in when}
        ended: Early | None = None
        try:
            for arrivals, rounds in done.items():
                targets = _targets(when[arrivals], most_rps)
                for number in range(pace.rounds):
                    of = f"{arrivals}, round {number + 1} of {pace.rounds}"
                    rounds.append(_round(of, number, found, kinds, targets, pace.seconds))
        except (KeyboardInterrupt, ServerFailed) as early:
            if not any(done.values()):
                raise
            ended = early
    done = {arrivals: rounds for arrivals, rounds in done.items() if rounds}
    last = list(done.values())[-1][-1].samples
    notes = [note for server in found for note in _notes(server.name, last[server.name])]
    report = Report(
        created=datetime.now(UTC),
        command=shlex.join(["loadtest/compare", *sys.argv[1:]]),
        machine=describe_machine(),
        loads=tuple(_load(name, arrivals, found, rounds) for arrivals, rounds in done.items()),
        notes=(
            scenario.about,
            *([_early(ended)] if ended is not None else ()),
            *notes,
            *_few(min(map(len, done.values()))),
        ),
    )
    return report, ended


def _with_reference(server: Server, request: Request) -> Request:
    return replace(request, reference=server.ask(request.path, request.body))


def _warm_up(server: Server, kinds: Kinds, seconds: float) -> float:
    """Answers a second at full load; nothing else of it is kept."""
    records = drive.closed(server.url, drive.endless(kinds), WARMUP_USERS, seconds)
    if not records.right:
        raise ServerFailed(f"{server.name}: no right answer in the warm-up: {records.failures}")
    return len(records.right) / seconds


@dataclass(frozen=True, slots=True)
class Target:
    """A stage, its rate worked out."""

    users: int | None
    rate: float | None
    burst: int

    def put_on(self, server: Server, kinds: Kinds, seconds: float) -> Records:
        requests = drive.endless(kinds)
        if self.rate is not None:
            return drive.opened(server.url, requests, self.rate, self.burst, seconds)
        assert self.users is not None, "a stage has users or a rate"
        return drive.closed(server.url, requests, self.users, seconds)


def _targets(arrivals: Arrivals, most_rps: float) -> list[Target]:
    return [_target(stage, most_rps) for stage in arrivals.stages]


def _target(stage: Stage, most_rps: float) -> Target:
    rate = stage.rate
    if stage.share is not None:
        rate = float(f"{stage.share * most_rps:.2g}")
    return Target(stage.users, rate, stage.burst)


@dataclass(slots=True)
class Round:
    """By side: a run for every target, and the server's metrics after the last of them."""

    runs: dict[str, list[Run]]
    samples: dict[str, Samples]


def _round(
    of: str,
    number: int,
    found: Sequence[Server],
    kinds: Kinds,
    targets: Sequence[Target],
    seconds: float,
) -> Round:
    done = Round({server.name: [] for server in found}, {})
    for target in targets:
        # A B, then B A: a machine that drifts is as unfair to one as to the other.
        for server in found if number % 2 == 0 else reversed(found):
            before = server.samples()
            records = target.put_on(server, kinds, seconds)
            done.samples[server.name] = after = server.samples()
            run = _run(number, target, records, servers.figures(before, after))
            done.runs[server.name].append(run)
            _say(of, server, run)
    return done


def _load(scenario: str, arrivals: str, found: Sequence[Server], rounds: Sequence[Round]) -> Load:
    sides = [
        Side(
            name=server.name,
            started_with=server.started_with,
            live_s=server.live_s,
            ready_s=server.ready_s,
            memory_bytes=servers.memory_bytes(rounds[-1].samples[server.name]),
            runs=tuple(run for one in rounds for run in one.runs[server.name]),
        )
        for server in found
    ]
    return Load(scenario=scenario, arrivals=arrivals, sides=tuple(sides))


def _run(number: int, target: Target, records: Records, counted: ServerFigures | None) -> Run:
    start_s, latency_s, bucket = zip(*sorted(records.right), strict=True) if records.right else NONE
    return Run(
        round=number,
        offered_rps=target.rate,
        users=target.users,
        seconds=records.seconds,
        start_s=start_s,
        latency_s=latency_s,
        bucket=bucket,
        failures=dict(records.failures),
        server=counted and counted.model_copy(update={"client_s": mean(records.every_s)}),
    )


def _say(of: str, server: Server, run: Run) -> None:
    """One line a run, on stderr: a comparison takes minutes."""
    step = figures.Step((run,))
    typer.echo(f"{of}: {server.name}, {step.load}: {step.answered_rps:.1f} req/s", err=True)


def _few(rounds: int) -> Iterator[str]:
    """The bootstrap's interval is at most the range of its rounds, which holds the median with a
    probability of 1 - 2 / 2^rounds."""
    if rounds < ENOUGH_ROUNDS:
        sure = 1 - 2 / 2**rounds
        yield f"{rounds} rounds only: what is called a 95 % interval is one of {sure:.0%} at most."


def _notes(side: str, samples: Samples) -> Iterator[str]:
    """What would make its figures mean something else than they seem to."""
    fallbacks = samples.get("gearshift_eager_fallbacks_total", 0)
    if fallbacks:
        yield f"{side}: {fallbacks:.0f} batches of compiled models ran eager."
    buckets, hits = (samples.get(f"gearshift_{name}", 0) for name in BUCKETS)
    if hits:
        yield (
            f"{side}: the code of {hits:.0f} of {buckets:.0f} compiled buckets came from "
            "the cache, so it started warm."
        )


if __name__ == "__main__":
    app(prog_name="compare")
