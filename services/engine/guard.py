"""Access to the engine: only programs that have the home's secret, and no web pages. Checked before routing."""

from __future__ import annotations

from collections.abc import Sequence

from starlette.types import ASGIApp, Receive, Scope, Send

from contracts.errors import MillraceError, OriginRefused, Unauthorized, UnsupportedMediaType
from runtime.engine_key import is_authorized
from services.http import reply_error

OPEN = ("GET", "/health")
"""The one route that is open to everybody: whether the engine serves."""
_POLICY_VIOLATION = 1008

Headers = Sequence[tuple[bytes, bytes]]


class Guard:
    """See the module. `key`: the home's secret."""

    def __init__(self, app: ASGIApp, key: str) -> None:
        self._app = app
        self._key = key

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it without reading its body."""
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": _POLICY_VIOLATION})
            return
        if scope["type"] == "http":
            refusal = refuse(scope["method"], scope["path"], scope["headers"], self._key)
            if refusal is not None:
                await reply_error(refusal)(scope, receive, send)
                return
        await self._app(scope, receive, send)


def refuse(method: str, path: str, headers: Headers, key: str) -> MillraceError | None:
    """Why a request is refused; None if it is accepted. Header names are in lower case, as in ASGI."""
    if _values(headers, b"origin"):
        return OriginRefused(
            "web pages may not use the engine; send the request from a program, without an Origin header"
        )
    if (method, path) == OPEN:
        return None
    given = _values(headers, b"authorization")
    if len(given) != 1 or not is_authorized(given[0], key):
        return Unauthorized(
            "send the engine's key as `Authorization: Bearer ...`: it is in engine.key of the home, or in MILLRACE_ENGINE_KEY"
        )
    kinds = [value.split(b";")[0].strip().lower() for value in _values(headers, b"content-type")]
    lengths = [length.strip() for length in _values(headers, b"content-length")]
    has_body = _values(headers, b"transfer-encoding") or any(length != b"0" for length in lengths)
    if kinds != [b"application/json"] and (kinds or has_body):
        return UnsupportedMediaType("a body must be JSON: send it with `content-type: application/json`")
    return None


def _values(headers: Headers, name: bytes) -> list[bytes]:
    return [value for key, value in headers if key == name]
