"""Sessions in URLs: `/sessions/{id}/v1/chat/completions` is `/v1/chat/completions` with the header `x-millrace-session: {id}`.

In: a request. Out: the same request for the plain route, which `services.http.find_caller` checks. Waits for: nothing.
"""

from __future__ import annotations

from urllib.parse import unquote

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from services.http import SESSION_HEADER, URL_SESSION

PREFIX = "/sessions/"
_SERVED = ("v1/chat/completions", "v1/completions", "v1/responses", "v1/messages", "v1/models", "tokenize")
"""Under a session: what an agent calls. Sessions are made and ended by the plain routes."""


class SessionUrls:
    """See the module. What is not such a URL passes through."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on."""
        if scope["type"] == "http" and scope["path"].startswith(PREFIX):
            scope = _plain(scope)
        await self._app(scope, receive, send)


def _plain(scope: Scope) -> Scope:
    # An id may have an encoded slash, so the path is cut before it is decoded.
    raw = (scope.get("raw_path") or scope["path"].encode()).decode("latin-1")
    name, _, rest = raw.removeprefix(PREFIX).partition("/")
    if not any(rest == route or rest.startswith(f"{route}/") for route in _SERVED):
        return scope
    session, headers = unquote(name), scope["headers"]
    if SESSION_HEADER not in Headers(scope=scope):
        headers = [*headers, (SESSION_HEADER.encode(), session.encode())]
    path = f"/{rest}"
    return {
        **scope,
        "path": unquote(path),
        "raw_path": path.encode("latin-1"),
        "headers": headers,
        URL_SESSION: session,
    }
