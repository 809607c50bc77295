"""mosec: a Rust front, one process that preprocesses and one that runs batches; one process for
both where nothing is batched.
"""

from __future__ import annotations

import os
from typing import Any

from mosec import Server, Worker

from loadtest.peers.servers import BATCH_WAIT_S, arguments

here = arguments()


class Preprocess(Worker):  # type: ignore[misc]
    """Bodies to inputs."""

    def __init__(self) -> None:
        self._handler = here.handler()

    def deserialize(self, data: bytes) -> Any:
        return here.payload(data)

    def forward(self, data: Any) -> Any:
        return self._handler.preprocess(data)


class Inference(Worker):  # type: ignore[misc]
    """Batches of inputs to answers."""

    def __init__(self) -> None:
        self._handler = here.handler()

    def forward(self, data: list[Any]) -> list[Any]:
        return self._handler.predict(data)


class Both(Preprocess):
    """One body to one answer."""

    def forward(self, data: Any) -> Any:
        return self._handler.predict([self._handler.preprocess(data)])[0]


if __name__ == "__main__":
    os.environ |= {"MOSEC_PORT": str(here.port), "MOSEC_LOG_LEVEL": "warning"}
    server = Server()
    if here.batch > 1:
        server.append_worker(Preprocess)
        wait_ms = int(BATCH_WAIT_S * 1000)
        server.append_worker(Inference, max_batch_size=here.batch, max_wait_time=wait_ms)
    else:
        server.append_worker(Both)
    server.run()
