"""The admin routes: shift every model between the modes it has, without a restart.

There only where the server has an admin key, and behind it (`api.keys`).
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

import orjson
from pydantic import BaseModel, ConfigDict, ValidationError
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from server.api import encode
from server.api.disconnect import Interruptible
from server.api.health import Board
from server.api.read import read
from server.config import ServerSection
from server.errors import DeadlineExceeded, InvalidInput
from server.link.client import WorkerClient
from server.types import Mode


class Shift(BaseModel):
    """The body of `POST /admin/mode`."""

    model_config = ConfigDict(extra="forbid")

    mode: Mode


@dataclass(frozen=True, slots=True)
class Admin:
    """What the admin routes of one API process share."""

    section: ServerSection
    board: Board
    client: WorkerClient

    def routes(self) -> list[Route]:
        """Every admin route; none without an admin key."""
        if self.section.admin_key is None:
            return []
        return [Route("/admin/mode", self.mode, methods=["POST"])]

    async def mode(self, request: Request) -> Response:
        """Shift, and answer once it holds: the next request is served in that mode."""
        timeout_s = self.section.request_timeout_s
        deadline = time.monotonic() + timeout_s
        receive = request.receive
        with Interruptible(receive) as work:
            body = await read(receive, request.headers, self.section, deadline, work)
        try:
            wanted = Shift.model_validate_json(body.data).mode
        except ValidationError:
            raise InvalidInput('expected {"mode": "eager"} or {"mode": "compiled"}') from None
        self.board.require_mode(wanted)
        self.client.shift(wanted)
        try:
            async with asyncio.timeout(timeout_s):
                await self.board.shifted(wanted)
        except TimeoutError:
            raise DeadlineExceeded(f"the worker did not say that it runs {wanted}") from None
        return Response(orjson.dumps({"mode": wanted}), media_type=encode.JSON)
