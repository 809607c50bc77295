"""The peers as programs, each as short as its own documentation would have it.

    python -m loadtest.peers.servers.NAME PORT WORKLOAD BATCH

BATCH is the largest batch, 1 for none.
"""

from __future__ import annotations

import json
import sys
from typing import NamedTuple

from loadtest.peers.handler import Handler, make_handler
from loadtest.peers.workloads import WORKLOADS, Payload

BATCH_WAIT_S = 0.01
"""How long a batch may wait for company, where a peer has that: a usual value."""


class Arguments(NamedTuple):
    """The command line."""

    port: int
    workload: str
    batch: int

    def handler(self) -> Handler:
        return make_handler(WORKLOADS[self.workload])

    def payload(self, body: bytes) -> Payload:
        """The fields in a request's body: an image as it is, everything else in JSON."""
        payload: Payload = {"image": body} if self.workload == "image" else json.loads(body)
        return payload


def arguments() -> Arguments:
    """What this program was started with."""
    port, workload, batch = sys.argv[1:]
    return Arguments(int(port), workload, int(batch))
