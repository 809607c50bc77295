"""The short way to `/predict`, past FastAPI's six middlewares and two routers.

They take a tenth of the time of a small request, and none is of use to a handler that answers its
own errors. Everything else goes the long way. Knows no models.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

PREDICT = re.compile(r"/(?:models/([^/]+)/)?predict")

Predict = Callable[[Request], Awaitable[Response]]


def shorten(app: FastAPI, predict: Predict) -> None:
    """Let `app` answer with `predict` before anything else is tried. Its routes must be complete.

    What was added with `add_middleware` guards the short way too. Where OpenTelemetry instruments
    the application it wraps what FastAPI builds, so that everything has to go the long way.
    """
    if getattr(app, "_is_instrumented_by_opentelemetry", False):
        return
    guards, app.user_middleware = (
        app.user_middleware,
        [],
    )  # around both ways, so not in the long one
    front: ASGIApp = Front(predict, app.build_middleware_stack())
    for middleware, args, kwargs in reversed(guards):
        front = middleware(front, *args, **kwargs)
    app.middleware_stack = front


class Front:
    """Tells what goes the short way: a POST to a path of `predict`."""

    def __init__(self, predict: Predict, others: ASGIApp) -> None:
        self._predict = predict
        self._others = others

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_post = scope["type"] == "http" and scope["method"] == "POST"
        if not is_post or not (match := PREDICT.fullmatch(scope["path"])):
            await self._others(scope, receive, send)
            return
        scope["path_params"] = {"name": match[1]}
        response = await self._predict(Request(scope, receive, send))
        await response(scope, receive, send)
