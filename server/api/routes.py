"""The way of a request through the API process, and the routes around it.

    admission -> read -> decode, preprocess -> worker -> postprocess, encode

Raw Starlette routes: FastAPI's own machinery costs a tenth of a millisecond a request. Every
request ends in exactly one outcome, counted here, and every error becomes problem+json here.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass

import orjson
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from models.base import ServedModel
from server import metrics
from server.api import encode
from server.api.admission import Admission
from server.api.decode import Body, Decoded, decode, is_cheap
from server.api.disconnect import WhileConnected
from server.api.health import Board
from server.api.read import read
from server.config import Settings
from server.errors import (
    DeadlineExceeded,
    GearshiftError,
    InferenceFailed,
    InvalidInput,
    Outcome,
    UnknownModel,
)
from server.exposition import Requests
from server.link.client import WorkerClient
from server.types import Sample

log = logging.getLogger(__name__)

UNEXPECTED = "the server failed on this request; its log has the cause under this request id"


@dataclass(slots=True)
class Api:
    """What the routes of one API process share."""

    settings: Settings
    models: Mapping[str, ServedModel]
    client: WorkerClient
    board: Board
    requests: Requests
    pool: ThreadPoolExecutor
    admissions: Mapping[str, Admission]

    def routes(self) -> list[Route]:
        """Every route that is ours; the most travelled first, as they are tried in order."""
        return [
            Route("/predict", self.predict, methods=["POST"]),
            Route("/models/{name}/predict", self.predict, methods=["POST"]),
            Route("/livez", self.livez),
            Route("/readyz", self.readyz),
            Route("/info", self.info),
            Route("/metrics", self.metrics),
        ]

    async def predict(self, request: Request) -> Response:
        """One request, whatever becomes of it."""
        started = time.perf_counter()
        request_id = encode.request_id(request.headers.get("x-request-id"))
        name = request.path_params.get("name") or next(iter(self.models))
        mode = ""
        outcome: Outcome = "cancelled"  # what stays when this task is cancelled
        try:
            mode, response = await self._answer(request, request_id, name, started)
            outcome = "ok"
            return response
        except Exception as raised:  # the ASGI edge: nothing but an answer leaves from here
            error = _as_ours(raised, request_id)
            outcome = error.outcome
            status, headers, body = encode.problem(error, request_id)
            return Response(body, status, headers)
        finally:
            self._record(name, mode, outcome, time.perf_counter() - started, request_id)

    async def _answer(
        self, request: Request, request_id: str, name: str, started: float
    ) -> tuple[str, Response]:
        model = self.models.get(name)
        if model is None:
            raise UnknownModel(f"no model {name!r}; served: {', '.join(self.models)}")
        self.board.require_ready(name)
        deadline = time.monotonic() + self._timeout_s(request)
        admission = self.admissions[name]
        with ExitStack() as admitted:
            admitted.enter_context(admission.request())
            body = await read(request, self.settings.server, deadline)
            admitted.enter_context(WhileConnected(request.receive))
            decoded = await self._decode(body, model)
            admitted.enter_context(admission.whole(len(decoded.samples)))
            preprocess_s = time.perf_counter() - started
            if time.monotonic() >= deadline:
                raise DeadlineExceeded("the deadline passed before the samples were ready to run")
            samples = [Sample(inputs, deadline) for inputs in decoded.samples]
            replies = await self.client.run(name, samples)
        for reply in replies:
            metrics.record_reply(name, reply)
        predictions = [model.postprocess(reply.outputs) for reply in replies]
        headers = encode.success_headers(request_id, replies, preprocess_s)
        content = encode.success(model, predictions, decoded.is_list)
        return replies[0].mode, Response(content, 200, headers)

    def _timeout_s(self, request: Request) -> float:
        asked = request.headers.get("x-request-timeout")
        if asked is None:
            return self.settings.server.request_timeout_s
        try:
            timeout_s = float(asked)
        except ValueError:
            timeout_s = 0.0
        if not 0 < timeout_s < float("inf"):
            raise InvalidInput(f"X-Request-Timeout: {asked!r}; expected seconds, above 0")
        return timeout_s

    async def _decode(self, body: Body, model: ServedModel) -> Decoded:
        limits = self.settings.server
        if is_cheap(body, model):
            return decode(body, model, limits)
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self.pool, decode, body, model, limits)

    def _record(
        self, name: str, mode: str, outcome: Outcome, seconds: float, request_id: str
    ) -> None:
        if name not in self.models:
            name = "unknown"  # a client's text must not become a label
        else:
            mode = mode or self.board.mode(name)
        self.requests.record(name, mode, outcome, seconds, request_id)

    async def livez(self, _: Request) -> Response:
        """200 from the first second on: the process runs."""
        return Response("ok", media_type="text/plain")

    async def readyz(self, _: Request) -> Response:
        """200 when every model takes requests, else 503 with how far each is."""
        status = 200 if self.board.ready else 503
        return _json(self.board.readiness(), status)

    async def info(self, _: Request) -> Response:
        """What is served, how, and what proves it."""
        return _json(self.board.info())

    async def metrics(self, request: Request) -> Response:
        """All metrics of all processes, for Prometheus."""
        self.requests.publish()
        accept = request.headers.get("accept", "")
        loop = asyncio.get_running_loop()
        text, media_type = await loop.run_in_executor(self.pool, self.requests.exposition, accept)
        return Response(text, headers={"Content-Type": media_type})


async def problem(request: Request, raised: Exception) -> Response:
    """What the routes beside /predict raise."""
    assert isinstance(raised, GearshiftError), "registered for GearshiftError alone"
    request_id = encode.request_id(request.headers.get("x-request-id"))
    status, headers, body = encode.problem(raised, request_id)
    return Response(body, status, headers)


async def http_problem(request: Request, raised: Exception) -> Response:
    """What Starlette refuses itself (no such path, no such method), as problem+json too."""
    assert isinstance(raised, HTTPException), "registered for HTTPException alone"
    request_id = encode.request_id(request.headers.get("x-request-id"))
    status, headers, body = encode.http_problem(raised.status_code, raised.detail, request_id)
    return Response(body, status, {**(raised.headers or {}), **headers})


def _json(body: object, status: int = 200) -> Response:
    return Response(orjson.dumps(body), status, media_type="application/json")


def _as_ours(raised: Exception, request_id: str) -> GearshiftError:
    if isinstance(raised, GearshiftError):
        return raised
    log.error("unexpected", exc_info=raised, extra={"request_id": request_id})
    return InferenceFailed(UNEXPECTED)
