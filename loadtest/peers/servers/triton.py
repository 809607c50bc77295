"""Triton Inference Server by way of nvidia-pytriton: a Python function behind its dynamic batcher.

The function takes the whole request and gives the whole answer, as bytes.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np
from pytriton.decorators import batch
from pytriton.model_config import ModelConfig, Tensor
from pytriton.triton import Triton, TritonConfig

from loadtest.peers.servers import arguments

here = arguments()
handler = here.handler()


@batch  # type: ignore[untyped-decorator]
def predict(body: np.ndarray[Any, Any]) -> dict[str, np.ndarray[Any, Any]]:
    inputs = [handler.preprocess(here.payload(one)) for one in body[:, 0]]
    answers = [json.dumps(answer).encode() for answer in handler.predict(inputs)]
    return {"answer": np.array(answers, dtype=object)[:, None]}


if __name__ == "__main__":
    # The other ports are its own defaults plus what keeps them out of the way.
    config = TritonConfig(
        http_address="127.0.0.1",
        grpc_address="127.0.0.1",
        http_port=here.port,
        grpc_port=here.port + 1,
        metrics_port=here.port + 2,
        log_verbose=0,
    )
    with Triton(config=config) as triton:
        triton.bind(
            model_name="model",
            infer_func=predict,
            inputs=[Tensor(name="body", dtype=bytes, shape=(1,))],
            outputs=[Tensor(name="answer", dtype=bytes, shape=(1,))],
            config=ModelConfig(max_batch_size=here.batch),
        )
        triton.serve()
