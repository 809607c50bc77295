"""Who may ask: a key for everything but the probes, another one for the admin routes.

In front of every route, so that a route that is added later needs a key too. Knows no models.
"""

from __future__ import annotations

import hmac

from pydantic import SecretStr
from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from server.api import encode
from server.config import ServerSection
from server.errors import Unauthorized

PROBES = ("/livez", "/readyz")
ADMIN = "/admin/"


class Keys:
    """ASGI middleware: 401 for a request without the key that its path needs."""

    def __init__(self, app: ASGIApp, section: ServerSection) -> None:
        self._app = app
        self._key = section.api_key
        self._admin_key = section.admin_key

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        needed = self._needed(scope["path"]) if scope["type"] == "http" else None
        if needed is None or _brings(headers := Headers(scope=scope), needed):
            await self._app(scope, receive, send)
            return
        error = Unauthorized("this needs the server's key: Authorization: Bearer KEY")
        request_id = encode.request_id(headers.get("x-request-id"))
        status, fields, body = encode.problem(error, request_id)
        refusal = Response(body, status, {**fields, "WWW-Authenticate": "Bearer"})
        await refusal(scope, receive, send)

    def _needed(self, path: str) -> SecretStr | None:
        if path in PROBES:
            return None
        is_admin = path.startswith(ADMIN) and self._admin_key is not None
        return self._admin_key if is_admin else self._key


def _brings(headers: Headers, key: SecretStr) -> bool:
    scheme, _, credentials = headers.get("authorization", "").partition(" ")
    # Both as bytes: the comparison in constant time takes no other than ASCII texts.
    same = hmac.compare_digest(credentials.strip().encode(), key.get_secret_value().encode())
    return same and scheme.lower() == "bearer"
