"""Ray Serve with its batching decorator.

One change: `max_ongoing_requests`, 5 unless told otherwise, would keep a batch of 8 from filling.
"""

from __future__ import annotations

import time
from typing import Any

from ray import serve
from starlette.requests import Request

from loadtest.peers.catalogue import BATCH
from loadtest.peers.servers import BATCH_WAIT_S, Arguments, arguments

ONGOING = 100


class Model:
    """The handler in a replica."""

    def __init__(self, here: Arguments) -> None:
        self._here = here
        self._handler = here.handler()

    @serve.batch(max_batch_size=BATCH, batch_wait_timeout_s=BATCH_WAIT_S)  # type: ignore[untyped-decorator]
    async def _predict(self, inputs: list[Any]) -> list[Any]:
        return self._handler.predict(inputs)

    async def __call__(self, request: Request) -> Any:
        payload = self._here.payload(await request.body())
        return await self._predict(self._handler.preprocess(payload))


if __name__ == "__main__":
    here = arguments()
    serve.start(http_options={"port": here.port})
    deployment = serve.deployment(max_ongoing_requests=ONGOING)(Model)
    serve.run(deployment.bind(here), route_prefix="/predict")
    while True:
        time.sleep(3600)
