"""Sessions with a key and a URL of their own: the routes that make, show and end them, and requests at the URL of one.

`/sessions/{id}/v1/chat/completions` is `/v1/chat/completions` with the header `x-millrace-session: {id}`, which
`services.http.find_caller` checks.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote

import msgspec
from fastapi import FastAPI, Request, Response
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from contracts.agent_sessions import AgentSession, SessionBudget, end_session, get_session, make_session
from contracts.errors import InvalidRequest, field_error
from contracts.keys import Caller
from contracts.tasks import Task
from runtime.database import Database
from services.http import SESSION_HEADER, URL_SESSION, AppCaller, read_json, reply
from services.inference.bounds import check_group
from services.limits import Limit
from services.openapi import takes

PREFIX = "/sessions/"
_SESSIONS = "/v1/sessions"
_SERVED = ("v1/chat/completions", "v1/completions", "v1/responses", "v1/messages", "v1/models", "tokenize")
"""Under a session: what an agent calls. Sessions are made and ended by the plain routes."""
_MOST = 2**53
_CREATED = 201
SESSION_NOTES: Mapping[str, str] = {
    "task": "the task of all its calls; without it the first task",
    "group": "1 to 64 characters: sessions of one group try the same thing, and training compares them with each other",
    "budget": "`calls`, `tokens` (of answers) and `seconds` that it may use in all; each may be left out",
}
SESSION_EXAMPLE: Mapping[str, Any] = {"budget": {"calls": 50, "tokens": 20_000, "seconds": 3600}}


class SessionRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of `POST /v1/sessions`."""

    task: str | None = None
    group: str | None = None
    budget: SessionBudget | None = None


def add_session_routes(
    service: FastAPI, database: Database, tasks: Mapping[str, Task], limit: Limit, longest: float
) -> None:
    """Add the routes of sessions. `longest`: how long one lives without a budget of seconds."""

    def make(caller: Caller, task: str, budget: SessionBudget, group: str | None) -> tuple[AgentSession, str]:
        with database.transaction() as connection:
            return make_session(connection, caller, task, budget, now=time.time(), longest=longest, group=group)

    def find(caller: Caller, session_id: str) -> AgentSession:
        with database.snapshot() as connection:
            return get_session(connection, caller.tenant, session_id)

    def end(caller: Caller, session_id: str) -> AgentSession:
        with database.transaction() as connection:
            return end_session(connection, caller.tenant, session_id, time.time())

    @service.post(_SESSIONS, status_code=_CREATED)
    @takes(SessionRequest, notes=SESSION_NOTES, example=SESSION_EXAMPLE)
    async def create_session(request: Request, caller: AppCaller) -> Response:
        """Make a session with a key and a URL of its own: for agents that can be given a URL and a key, and nothing else.

        All calls with its key or under its `base_url` belong to it. The key ends with its session, and with the key that made it.
        `/sessions/{id}/v1/...` and `/sessions/{id}/tokenize` are the plain routes of answers and models, within that session.
        """
        headers = await limit.check(caller)
        body = await request.body()
        wanted = read_json(SessionRequest, body or b"{}")
        task, budget = wanted.task or next(iter(tasks)), wanted.budget or SessionBudget()
        if task not in tasks:
            raise InvalidRequest(f"no task is called {task[:64]!r}; there are {sorted(tasks)}", param="task")
        _check_budget(budget)
        check_group(wanted.group, "group")
        made, key = await asyncio.to_thread(make, caller, task, budget, wanted.group)
        base_url = f"{str(request.base_url).rstrip('/')}{PREFIX}{made.id}/v1"
        return reply({**_shown(made), "key": key, "base_url": base_url}, _CREATED, headers)

    @service.get(f"{_SESSIONS}/{{session_id}}")
    async def retrieve_session(session_id: str, caller: AppCaller) -> Response:
        """A session, and what it used of its budget."""
        headers = await limit.check(caller)
        return reply(_shown(await asyncio.to_thread(find, caller, session_id)), headers=headers)

    @service.delete(f"{_SESSIONS}/{{session_id}}")
    async def finish_session(session_id: str, caller: AppCaller) -> Response:
        """End a session: its key is refused from then on, at every replica within two seconds."""
        headers = await limit.check(caller)
        return reply(_shown(await asyncio.to_thread(end, caller, session_id)), headers=headers)


def _check_budget(budget: SessionBudget) -> None:
    for name in ("calls", "tokens", "seconds"):
        value = getattr(budget, name)
        if value is not None and not 0 < value <= _MOST:
            raise field_error(f"budget.{name}", f"is a number above 0, not {value}")


def _shown(session: AgentSession) -> dict[str, Any]:
    return {"object": "session", **msgspec.structs.asdict(session)}


class SessionUrls:
    """Passes a request at the URL of a session on to the plain route, within that session; any other as it is."""

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
    plain = {"path": unquote(path), "raw_path": path.encode("latin-1"), "headers": headers, URL_SESSION: session}
    return {**scope, **plain}
