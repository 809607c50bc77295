"""The sentence at the top of a report, and the pages around it."""

import html.parser
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from report import render
from report.schema import Side
from report.verdict import verdicts
from tests.report.reports import bench, bucket, load, run

ROOT = Path(__file__).parents[2]


def verdict(report) -> str:
    ((_, words),) = verdicts(report)
    return words


def test_a_gain_that_ends_says_where_and_when_it_pays_and_that_answers_agree():
    report = bench(bucket(1, 0.0017, 0.001), bucket(16, 0.01, 0.01), bucket(32, 0.02, 0.0199))
    assert verdict(report) == (
        "compiled (reduce-overhead): 1.7 × faster at batch 1, no gain from batch 16 on; "
        "pays back after 2,136 requests at batch 1; answers agree to 2e-06"
    )


def test_a_break_even_from_a_warm_cache_says_so():
    assert "at batch 1 (its code was in the cache)" in verdict(
        bench(bucket(1, 0.002, 0.001, cache="hit"))
    )


def test_compiled_that_is_slower_never_pays():
    words = verdict(bench(bucket(1, 0.001, 0.002), bucket(8, 0.008, 0.008)))
    assert words.startswith("compiled (reduce-overhead): no gain at batch 8, 2 × slower at batch 1")
    assert "pays" not in words


def test_what_stayed_eager_is_no_measurement():
    words = verdict(bench(bucket(1, 0.001, None)))
    assert words == (
        "compiled (reduce-overhead): stayed eager: 0 graphs: Dynamo took no part of the model"
    )


def test_over_http_the_knee_is_the_last_rate_that_was_kept_up_with():
    eager = [run(n, rate, 0.02, ok) for n in range(5) for rate, ok in ((50, 1), (100, 0.6))]
    compiled = [run(n, rate, 0.01) for n in range(5) for rate in (50, 100)]
    report = load(
        Side(name="eager", started_with="--mode eager", ready_s=5, runs=eager),
        Side(name="compiled", started_with="--mode compiled", ready_s=65, runs=compiled),
    )
    assert verdict(report) == (
        "compiled against eager: 2 × faster at 50 req/s, 2 × faster at 100 req/s; keeps up to "
        "100 req/s (eager: 50 req/s); pays back after 6,000 requests; every answer right"
    )


def test_a_wrong_answer_is_in_the_verdict():
    sides = [
        Side(name=name, started_with=name, runs=[run(0, 50, 0.01, failures=failures)])
        for name, failures in (("eager", {}), ("compiled", {"wrong answer": 3}))
    ]
    assert "failures: 3 wrong answer" in verdict(load(*sides))


@pytest.fixture
def written(tmp_path):
    """A bench and a load in one report, joined by the command that does it."""
    sides = [
        Side(name=name, started_with=f"--mode {name}", ready_s=5, runs=[run(0, 50, 0.01)])
        for name in ("eager", "compiled")
    ]
    for name, report in (
        ("a", bench(bucket(1, 0.002, 0.001), model="<net> & co")),
        ("b", load(*sides)),
    ):
        render.write(report, tmp_path / name)
    command = [sys.executable, "-m", "report", "all", "a.json", "b.json"]
    environment = {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["all.json", "all.md", "all.html"]
    return tmp_path / "all"


def test_reports_are_joined_and_read_back(written):
    joined = render.read(written.with_suffix(".json"))
    assert (len(joined.benches), len(joined.loads)) == (1, 1)
    text = written.with_suffix(".md").read_text()
    assert all(words in text for _, words in verdicts(joined))


def test_the_page_needs_nothing_else_and_its_drawings_are_sound(written):
    page = written.with_suffix(".html").read_text()
    assert "<net>" not in page
    assert "&lt;net&gt; &amp; co" in page
    found = []

    class Sources(html.parser.HTMLParser):
        def handle_starttag(self, tag, attrs):
            found.extend(value for name, value in attrs if name in ("src", "href"))

    Sources().feed(page)
    assert not found
    drawings = [part.partition("</svg>")[0] + "</svg>" for part in page.split("<svg")[1:]]
    assert len(drawings) >= 7
    for drawing in drawings:
        ElementTree.fromstring(f"<svg{drawing}")
        assert "nan" not in drawing


def test_a_file_that_is_no_report_is_refused(tmp_path):
    (tmp_path / "a.json").write_text("{}")
    command = [sys.executable, "-m", "report", str(tmp_path / "all"), str(tmp_path / "a.json")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 1
    assert "created" in done.stderr
