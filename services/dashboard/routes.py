"""What the dashboard answers. Reading needs a session, changing an operator's; the transaction ends here."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from pathlib import Path
from typing import Annotated
from urllib.parse import parse_qs

import msgspec
from fastapi import APIRouter, Depends, Request, Response
from fastapi.responses import RedirectResponse, StreamingResponse
from fastapi.templating import Jinja2Templates

from contracts import assignments, rollback
from contracts.assignments import LIVE
from contracts.errors import Forbidden, StaleWrite, Unauthorized
from contracts.keys import check_key
from services.dashboard.sessions import COOKIE, Session, Sessions, check_csrf, check_same_origin, spend_token
from services.http import read_json, reply

_SEE_OTHER = 303
router = APIRouter()
templates = Jinja2Templates(Path(__file__).parent / "templates")


class RollbackRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`live` is what the operator saw: if it moved meanwhile, nothing is done. `to` None: the last accepted version."""

    live: int
    reason: Annotated[str, msgspec.Meta(min_length=1, max_length=500)]
    to: int | None = None


def find_session(request: Request) -> Session:
    """The session of a request. Raises Unauthorized."""
    sessions: Sessions = request.app.state.sessions
    return sessions.find(request.cookies.get(COOKIE))


def own_page(request: Request) -> None:
    """Raises Forbidden unless our own page asks."""
    check_same_origin(request.headers)


async def read_body(request: Request) -> bytes:
    """The whole body; the application bounds its size."""
    return await request.body()


SignedIn = Annotated[Session, Depends(find_session)]
Body = Annotated[bytes, Depends(read_body)]


@router.get("/")
def index(request: Request, token: str | None = None) -> Response:
    """The page; or the form to sign in; or, for a fresh one-time token, a session that may only look."""
    try:
        session = find_session(request)
    except Unauthorized:
        return _meet(request, token)
    if token is not None:
        return RedirectResponse("/", _SEE_OTHER)
    context = {"session": session, "settings": request.app.state.settings}
    return templates.TemplateResponse(request, "index.html", context)


@router.post("/api/login", dependencies=[Depends(own_page)])
def login(request: Request, body: Body) -> Response:
    """Exchange a key for a session."""
    key = parse_qs(body.decode(errors="replace")).get("key", [""])[0]
    try:
        with request.app.state.database.snapshot() as connection:
            caller = check_key(connection, f"Bearer {key}")
    except Unauthorized as error:
        return _refused(request, error)
    request.app.state.sessions.end(request.cookies.get(COOKIE))
    return _signed_in(request, request.app.state.sessions.start(caller.role, f"{caller.role} {caller.key_id}"))


@router.post("/api/logout", dependencies=[Depends(own_page)])
def logout(request: Request) -> Response:
    """End the session."""
    request.app.state.sessions.end(request.cookies.get(COOKIE))
    response = RedirectResponse("/", _SEE_OTHER)
    response.delete_cookie(COOKIE)
    return response


@router.get("/api/state")
async def state(request: Request, _session: SignedIn) -> Response:
    """What the page shows, as JSON."""
    return Response(await request.app.state.watcher.latest(), media_type="application/json")


@router.get("/events")
async def events(request: Request, _session: SignedIn) -> Response:
    """The same, whenever it changes."""
    watched = _while_signed_in(request, request.app.state.watcher.events())
    return StreamingResponse(watched, media_type="text/event-stream")


@router.post("/api/rollback", dependencies=[Depends(own_page)])
def roll_back(request: Request, session: SignedIn, body: Body) -> Response:
    """Go back to an accepted version, once a person has confirmed it."""
    if session.role != "operator":
        raise Forbidden("a rollback needs an operator: sign in with an operator key")
    check_csrf(session, request.headers.get("x-csrf-token"))
    wanted = read_json(RollbackRequest, body)
    policy = request.app.state.settings.policy
    with request.app.state.database.transaction() as connection:
        live = assignments.read(connection, policy).get(LIVE)
        if live is not None and live.version != wanted.live:
            raise StaleWrite(f"v{wanted.live} is no longer live, v{live.version} is; look again", live=live.version)
        version = rollback.roll_back(connection, policy=policy, writer=session.name, reason=wanted.reason, to=wanted.to)
    return reply({"live": version})


async def _while_signed_in(request: Request, events: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
    """An open page keeps its session from idling; signing out, or the longest session, ends the stream."""
    async with aclosing(events):
        async for event in events:
            try:
                find_session(request)
            except Unauthorized:
                return
            yield event


def _meet(request: Request, token: str | None) -> Response:
    if token is None:
        return templates.TemplateResponse(request, "login.html", {"problem": None})
    try:
        spend_token(request.app.state.settings.home, token)
    except Unauthorized as error:
        return _refused(request, error)
    return _signed_in(request, request.app.state.sessions.start("viewer", "one-time link"))


def _refused(request: Request, error: Unauthorized) -> Response:
    return templates.TemplateResponse(request, "login.html", {"problem": error.message}, status_code=error.status)


def _signed_in(request: Request, session_id: str) -> Response:
    response = RedirectResponse("/", _SEE_OTHER)
    secure = request.url.scheme == "https"
    response.set_cookie(COOKIE, session_id, httponly=True, samesite="strict", secure=secure)
    return response
