"""Stock LitServe. Its request queue takes JSON alone, so an image comes in base64."""

# NOTE: LitServe reads the annotations of `decode_request` themselves, and hands over the JSON when
# `request` has none.

import base64
from typing import Any

import litserve

from loadtest.peers.servers import BATCH_WAIT_S, Arguments, arguments


class One(litserve.LitAPI):  # type: ignore[misc]
    """The handler in LitServe's steps, one request at a time."""

    def __init__(self, here: Arguments, **options: Any) -> None:
        super().__init__(**options)
        self._here = here

    def setup(self, device: str) -> None:
        self._handler = self._here.handler()

    def decode_request(self, request):  # type: ignore[no-untyped-def]
        if "image" in request:
            request = {"image": base64.b64decode(request["image"])}
        return self._handler.preprocess(request)

    def predict(self, x: Any) -> Any:
        return self._handler.predict([x])[0]


class Batched(One):
    """The same with batches."""

    def batch(self, inputs: list[Any]) -> list[Any]:
        return inputs

    def predict(self, x: list[Any]) -> list[Any]:
        return self._handler.predict(x)

    def unbatch(self, output: list[Any]) -> list[Any]:
        return output


if __name__ == "__main__":
    here = arguments()
    batching = {"max_batch_size": here.batch, "batch_timeout": BATCH_WAIT_S}
    api = Batched(here, **batching) if here.batch > 1 else One(here)
    server = litserve.LitServer(api, accelerator="cpu")
    server.run(port=here.port, generate_client_file=False, log_level="warning")
