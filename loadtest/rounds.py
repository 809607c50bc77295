"""Several servers under the same load, in turns, so that a machine that drifts is fair to all.

    A B C  A B C  A B C     all are started first; whoever is not measured is paused

Answers are compared after each turn, so the comparison takes no time from the server.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import median

import numpy as np

from loadtest.closed_loop import Answer, Load, Request, drive
from loadtest.processes import ServerProcess

IsRight = Callable[[int, bytes], bool]


@dataclass(slots=True)
class Contestant:
    """A running server, what it is asked, and what came of it, round by round."""

    name: str
    server: ServerProcess
    requests: Sequence[Request]
    is_right: IsRight
    rates: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    wrong: int = 0

    def take(self, answers: Sequence[Answer], load: Load) -> None:
        """Count one turn's answers. One that is wrong is not served."""
        right = [
            answer
            for answer in answers
            if answer.status == 200 and self.is_right(answer.request, answer.body)
        ]
        self.rates.append(len(right) / load.seconds)
        self.seconds += [answer.seconds for answer in right]
        self.wrong += len(answers) - len(right)


@dataclass(frozen=True, slots=True)
class Figures:
    """One server under one load: the median round's rate, latencies of all rounds."""

    name: str
    connections: int
    requests_per_s: float
    rounds: list[float]
    p50_ms: float
    p99_ms: float
    answers: int
    wrong: int


def in_turns(contestants: Sequence[Contestant], load: Load, rounds: int) -> list[Figures]:
    """Every contestant's figures under `load`. All of them must be paused, and are again after."""
    for contestant in contestants:
        contestant.rates, contestant.seconds, contestant.wrong = [], [], 0
    for _ in range(rounds):
        for contestant in contestants:
            contestant.server.resume()
            try:
                answers = drive(contestant.server.port, contestant.requests, load)
            except OSError as error:
                raise RuntimeError(f"{contestant.name}: {error}") from error
            contestant.take(answers, load)
            contestant.server.pause()
    return [_figures(contestant, load) for contestant in contestants]


def _figures(contestant: Contestant, load: Load) -> Figures:
    seconds = contestant.seconds or [float("nan")]
    p50, p99 = np.percentile(seconds, (50, 99)) * 1000
    return Figures(
        name=contestant.name,
        connections=load.connections,
        requests_per_s=median(contestant.rates),
        rounds=contestant.rates,
        p50_ms=float(p50),
        p99_ms=float(p99),
        answers=len(contestant.seconds),
        wrong=contestant.wrong,
    )
