"""What every HTTP service of ours does alike: error objects, keys, JSON.

A service is a FastAPI application; each failure leaves it as OpenAI's error object, so that the unmodified SDK raises
the right exception.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from functools import wraps
from typing import Annotated, Any, TypeVar

import msgspec
import structlog
from fastapi import FastAPI, Request, Response, Security
from fastapi.exceptions import RequestValidationError
from fastapi.security import SecurityScopes
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from contracts.errors import InvalidRequest, MillraceError, NotFound, Unauthorized, Unavailable
from contracts.keys import Caller, check_key
from contracts.keys import Scope as KeyScope
from runtime.database import Database
from services.rights import scopes_of

MAX_BODY_BYTES = 8 * 2**20
_KEY_SECONDS = 2.0
_MAX_KEYS = 4096
_SERVER_ERROR = 500
CLIENT_LEFT = 499
"""Nobody reads it; nginx's number for a client that left, in our figures and logs."""

ShapeType = TypeVar("ShapeType")


class BodyTooLarge(InvalidRequest):
    """More bytes than any service reads."""

    status = 413
    code = "body_too_large"


class _LimitedBody:
    """Ends the reading of a body that is too large; FastAPI's own limit answers with plain text."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        num_bytes = 0

        async def limited() -> Message:
            nonlocal num_bytes
            message = await receive()
            num_bytes += len(message.get("body", b""))
            if num_bytes > MAX_BODY_BYTES:
                raise BodyTooLarge(f"a body takes up to {MAX_BODY_BYTES // 2**20} MiB; send less")
            return message

        await self._app(scope, limited, send)


def make_service(title: str, lifespan: Callable[[FastAPI], AbstractAsyncContextManager[None]]) -> FastAPI:
    """An application without pages of its own, whose failures are error objects."""
    service = FastAPI(title=title, lifespan=lifespan, openapi_url=None)
    service.add_middleware(_LimitedBody)

    @service.exception_handler(MillraceError)
    async def expected(_request: Request, error: MillraceError) -> Response:
        return reply_error(error)

    @service.exception_handler(RequestValidationError)
    async def invalid(_request: Request, error: RequestValidationError) -> Response:
        return reply_error(refusal_of(error))

    @service.exception_handler(HTTPException)
    async def refused(request: Request, error: HTTPException) -> Response:
        message = f"{request.method} {request.url.path}: {error.detail}"
        body = {
            "error": {"message": message, "type": "invalid_request_error", "param": None, "code": "invalid_request"}
        }
        return reply(body, error.status_code)

    @service.exception_handler(ClientDisconnect)
    async def left(_request: Request, _error: ClientDisconnect) -> Response:
        return Response(status_code=CLIENT_LEFT)

    @service.exception_handler(Exception)
    async def unexpected(_request: Request, _error: Exception) -> Response:
        return reply_error(MillraceError("an unexpected error; the log of this process has its traceback"))

    return service


def reply(content: object, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """A JSON response."""
    return Response(msgspec.json.encode(content), status, headers, media_type="application/json")


def refusal_of(error: RequestValidationError) -> InvalidRequest:
    """What FastAPI refused; a path with a part that nothing can have is a path to nothing."""
    first = error.errors()[0]
    kind, *rest = first["loc"]
    where = ".".join(str(part) for part in rest)
    refusal = NotFound if kind == "path" else InvalidRequest
    return refusal(f"{where}: {first['msg']}", param=where or None)


def reply_error(error: MillraceError) -> Response:
    """An expected failure, in OpenAI's shape; what can be tried again says when."""
    headers = {"retry-after": "1"} if error.status > _SERVER_ERROR else {}
    return reply(error.as_openai(), error.status, headers | dict(error.headers))


def read_json(shape: type[ShapeType], body: bytes) -> ShapeType:
    """Read a JSON body.

    Raises:
        InvalidRequest: not JSON, a missing field or one of the wrong type; `param` names it.
    """
    try:
        return msgspec.json.decode(body, type=shape)
    except msgspec.ValidationError as error:
        raise invalid_shape(error) from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"the body is not valid JSON: {error}") from error
    except RecursionError as error:
        raise InvalidRequest("the body is nested too deep") from error


def read_shape(shape: type[ShapeType], content: Any) -> ShapeType:
    """The same for content that is already decoded."""
    try:
        return msgspec.convert(content, shape)
    except msgspec.ValidationError as error:
        raise invalid_shape(error) from error


def invalid_shape(error: msgspec.ValidationError) -> InvalidRequest:
    """What is wrong, and in which field."""
    where = str(error).rpartition("`$.")[2].rstrip("`") if "`$." in str(error) else None
    return InvalidRequest(str(error), param=where)


class KeyRing:
    """Knows who calls. A key is looked up once in two seconds, so a revoked one works that much longer, an expired one not at all.

    While the database is away, keys that worked when they were last looked up go on working, until they expire.
    """

    def __init__(
        self, database: Database, keep_seconds: float = _KEY_SECONDS, clock: Callable[[], float] = time.time
    ) -> None:
        self._database = database
        self._keep = keep_seconds
        self._clock = clock
        self._known: dict[str, tuple[float, Caller]] = {}

    async def caller(self, authorization: str) -> Caller:
        """Who is behind an `Authorization` header.

        Raises:
            Unauthorized: no key, or one that we do not know, or that was revoked or has expired.
            Unavailable: the database is away, and this key was not seen before.
        """
        until, caller = self._known.get(authorization, (0.0, None))
        asked_at = time.monotonic()  # not when the answer came: it may have been a while, and the key revoked in it
        if caller is None or until < asked_at:
            try:
                caller = await asyncio.to_thread(self._look_up, authorization)
            except Unauthorized:
                self._known.pop(authorization, None)  # or it would be served again once the database is away
                raise
            except Unavailable:
                if caller is None:
                    raise
                # Whoever was known a moment ago is served: apps do not wait for our database.
            if len(self._known) >= _MAX_KEYS:
                self._known.clear()
            self._known[authorization] = (asked_at + self._keep, caller)
        if caller.expires_at is not None and caller.expires_at <= self._clock():
            raise Unauthorized(f"the key {caller.key_id} has expired; make another with: millrace keys api new")
        return caller

    def _look_up(self, authorization: str) -> Caller:
        with self._database.snapshot() as connection:
            return check_key(connection, authorization, self._clock())


async def find_caller(request: Request, scope: KeyScope) -> Caller:
    """Who makes this request, which needs this scope; see `KeyRing.caller`. Raises MissingScope too."""
    keys: KeyRing = request.app.state.keys
    caller = await keys.caller(request.headers.get("authorization", ""))
    structlog.contextvars.bind_contextvars(key=caller.key_id, tenant=caller.tenant)
    caller.require(scope)
    return caller


async def _find_caller(request: Request, needed: SecurityScopes) -> Caller:
    [scope] = needed.scopes
    return await find_caller(request, scope)  # type: ignore[arg-type] # one of the aliases below


InferenceCaller = Annotated[Caller, Security(_find_caller, scopes=["inference"])]
"""The caller of a request that asks for answers, for services that keep their `KeyRing` in `state.keys`."""
FeedbackCaller = Annotated[Caller, Security(_find_caller, scopes=["feedback"])]
OperatorReader = Annotated[Caller, Security(_find_caller, scopes=["operator:read"])]
OperatorWriter = Annotated[Caller, Security(_find_caller, scopes=["operator:write"])]


def with_caller(handle: Callable[[Request, Caller], Awaitable[Response]]) -> Callable[[Request], Awaitable[Response]]:
    """A route for `add_route`, without FastAPI's dependencies and their cost: the scope is that of the `caller` parameter."""
    [[scope]] = scopes_of(handle)

    @wraps(handle)
    async def handle_known(request: Request) -> Response:
        return await handle(request, await find_caller(request, scope))  # type: ignore[arg-type] # see above

    return handle_known
