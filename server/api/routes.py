"""The way of a request through the API process, and the routes around it.

    admission -> read -> decode, preprocess -> worker -> postprocess, encode

`/predict` is plain ASGI, as the objects of FastAPI and Starlette cost a small request more than
they give it; the others are raw Starlette routes. Every request ends in exactly one outcome,
counted here, and every error becomes problem+json here.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import orjson
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from models.base import ServedModel
from server import metrics
from server.api import encode
from server.api.admission import Admission
from server.api.decode import Body, Decoded, decode, is_cheap
from server.api.disconnect import Interruptible
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
        """Every route that is ours."""
        predict = Predict(self)
        return [
            Route("/predict", predict, methods=["POST"]),
            Route("/models/{name}/predict", predict, methods=["POST"]),
            Route("/livez", self.livez),
            Route("/readyz", self.readyz),
            Route("/info", self.info),
            Route("/metrics", self.metrics),
        ]

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


class Predict:
    """The ASGI application of both paths that predict."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._first = next(iter(api.models))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request, whatever becomes of it."""
        started = time.perf_counter()
        # Backwards, so that the first of two of a name counts.
        headers = {
            key.decode("latin-1"): value.decode("latin-1")
            for key, value in reversed(scope["headers"])
        }
        request_id = encode.request_id(headers.get("x-request-id"))
        name = scope["path_params"].get("name") or self._first
        mode = ""
        outcome: Outcome = "cancelled"  # what stays when this task is cancelled
        status = 200
        try:
            mode, fields, body = await self._answer(name, headers, receive, request_id, started)
            outcome = "ok"
        except Exception as raised:  # the ASGI edge: nothing but an answer leaves from here
            error = _as_ours(raised, request_id)
            outcome = error.outcome
            status, fields, body = encode.problem(error, request_id)
        finally:
            self._record(name, mode, outcome, time.perf_counter() - started, request_id)
        raw = [(key.encode(), value.encode("latin-1")) for key, value in fields.items()]
        raw.append((b"content-length", b"%d" % len(body)))
        await send({"type": "http.response.start", "status": status, "headers": raw})
        await send({"type": "http.response.body", "body": body})

    async def _answer(
        self,
        name: str,
        headers: Mapping[str, str],
        receive: Receive,
        request_id: str,
        started: float,
    ) -> tuple[str, dict[str, str], bytes]:
        api = self._api
        model = api.models.get(name)
        if model is None:
            raise UnknownModel(f"no model {name!r}; served: {', '.join(api.models)}")
        api.board.require_ready(name)
        limits = api.settings.server
        deadline = time.monotonic() + _timeout_s(headers, limits.request_timeout_s)
        with api.admissions[name].request() as admitted, Interruptible(receive) as work:
            body = await read(receive, headers, limits, deadline, work)
            work.interrupt_when_gone()
            decoded = await self._decode(body, model)
            admitted.with_samples(len(decoded.samples))
            preprocess_s = time.perf_counter() - started
            if time.monotonic() >= deadline:
                raise DeadlineExceeded("the deadline passed before the samples were ready to run")
            samples = [Sample(inputs, deadline) for inputs in decoded.samples]
            replies = await api.client.run(name, samples)
        for reply in replies:
            metrics.record_reply(name, reply)
        predictions = [model.postprocess(reply.outputs) for reply in replies]
        fields = encode.success_headers(request_id, replies, preprocess_s)
        content = encode.success(model, predictions, decoded.is_list)
        return replies[0].mode, fields, content

    async def _decode(self, body: Body, model: ServedModel) -> Decoded:
        limits = self._api.settings.server
        if is_cheap(body, model):
            return decode(body, model, limits)
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._api.pool, decode, body, model, limits)

    def _record(
        self, name: str, mode: str, outcome: Outcome, seconds: float, request_id: str
    ) -> None:
        if name not in self._api.models:
            name = "unknown"  # a client's text must not become a label
        else:
            mode = mode or self._api.board.mode(name)
        self._api.requests.record(name, mode, outcome, seconds, request_id)


def _timeout_s(headers: Mapping[str, str], default_s: float) -> float:
    asked = headers.get("x-request-timeout")
    if asked is None:
        return default_s
    try:
        timeout_s = float(asked)
    except ValueError:
        timeout_s = 0.0
    if not 0 < timeout_s < float("inf"):
        raise InvalidInput(f"X-Request-Timeout: {asked!r}; expected seconds, above 0")
    return timeout_s


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
