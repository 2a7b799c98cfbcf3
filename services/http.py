"""What all HTTP services share: error objects, keys, JSON, server-sent events.

A service is a FastAPI application. Every failure leaves it as OpenAI's error object, so the unmodified SDK raises the right
exception.
"""

from __future__ import annotations

import asyncio
import base64
import re
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from functools import wraps
from typing import Annotated, Any, TypeVar, get_args, get_origin, get_type_hints

import msgspec
import structlog
from fastapi import FastAPI, Request, Response, Security
from fastapi import params as markers
from fastapi.exceptions import RequestValidationError
from fastapi.security import SecurityScopes
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from contracts.agent_sessions import caller_of_key, in_session, may_be_made
from contracts.errors import (
    Forbidden,
    InvalidRequest,
    MillraceError,
    NotFound,
    OtherSession,
    SessionOver,
    Unauthorized,
    Unavailable,
)
from contracts.keys import Caller
from contracts.keys import Scope as KeyScope
from runtime.database import Database

MAX_BODY_BYTES = 4 * 2**20
"""What is decoded in one go holds the event loop: this much takes up to 20 ms, whatever is in it."""
_SHORT = 2**14
"""Bytes of a body that is read faster than a thread is asked to do it."""
_KEY_SECONDS = 2.0
_MAX_KEYS = 4096
_SERVER_ERROR = 500
_MISSING_FIELD = re.compile(r"missing required field `(\w+)`")
_SOME_VALUE = re.compile(r"got `(\w+)` - at `\$\.(\w+)\[\.\.\.\]`$")
_KINDS: dict[str, type] = {
    "bool": bool, "int": int, "float": float, "str": str, "null": type(None), "array": list, "object": dict,
}  # fmt: skip
"""The names that msgspec has for kinds of JSON, in its errors."""
CLIENT_LEFT = 499
"""The status of a request whose client left, for metrics and logs only; nginx's number for it."""
SESSION_HEADER = "x-millrace-session"
URL_SESSION = "millrace.session"
"""In the scope of a request: the session that its URL names."""
_MAX_IN_URL = 128
_MAX_KEY_SHOWN = 64

ShapeType = TypeVar("ShapeType")
ReadType = TypeVar("ReadType")


class BodyTooLarge(InvalidRequest):
    """The body has more bytes than a service reads."""

    status = 413
    code = "body_too_large"


class _LimitedBody:
    """Stops reading a body that is too large; FastAPI's own limit would answer with plain text."""

    def __init__(self, app: ASGIApp, most_bytes: int) -> None:
        self._app, self._most_bytes = app, most_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        num_bytes = 0

        async def limited() -> Message:
            nonlocal num_bytes
            message = await receive()
            num_bytes += len(message.get("body", b""))
            if num_bytes > self._most_bytes:
                raise BodyTooLarge(f"a request body may have up to {self._most_bytes // 2**20} MiB; send less")
            return message

        await self._app(scope, limited, send)


def make_service(
    title: str,
    lifespan: Callable[[FastAPI], AbstractAsyncContextManager[None]],
    *,
    most_body_bytes: int = MAX_BODY_BYTES,
) -> FastAPI:
    """An application without routes, whose failures are error objects."""
    service = FastAPI(title=title, lifespan=lifespan, openapi_url=None)
    service.add_middleware(_LimitedBody, most_bytes=most_body_bytes)

    @service.exception_handler(MillraceError)
    async def expected(_request: Request, error: MillraceError) -> Response:
        return reply_error(error)

    @service.exception_handler(RequestValidationError)
    async def invalid(_request: Request, error: RequestValidationError) -> Response:
        return reply_error(refusal_of(error))

    @service.exception_handler(HTTPException)
    async def refused(request: Request, error: HTTPException) -> Response:
        where = f"{request.method} {request.url.path}"
        if error.status_code == NotFound.status:
            return reply_error(NotFound(f"there is no {where}; /openapi.json lists every route"))
        return reply(InvalidRequest(f"{where}: {error.detail}").as_openai(), error.status_code)

    @service.exception_handler(ClientDisconnect)
    async def left(_request: Request, _error: ClientDisconnect) -> Response:
        return Response(status_code=CLIENT_LEFT)

    @service.exception_handler(Exception)
    async def unexpected(_request: Request, _error: Exception) -> Response:
        return reply_error(MillraceError("an unexpected error; see the traceback in the log of this process"))

    return service


def reply(content: object, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """A JSON response."""
    return Response(msgspec.json.encode(content), status, headers, media_type="application/json")


def event(content: object) -> bytes:
    """A server-sent event."""
    return b"data: " + msgspec.json.encode(content) + b"\n\n"


async def wait_for_disconnect(client: Request) -> None:
    """Return when the client has left. Reads what the client sends, so only one task may wait."""
    while (await client.receive())["type"] != "http.disconnect":
        pass


def refusal_of(error: RequestValidationError) -> InvalidRequest:
    """FastAPI's refusal as one of ours. A path parameter that nothing can have means that the path does not exist."""
    first = error.errors()[0]
    kind, *rest = first["loc"]
    where = ".".join(str(part) for part in rest)
    refusal = NotFound if kind == "path" else InvalidRequest
    return refusal(f"{where}: {first['msg']}", param=where or None)


def reply_error(error: MillraceError, content: object = None, status: int | None = None) -> Response:
    """An expected failure, with `retry-after` if a retry may help. `content`: in another shape than OpenAI's error object."""
    headers = {"retry-after": "1"} if error.status > _SERVER_ERROR else {}
    return reply(content or error.as_openai(), status or error.status, headers | dict(error.headers))


def read_json(shape: type[ShapeType], body: bytes) -> ShapeType:
    """Read a JSON body. Raises InvalidRequest: it is not JSON, or a field is missing or has the wrong type; `param` names the field."""
    try:
        return msgspec.json.decode(body, type=shape)
    except msgspec.ValidationError as error:
        raise invalid_shape(error, body) from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"the body is not valid JSON: {error}") from error
    except RecursionError as error:
        raise InvalidRequest("the body is nested too deep; send fewer levels") from error


async def off_loop(read: Callable[[bytes], ReadType], body: bytes) -> ReadType:
    """What `read` makes of a body; of a large one in a thread, so that other requests take turns with it."""
    return read(body) if len(body) <= _SHORT else await asyncio.to_thread(read, body)


def read_shape(shape: type[ShapeType], content: Any) -> ShapeType:
    """Like `read_json`, for content that is decoded already."""
    try:
        return msgspec.convert(content, shape)
    except msgspec.ValidationError as error:
        raise invalid_shape(error, content) from error


def invalid_shape(error: msgspec.ValidationError, content: Any) -> InvalidRequest:
    """The error for a value of the wrong shape; `param` is the path of the field. `content`: what was read, as JSON or decoded."""
    message = _with_key(str(error), content)
    where = [message.rpartition("`$.")[2].rstrip("`")] if "`$." in message else []
    missing = _MISSING_FIELD.findall(message)
    return InvalidRequest(message, param=".".join(where + missing) or None)


def _with_key(message: str, content: Any) -> str:
    """The message with the key of the wrong value, such as `metadata.run` for `metadata[...]`."""
    if (match := _SOME_VALUE.search(message)) is None:
        return message
    try:  # what follows the wrong value was never read: it may be no JSON, or name the field again
        pairs = (msgspec.json.decode(content) if isinstance(content, bytes) else content)[match[2]]
        key = next((key for key, value in pairs.items() if type(value) is _KINDS.get(match[1])), "...")
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, AttributeError, KeyError, TypeError):
        return message
    return message.replace(f"{match[2]}[...]", f"{match[2]}.{key[:_MAX_KEY_SHOWN]}")


class KeyRing:
    """Finds the caller of a request by its key.

    A key is looked up once in two seconds, so a revoked key, or that of an ended session, works that much longer; an expired one is
    refused at once. While the database is unreachable, keys that worked at their last look-up keep working until they expire.
    """

    def __init__(
        self, database: Database, keep_seconds: float = _KEY_SECONDS, clock: Callable[[], float] = time.time
    ) -> None:
        self._database, self._keep, self._clock = database, keep_seconds, clock
        self._known: dict[str, tuple[float, Caller]] = {}
        self._in_sessions: dict[tuple[Caller, str], tuple[float, Caller]] = {}

    async def caller(self, authorization: str) -> Caller:
        """The caller with this `Authorization` header.

        Raises Unauthorized: there is no key, or it is unknown, revoked or expired; SessionOver: it is the key of a session that was
        ended, or whose time is over; Unavailable: the database is unreachable, and this key was not seen before.
        """
        until, caller = self._known.get(authorization, (0.0, None))
        asked_at = time.monotonic()  # before the look-up: the key may be revoked while we wait for its answer
        if caller is None or until < asked_at:
            try:
                caller = await asyncio.to_thread(self._look_up, caller_of_key, authorization)
            except (Unauthorized, SessionOver):
                self._known.pop(authorization, None)  # or it would work again while the database is unreachable
                raise
            except Unavailable:
                if caller is None:
                    raise
                # Apps do not wait for our database: the caller was known a moment ago.
            if len(self._known) >= _MAX_KEYS:
                self._known.clear()
            self._known[authorization] = (asked_at + self._keep, caller)
        caller.check_time(self._clock())
        return caller

    async def caller_in(self, caller: Caller, session: str) -> Caller:
        """The caller with the task and budget of the session that a URL names, if it was made for the caller's tenant.

        Raises SessionOver: it was ended, or its time is over; Unavailable: the database is unreachable, and the session was not
        seen a moment ago.
        """
        if not may_be_made(session):
            return caller
        until, found = self._in_sessions.get((caller, session), (0.0, caller))
        asked_at = time.monotonic()
        if until < asked_at:
            found = await asyncio.to_thread(self._look_up, in_session, caller, session)
            if len(self._in_sessions) >= _MAX_KEYS:
                self._in_sessions.clear()
            self._in_sessions[caller, session] = (asked_at + self._keep, found)
        found.check_time(self._clock())
        return found

    def _look_up(self, find: Callable[..., Caller], *given: str | Caller) -> Caller:
        with self._database.snapshot() as connection:
            return find(connection, *given, self._clock())


def authorization_of(headers: Mapping[str, str]) -> str:
    """The `Authorization` header of a request. `x-api-key` (Anthropic) and HTTP Basic's password (Langfuse) count like a bearer's key.

    Raises Unauthorized: both are sent, with different keys.
    """
    given, key = _bearer(headers.get("authorization", "")), headers.get("x-api-key", "").strip()
    if not key:
        return given
    if given and given.partition(" ")[2].strip() != key:
        raise Unauthorized("`authorization` and `x-api-key` have different keys; send one of them")
    return f"Bearer {key}"


def _bearer(given: str) -> str:
    scheme, _, content = given.partition(" ")
    if scheme.lower() != "basic":
        return given
    try:
        return f"Bearer {base64.b64decode(content).decode().partition(':')[2]}"
    except ValueError:
        return given  # it is refused as any other that is no key


async def find_caller(request: Request, scope: KeyScope) -> Caller:
    """The caller of a request that needs this scope. Raises like `KeyRing.caller`, and MissingScope.

    A session that the URL names must be a name, and the session of the key and of the header, if they have one: InvalidRequest, OtherSession.
    """
    keys: KeyRing = request.app.state.keys
    caller = await keys.caller(authorization_of(request.headers))
    structlog.contextvars.bind_contextvars(key=caller.key_id, tenant=caller.tenant)
    caller.require(scope)
    named = request.scope.get(URL_SESSION)
    return caller if named is None else await _in_url(keys, caller, named, request.headers.get(SESSION_HEADER))


async def _in_url(keys: KeyRing, caller: Caller, named: str, said: str | None) -> Caller:
    if not (0 < len(named) <= _MAX_IN_URL and named.isascii() and named.isprintable()):
        takes = f"1 to {_MAX_IN_URL} printable ASCII characters; name others in metadata.session_id"
        raise InvalidRequest(f"the session of a URL has {takes}", param="session_id")
    if said != named:
        differ = f"the URL and {SESSION_HEADER} name different sessions; send one of them"
        raise InvalidRequest(differ, param=SESSION_HEADER)
    if caller.session not in {None, named}:
        raise OtherSession("this is the key of another session than the one in the URL", param="session_id")
    return caller if caller.session is not None else await keys.caller_in(caller, named)


async def _find_caller(request: Request, needed: SecurityScopes) -> Caller:
    first, *others = needed.scopes
    caller = await find_caller(request, first)  # type: ignore[arg-type] # of the aliases below
    for scope in others:
        caller.require(scope)  # type: ignore[arg-type]
    return caller


async def _find_app(request: Request, needed: SecurityScopes) -> Caller:
    caller = await _find_caller(request, needed)
    if caller.session is not None:
        why = "it makes, shows and ends no sessions, and shows no stored completions; use an app key at the plain URL"
        raise Forbidden(f"the key or URL of a session may only ask: {why}")
    return caller


InferenceCaller = Annotated[Caller, Security(_find_caller, scopes=["inference"])]
"""In a route's signature: its caller, who needs this scope. The application keeps its `KeyRing` in `state.keys`."""
AppCaller = Annotated[Caller, Security(_find_app, scopes=["inference"])]
"""The same without the keys and URLs of sessions: an agent must not see what others of its tenant do."""
AppHistoryCaller = Annotated[Caller, Security(_find_app, scopes=["inference", "feedback"])]
"""The same with both scopes: what became of an answer is told by signals too."""
FeedbackCaller = Annotated[Caller, Security(_find_caller, scopes=["feedback"])]
OperatorReader = Annotated[Caller, Security(_find_caller, scopes=["operator:read"])]
OperatorWriter = Annotated[Caller, Security(_find_caller, scopes=["operator:write"])]


def rights_of(handle: Callable[..., Any]) -> list[markers.Security]:
    """Each right that the signature of a route's function requires; empty if the route is open to everybody.

    A parameter `Annotated[..., Security(find, scopes=[...])]` is a right: the caller is looked up before the route runs, and must have
    these scopes; an empty list means any known caller.
    """
    hints = get_type_hints(handle, include_extras=True).values()
    marks = [mark for hint in hints if get_origin(hint) is Annotated for mark in get_args(hint)[1:]]
    return [mark for mark in marks if isinstance(mark, markers.Security)]


def scopes_of(handle: Callable[..., Any]) -> list[tuple[str, ...]]:
    """The scopes of each of these rights."""
    return [tuple(right.scopes or ()) for right in rights_of(handle)]


def with_caller(handle: Callable[[Request, Caller], Awaitable[Response]]) -> Callable[[Request], Awaitable[Response]]:
    """A route for `add_route`, without FastAPI's dependencies and their cost; its `caller` parameter is one of the aliases above."""
    [right] = rights_of(handle)
    find: Callable[[Request, SecurityScopes], Awaitable[Caller]] = right.dependency  # type: ignore[assignment] # one of ours
    needed = SecurityScopes(list(right.scopes or ()))

    @wraps(handle)
    async def handle_known(request: Request) -> Response:
        return await handle(request, await find(request, needed))

    return handle_known
