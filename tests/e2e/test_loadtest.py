"""`loadtest/compare`, and plain locust, on servers whose faults are known."""

import json
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from report import figures, render
from report.schema import Report, Side
from report.verdict import verdicts
from tests.e2e.conftest import ROOT
from tests.loadtest.planted import SLOWER_S, STALL_S

pytestmark = pytest.mark.e2e

SCENARIO = """
about = "Four numbers."

[[requests]]
name = "double"
model = "tests.fakes:Double"
samples = [{ x = [1.0, 2.0, 3.0, 4.0] }, { x = [0.5, 0.25, 0.0, 1.0] }]
weight = 19

[[requests]]
name = "double"
model = "tests.fakes:Double"
samples = [{ x = [13.0, 1.0, 1.0, 1.0] }]
"""
CLOSED = """
about = "One client."

[[stages]]
users = 1
"""
# Slower than the planted model is when it does not stall.
OPEN = """
[[stages]]
rate = 80
"""


@pytest.fixture(scope="module")
def plain(start) -> str:
    return str(start("--model", "double=tests.fakes:Double").http.base_url)


@dataclass(frozen=True)
class Compare:
    """Runs the comparison with small files of its own."""

    folder: Path
    environment: dict[str, str]

    def begin(self, *arguments: str) -> subprocess.Popen[str]:
        files = ("--scenario", "numbers.toml", "--out", "out")
        return subprocess.Popen(
            [sys.executable, "-m", "loadtest.compare", *files, *arguments],
            cwd=self.folder,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *arguments: str) -> tuple[int, str, str]:
        """Exit code, stdout, stderr."""
        process = self.begin(*arguments)
        out, err = process.communicate(timeout=300)
        return process.returncode, out, err

    def report(self, *arguments: str) -> Report:
        code, _, err = self.run(*arguments)
        assert code == 0, err
        return self.written()

    def written(self) -> Report:
        return render.read(self.folder / "out.json")


@pytest.fixture(scope="module")
def compare(environment, tmp_path_factory) -> Compare:
    folder = tmp_path_factory.mktemp("loadtest")
    (folder / "numbers.toml").write_text(SCENARIO)
    (folder / "closed.toml").write_text(CLOSED)
    (folder / "both.toml").write_text(CLOSED + OPEN)
    return Compare(folder, environment)


@pytest.fixture(scope="module")
def faulty(start) -> str:
    return str(start("--model", "double=tests.loadtest.planted:Planted").http.base_url)


@pytest.fixture(scope="module")
def planted(compare, plain, faulty) -> Report:
    """A good server against one with every fault."""
    loads = ("--arrivals", "both.toml")
    return compare.report(plain, faulty, *loads, "--rounds", "3", "--seconds", "2", "--warmup", "1")


@pytest.fixture(scope="module")
def locust(environment, tmp_path_factory):
    """Runs plain locust, as the documentation says, without its page."""
    scenario = tmp_path_factory.mktemp("locust") / "numbers.toml"
    scenario.write_text(SCENARIO)

    def run(url: str, name: str = str(scenario)) -> subprocess.CompletedProcess[str]:
        flags = ("--headless", "--users", "2", "--spawn-rate", "2", "--run-time", "3s", "--json")
        command = [sys.executable, "-m", "locust", "-f", "loadtest/locustfile.py", *flags]
        command += ["--host", url, "--scenario", name]
        return subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120
        )

    return run


def closed_and_open(side: Side) -> tuple[figures.Step, figures.Step]:
    by_kind = {step.offered_rps is None: step for step in figures.steps(side)}
    return by_kind[True], by_kind[False]


def test_a_known_slowdown_is_found_and_seen_in_the_servers_own_clock(planted):
    (load,) = planted.loads
    speedups = [speedup for _, speedup in figures.load_speedups(load, load.sides[1])]
    assert len(speedups) == 2
    assert all(speedup.is_loss for speedup in speedups)
    ((_, words),) = verdicts(planted)
    assert "× slower at 1 users" in words
    inference = [run.server.inference_s for run in load.sides[1].runs]
    assert min(inference) >= SLOWER_S


def test_a_known_stall_is_found_by_the_open_loop_only(planted):
    closed, opened = closed_and_open(planted.loads[0].sides[1])
    # Both ran into it: one client waited it out, and did not ask while it lasted.
    assert max(closed.latency_s) >= STALL_S
    assert figures.quantile(closed.latency_s, 0.95) < STALL_S / 2
    assert figures.quantile(opened.latency_s, 0.95) >= STALL_S / 2


def test_a_fast_wrong_answer_is_a_failure(planted):
    right, wrong = planted.loads[0].sides
    assert not any(run.failures for run in right.runs)
    assert {reason for run in wrong.runs for reason in run.failures} == {"wrong answer"}
    ((_, words),) = verdicts(planted)
    assert "wrong answer" in words


def test_locust_alone_sends_a_scenario_and_judges_the_answers(locust, plain):
    done = locust(plain)
    assert done.returncode == 0, done.stderr
    (entry,) = json.loads(done.stdout)
    assert entry["name"] == "/models/double/predict"
    assert entry["num_requests"] > 0
    assert entry["num_failures"] == 0


def test_locust_against_a_server_that_answers_wrong_fails(start, locust):
    # The references are this server's own: what differs from one request to the next is wrong.
    done = locust(str(start("--model", "double=tests.loadtest.planted:Fickle").http.base_url))
    assert done.returncode == 1
    assert "wrong answer" in done.stderr


@pytest.mark.parametrize(
    ("port", "scenario", "text"),
    [(None, "numers", "there is image, mixed, resnet50, series, text"), (1, "series", "refused")],
)
def test_locust_without_a_scenario_or_a_server_says_so(locust, plain, port, scenario, text):
    done = locust(plain if port is None else f"http://127.0.0.1:{port}", scenario)
    assert done.returncode == 1
    assert text in done.stderr


def test_the_client_and_the_server_measure_the_same_requests(planted):
    for side in planted.loads[0].sides:
        for run in side.runs:
            # The server's clock starts later and stops earlier for each of them.
            assert run.server.client_s >= run.server.request_s


def test_a_server_against_itself_gains_nothing(compare, plain):
    short = ("--rounds", "7", "--seconds", "0.5", "--warmup", "0.5")
    report = compare.report(plain, plain, *short, "--arrivals", "closed.toml")
    (load,) = report.loads
    ((_, speedup),) = figures.load_speedups(load, load.sides[1])
    # A 95 % interval misses one time in twenty, by little; a test must not.
    assert speedup.low <= 1.05
    assert speedup.high >= 0.95
    assert {side.name for side in load.sides} == {plain, f"{plain} again"}


@pytest.mark.parametrize(("cause", "code"), [("Ctrl-C", 130), ("a server dies", 3)])
def test_what_ends_it_early_leaves_the_rounds_that_were_complete(
    compare, plain, start, cause, code
):
    other = start("--model", "double=tests.fakes:Double")
    loads = ("--arrivals", "closed.toml", "--rounds", "99", "--seconds", "0.5", "--warmup", "0.5")
    process = compare.begin(plain, str(other.http.base_url), *loads)
    while "round 3 of 99" not in (line := process.stderr.readline()):
        assert line, "it ended by itself"
    if cause == "Ctrl-C":
        process.send_signal(signal.SIGINT)
    else:
        other.stop(signal.SIGKILL)
    out, err = process.communicate(timeout=60)
    assert process.returncode == code, err
    report = compare.written()
    sides = [[run.round for run in side.runs] for side in report.loads[0].sides]
    assert sides[0] == sides[1] == list(range(len(sides[0])))
    assert 2 <= len(sides[0]) < 99
    assert any("Ended early, complete rounds only" in note for note in report.notes)
    assert "out.html" in out


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (["--scenario", "numers"], 2, "there is image, mixed, resnet50, series, text, or a path"),
        (["--mode nonsense"], 3, "mode = 'nonsense'"),
    ],
)
def test_what_cannot_be_compared_is_said(compare, arguments, code, text):
    returned, out, err = compare.run(*arguments)
    assert (returned, out) == (code, "")
    assert text in err
