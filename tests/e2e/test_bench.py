"""`serve bench` as a user and a CI job meet it."""

import subprocess
import sys

import pytest

from report import render
from tests.report.reports import bench, bucket

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def serve_bench(environment, tmp_path_factory):
    """Run it on a small model; all runs share a folder."""
    folder = tmp_path_factory.mktemp("bench")

    def run(*flags: str) -> subprocess.CompletedProcess[str]:
        fixed = ("--model", "tests.fakes:Double", "--device", "cpu", "--threads", "1")
        command = [sys.executable, "-m", "server.cli", "bench", *fixed, "--seconds", "0.5", *flags]
        return subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, text=True, timeout=280
        )

    return run, folder


def test_a_report_of_every_torch_mode_in_every_bucket(serve_bench):
    run, folder = serve_bench
    modes = ("--torch-mode", "default", "--torch-mode", "reduce-overhead")
    buckets = ("--batch", "1", "--batch", "4")
    done = run(*modes, *buckets, "--out", "new/one", "--fail-if", "speedup > 1000")
    assert done.returncode == 0, done.stderr
    verdict, *_ = done.stdout.splitlines()
    assert verdict.startswith("Double, cpu, float32: compiled (default): ")
    assert done.stdout.splitlines()[-2:] == [
        "Conditions that hold",
        "condition\tmodel\tdevice\tdtype\tbucket\tvariant\tfound",
    ]
    (found,) = render.read(folder / "new" / "one.json").benches
    assert [bucket.batch for bucket in found.buckets] == [1, 4]
    for one in found.buckets:
        assert [variant.name for variant in one.variants] == ["eager", "default", "reduce-overhead"]
        for variant in one.variants[1:]:
            assert variant.rounds
            assert (variant.graphs, variant.graph_breaks) == (1, 0)
            assert variant.parity_max_abs_error == 0
            assert variant.first_call_s
    assert verdict in (folder / "new" / "one.md").read_text().replace("**: ", ": ").replace(
        "**", ""
    )
    assert (folder / "new" / "one.html").exists()


def test_the_gate_is_exit_code_4_and_a_table(serve_bench):
    run, folder = serve_bench
    # Once it was a thousand times faster than eager.
    older = bench(bucket(1, 1.0, 0.001), model="Double")
    render.write(older, folder / "older")
    done = run("--fail-if", "speedup(batch=1) < 1000", "--baseline", "older.json")
    assert done.returncode == 4, done.stderr
    *_, condition, title, _, row = done.stdout.splitlines()
    assert condition.startswith("speedup(batch=1) < 1000\tDouble\tcpu\tfloat32\t1\treduce-overhead")
    assert title == "Against the baseline"
    assert row.endswith("\tworse")
    assert len(list((folder / "reports").glob("bench-*.html"))) == 1


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        (["--fail-if", "speed < 1"], "expected a metric: speedup,"),
        (["--baseline", "nothing.json"], "nothing.json"),
        (["--torch-mode", "fastest"], "--torch-mode fastest"),
    ],
)
def test_a_gate_that_cannot_work_is_refused_before_anything_is_measured(serve_bench, flags, text):
    done = serve_bench[0](*flags)
    assert (done.returncode, done.stdout) == (2, "")
    assert text in done.stderr
