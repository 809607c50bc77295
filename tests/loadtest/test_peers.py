"""`scripts/bench peers`, end to end, with a model that does nothing; and a server that lies."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from loadtest.answers import is_right
from loadtest.closed_loop import Load
from loadtest.peers.catalogue import FASTAPI, STARLETTE, Peer
from loadtest.peers.lineup import lined_up
from loadtest.peers.workloads import TOLERANCE, WORKLOADS
from loadtest.rounds import in_turns

ROOT = Path(__file__).parents[2]
NOTHING = WORKLOADS["nothing"]
BRIEFLY = Load(connections=1, warmup_s=0, seconds=0.2)

LIAR = replace(
    STARLETTE, name="liar", command=lambda port, *_: ["-m", "tests.loadtest.liar", str(port)]
)
BROKEN = replace(
    STARLETTE, name="broken", command=lambda *_: ["-c", "raise SystemExit('no model')"]
)


def compare(*peers: Peer):
    with lined_up(peers, NOTHING, batch=1) as line_up:
        return in_turns(line_up.contestants, BRIEFLY, rounds=2), line_up.left_out


@pytest.mark.e2e
def test_the_command_compares_gearshift_with_a_handler(tmp_path):
    report = tmp_path / "reports" / "peers.json"
    flags = "--workloads nothing --rounds 1 --seconds 0.5 --warmup 0.1 --connections 2"
    command = [sys.executable, "-m", "loadtest.peers", *flags.split(), "--report", str(report)]
    peers = ["--peers", "Gearshift eager", "FastAPI"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    ended = subprocess.run(
        [*command, *peers], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert ended.returncode == 0, ended.stderr
    written = json.loads(report.read_text())
    servers = written["workloads"]["nothing"]["servers"]
    assert [server["name"] for server in servers] == ["Gearshift eager", "FastAPI"]
    assert all(server["requests_per_s"] > 0 and server["wrong"] == 0 for server in servers)
    assert "| FastAPI |" in ended.stdout
    assert written["machine"]["versions"]["torch"]


def test_an_answer_to_somebody_elses_question_is_found():
    (liar, honest), _ = compare(LIAR, FASTAPI)
    assert liar.answers <= 1  # the first, where the one before was the same
    assert liar.wrong > liar.answers
    assert honest.answers > 0
    assert honest.wrong == 0


def test_a_server_that_does_not_come_up_is_left_out_with_its_reason():
    figures, left_out = compare(BROKEN, STARLETTE)
    assert [one.name for one in figures] == ["Starlette"]
    assert "no model" in left_out["broken"]


def test_no_two_inputs_can_be_mistaken_for_each_other():
    for name in ("text", "image"):
        payloads = WORKLOADS[name].payloads()
        assert len({str(payload) for payload in payloads}) == len(payloads)
    x = [{"y": payload["x"]} for payload in NOTHING.payloads()]
    assert not any(is_right(a, b, TOLERANCE) for a in x for b in x if a is not b)
