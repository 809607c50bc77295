"""Starts the peers of one workload, one after the other, and leaves each paused and ready.

A peer that does not install or start here is left out, with the reason.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from urllib.request import urlopen

from loadtest.answers import is_right
from loadtest.peers.catalogue import Peer
from loadtest.peers.environments import CACHE, NotInstalled, python_with
from loadtest.peers.handler import make_handler
from loadtest.peers.workloads import TOLERANCE, Payload, Workload
from loadtest.processes import ServerProcess, free_port
from loadtest.rounds import Contestant, IsRight

# Gearshift compiles every bucket before it answers.
READY_S = 1800.0


@dataclass(frozen=True, slots=True)
class LineUp:
    """Who runs, and who does not and why."""

    contestants: list[Contestant] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)


@contextmanager
def lined_up(peers: Sequence[Peer], workload: Workload, batch: int) -> Iterator[LineUp]:
    """All peers, started and paused; they end with the context."""
    payloads = workload.payloads()
    expected = expected_answers(workload, payloads)
    line_up = LineUp()
    with ExitStack() as running:
        for peer in peers:
            began = time.monotonic()
            try:
                server = _start(peer, workload, batch, running)
                requests = [peer.request(payload) for payload in payloads]
                server.wait_ready(requests[0], READY_S)
                if peer.ours:  # it answers with its first worker, and is paused from here on
                    server.wait_until(partial(_is_complete, server.port), READY_S)
            except (NotInstalled, RuntimeError) as error:
                line_up.left_out[peer.name] = str(error)
                say(f"{peer.name}: left out: {error}")
                continue
            server.pause()
            judge = _judge(peer, workload, expected)
            line_up.contestants.append(Contestant(peer.name, server, requests, judge))
            say(f"{peer.name}: ready after {time.monotonic() - began:.0f} s")
        yield line_up


def expected_answers(workload: Workload, payloads: Sequence[Payload]) -> list[Any]:
    """The eager answer to each payload, asked alone, in float32."""
    handler = make_handler(workload)
    answers = [handler.predict([handler.preprocess(payload)])[0] for payload in payloads]
    return [json.loads(json.dumps(answer)) for answer in answers]


def say(text: str) -> None:
    """Progress, beside the result on standard output."""
    sys.stderr.write(f"{text}\n")


def _start(peer: Peer, workload: Workload, batch: int, running: ExitStack) -> ServerProcess:
    CACHE.mkdir(exist_ok=True)
    python = python_with(peer.packages)
    port = free_port()
    log = CACHE / f"{peer.name.replace(' ', '-').lower()}.log"
    command = [str(python), *peer.command(port, workload, batch)]
    return running.enter_context(ServerProcess(command, port, log, peer.environment))


def _is_complete(port: int) -> bool:
    with urlopen(f"http://127.0.0.1:{port}/readyz") as answer:
        models = json.load(answer)["models"].values()
    return all(model["workers_ready"] == model["workers_total"] for model in models)


def _judge(peer: Peer, workload: Workload, expected: Sequence[Any]) -> IsRight:
    tolerance = workload.bfloat16_tolerance if peer.in_bfloat16 else TOLERANCE

    def judge(request: int, body: bytes) -> bool:
        return is_right(peer.answer(body), expected[request], tolerance)

    return judge
