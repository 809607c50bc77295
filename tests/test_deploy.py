"""The files of deploy/: dashboards, rules and the compose file, without running them."""

from __future__ import annotations

import json
import os
import re
import runpy
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parent.parent
PROMETHEUS = ROOT / "deploy" / "prometheus"
DASHBOARDS = sorted((ROOT / "deploy" / "grafana" / "dashboards").glob("*.json"))
METRICS = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")


def rules(name: str) -> list[dict[str, str]]:
    (group,) = yaml.safe_load((PROMETHEUS / name).read_text())["groups"]
    return group["rules"]


def panels(path: Path) -> list[dict]:
    return [one for one in json.loads(path.read_text())["panels"] if one["type"] != "row"]


def test_dashboards_are_what_their_generator_makes():
    made = runpy.run_path(str(ROOT / "deploy" / "grafana" / "dashboards.py"))["files"]()
    assert {path: path.read_text() for path in DASHBOARDS} == dict(made)


@pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: path.stem)
def test_every_panel_says_what_it_shows(path):
    for panel in panels(path):
        # A question, or a quantity with its unit in parentheses.
        assert re.search(r"\?$|\(.+\)$", panel["title"]), panel["title"]
        assert panel["description"].endswith("."), panel["title"]
        assert panel["fieldConfig"]["defaults"]["unit"], panel["title"]
        assert panel["targets"], panel["title"]


def test_expressions_use_metrics_that_exist():
    documented = set(re.findall(r"^\| `(gearshift_\w+)`", METRICS, re.MULTILINE))
    recorded = {rule["record"] for rule in rules("recording.yml")}
    expressions = [rule["expr"] for name in ("recording.yml", "alerts.yml") for rule in rules(name)]
    expressions += [t["expr"] for path in DASHBOARDS for p in panels(path) for t in p["targets"]]
    for expression in expressions:
        for name in re.findall(r"[a-z_]*:?gearshift_[\w:]+", expression):
            base = re.sub(r"_(bucket|sum|count)$", "", name)
            assert {name, base} & (documented | recorded), name


def test_every_alert_has_a_section_in_the_runbook():
    sections = re.findall(r"^## (\w+)$", (ROOT / "docs" / "runbook.md").read_text(), re.MULTILINE)
    alerts = rules("alerts.yml")
    assert sections == [alert["alert"] for alert in alerts]
    for alert in alerts:
        assert alert["annotations"]["runbook"] == f"docs/runbook.md#{alert['alert'].lower()}"


@pytest.mark.parametrize(
    "arguments",
    [
        ("check", "config", "prometheus.yml"),
        ("check", "rules", "recording.yml", "alerts.yml"),
        ("test", "rules", "alerts_test.yml"),
    ],
    ids=" ".join,
)
def test_promtool_agrees(arguments):
    if shutil.which("promtool") is None:
        assert os.environ.get("CI") != "true", "scripts/test installs it in CI"
        pytest.skip("needs promtool: apt-get install prometheus")
    ran = subprocess.run(["promtool", *arguments], cwd=PROMETHEUS, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_compose_mounts_what_is_there_and_scrapes_what_it_starts():
    compose = yaml.safe_load((ROOT / "deploy" / "compose.yaml").read_text())
    services = compose["services"]
    mounted = [
        volume.split(":")[0]
        for service in services.values()
        for volume in service["volumes"]
        if volume.startswith(".")
    ]
    assert mounted
    assert all((ROOT / "deploy" / path).exists() for path in mounted)
    (scrape,) = yaml.safe_load((PROMETHEUS / "prometheus.yml").read_text())["scrape_configs"]
    targets = {target.split(":")[0] for target in scrape["static_configs"][0]["targets"]}
    for profile in ("cpu", "gpu"):
        started = [service for service in services.values() if profile in service["profiles"]]
        aliases = [
            a
            for s in started
            for a in s.get("networks", {"default": {"aliases": ()}})["default"]["aliases"]
        ]
        assert set(aliases) == targets
