"""Bare Starlette: the least that an HTTP server in Python can do. JSON in, JSON out."""

from __future__ import annotations

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from loadtest.peers.servers import arguments

here = arguments()
handler = here.handler()


async def predict(request: Request) -> JSONResponse:
    inputs = handler.preprocess(here.payload(await request.body()))
    return JSONResponse(handler.predict([inputs])[0])


app = Starlette(routes=[Route("/predict", predict, methods=["POST"])])

if __name__ == "__main__":
    uvicorn.run(app, port=here.port, log_level="warning", access_log=False)
