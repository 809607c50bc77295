"""The short way to `/predict`, past FastAPI's six middlewares and two routers.

They take a tenth of the time of a small request, and none is of use to a handler that answers its
own errors. Everything else goes the long way. Knows no models.
"""

from __future__ import annotations

import re

from starlette.types import ASGIApp, Receive, Scope, Send

PREDICT = re.compile(r"/(?:models/([^/]+)/)?predict")


class Front:
    """Tells what goes the short way: a POST to a path of `predict`."""

    def __init__(self, predict: ASGIApp, others: ASGIApp) -> None:
        self._predict = predict
        self._others = others

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_post = scope["type"] == "http" and scope["method"] == "POST"
        if is_post and (match := PREDICT.fullmatch(scope["path"])):
            scope["path_params"] = {"name": match[1]}
            await self._predict(scope, receive, send)
        else:
            await self._others(scope, receive, send)
