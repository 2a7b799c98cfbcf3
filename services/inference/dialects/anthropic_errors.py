"""Failures in the shape that Anthropic's SDKs read. `param` and `code` stand beside its own fields. Pure, but for the wrapper of routes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import wraps
from typing import Any

from fastapi import Request, Response

from contracts.errors import MillraceError, Overloaded
from services.http import reply_error
from services.inference.dialects.anthropic_requests import renamed

_KINDS = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    504: "timeout_error",
}
_NO_THREADS = {"error_code": "thread_unsupported_request", "unsupported": ["thread"]}
"""By this the tool runners of the SDKs send whole histories, instead of asking the server to hold the conversation."""
_SERVER_ERROR = 500
_OVERLOADED = 529
"""Anthropic's status for a service that has too much to do, whoever asks."""


def error_of(error: MillraceError, request_id: str | None = None) -> dict[str, Any]:
    """The error object."""
    if isinstance(error, Overloaded):
        kind = "overloaded_error"
    else:
        kind = _KINDS.get(error.status, "invalid_request_error" if error.status < _SERVER_ERROR else "api_error")
    param = None if error.param is None else renamed(error.param)
    described: dict[str, Any] = {"type": kind, "message": renamed(error.message), "param": param, "code": error.code}
    if param == "thread":
        described["details"] = _NO_THREADS
    return {"type": "error", "error": described, "request_id": request_id}


def in_anthropics_shape(handle: Callable[[Request], Awaitable[Response]]) -> Callable[[Request], Awaitable[Response]]:
    """A route whose failures are Anthropic's error object."""

    @wraps(handle)
    async def shaped(request: Request) -> Response:
        try:
            return await handle(request)
        except MillraceError as error:
            return reply_error(error, error_of(error), _OVERLOADED if isinstance(error, Overloaded) else error.status)

    return shaped
