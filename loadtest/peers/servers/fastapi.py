"""A FastAPI handler that calls the model, as FastAPI says to write it where code blocks: a plain
function, which runs in Starlette's thread pool, several at a time. No batches.
"""

from __future__ import annotations

from typing import Annotated, Any

import uvicorn
from fastapi import Body, FastAPI

from loadtest.peers.servers import arguments

here = arguments()
handler = here.handler()
app = FastAPI()


@app.post("/predict")
def predict(body: Annotated[Any, Body(media_type="*/*")]) -> Any:
    payload = {"image": body} if isinstance(body, bytes) else body
    return handler.predict([handler.preprocess(payload)])[0]


if __name__ == "__main__":
    uvicorn.run(app, port=here.port, log_level="warning", access_log=False)
