"""Every error a client can meet. Each class owns its status, its title and how it is counted.

    GearshiftError
    ├── InvalidInput          422  not decodable, wrong shape, dtype or range
    ├── UnsupportedMedia      415  a content type no decoder takes
    ├── Unauthorized          401  no key, or a wrong one
    ├── UnknownModel          404
    ├── ClientTooSlow         408  its body took too long
    ├── ModeUnavailable       409  a mode that the server was not started for
    ├── PayloadTooLarge       413  body, list, or decoded size
    ├── Overloaded            429  queue full
    ├── Unavailable           503
    │   ├── NotReady               still loading or warming up
    │   ├── ModelFailed            could not be loaded
    │   └── ShuttingDown
    ├── DeadlineExceeded      504  the request's own deadline
    ├── ClientGone            499  nobody is left to answer
    └── InferenceFailed       500  fixed text; the trace is in the log only

Knows nothing of HTTP libraries: `api/encode.py` turns these into problem+json (RFC 9457).
"""

from __future__ import annotations

from typing import ClassVar, Literal, get_args

Outcome = Literal["ok", "invalid", "overloaded", "timeout", "failed", "cancelled"]
OUTCOMES: tuple[Outcome, ...] = get_args(Outcome)


class GearshiftError(Exception):
    """Base of all. `detail` is for the client; `retry_after_s` becomes Retry-After (seconds)."""

    status: ClassVar[int] = 500
    title: ClassVar[str] = "Internal error"
    outcome: ClassVar[Outcome] = "failed"

    def __init__(self, detail: str, retry_after_s: float | None = None) -> None:
        super().__init__(detail)
        self.detail = detail
        self.retry_after_s = retry_after_s


class InvalidInput(GearshiftError):
    """The input cannot be used: `detail` names the field and what was expected."""

    status, title, outcome = 422, "Invalid input", "invalid"


class UnsupportedMedia(GearshiftError):
    """The content type is none that this model takes: `detail` lists those it does."""

    status, title, outcome = 415, "Unsupported media type", "invalid"


class Unauthorized(GearshiftError):
    """The server has a key, and this request does not bring it."""

    status, title, outcome = 401, "Unauthorized", "invalid"


class UnknownModel(GearshiftError):
    """No model of that name is served: `detail` lists those that are."""

    status, title, outcome = 404, "Unknown model", "invalid"


class ClientTooSlow(GearshiftError):
    """The body did not come in time: `detail` names the limit."""

    status, title, outcome = 408, "Request timeout", "timeout"


class ModeUnavailable(GearshiftError):
    """The server cannot shift to that mode: `detail` says what would let it."""

    status, title, outcome = 409, "Mode unavailable", "invalid"


class PayloadTooLarge(GearshiftError):
    """The body, the list, or what it would decode to, is over the limit: `detail` names it."""

    status, title, outcome = 413, "Payload too large", "invalid"


class Overloaded(GearshiftError):
    """The queue is full."""

    status, title, outcome = 429, "Overloaded", "overloaded"


class Unavailable(GearshiftError):
    """The server is there, this model is not (yet, or any more)."""

    status, title = 503, "Unavailable"
    outcome: ClassVar[Outcome] = "failed"


class NotReady(Unavailable):
    """The model is still loading or warming up."""

    title, outcome = "Not ready", "overloaded"


class ModelFailed(Unavailable):
    """The model could not be loaded and will not come up by itself."""

    title = "Model failed"


class ShuttingDown(Unavailable):
    """The server takes no new requests."""

    title, outcome = "Shutting down", "overloaded"


class DeadlineExceeded(GearshiftError):
    """The request's own deadline passed, wherever it was by then."""

    status, title, outcome = 504, "Deadline exceeded", "timeout"


class ClientGone(GearshiftError):
    """The client closed the connection before its answer was there."""

    status, title, outcome = 499, "Client closed request", "cancelled"


class InferenceFailed(GearshiftError):
    """The model raised, also when it was run eager and alone."""

    title = "Inference failed"


def by_name(name: str) -> type[GearshiftError]:
    """The class an error frame names. Raises KeyError for a name outside the tree."""
    return _BY_NAME[name]


def _tree(cls: type[GearshiftError]) -> list[type[GearshiftError]]:
    return [cls, *(sub for child in cls.__subclasses__() for sub in _tree(child))]


_BY_NAME = {cls.__name__: cls for cls in _tree(GearshiftError)}
