"""Signing in, the pages that follow the loop, and what they follow. Reading needs a session."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from urllib.parse import parse_qs, urlsplit

from fastapi import APIRouter, Depends, Request, Response
from fastapi.responses import RedirectResponse, StreamingResponse
from starlette.concurrency import run_in_threadpool

from contracts.errors import Unauthorized, Unavailable
from contracts.keys import check_key
from services.dashboard.generations.routes import router as generations
from services.dashboard.policies import actions
from services.dashboard.policies.routes import router as policies
from services.dashboard.rewards.routes import router as rewards
from services.dashboard.signin.access import Body, PageRoute, SignedIn, find_session, own_page, render, sign_in_form
from services.dashboard.signin.sessions import COOKIE, spend_token
from services.openapi import FormBody, takes

CHECK_SECONDS = 1.0
"""How long an open stream goes on after its session or its key ended; less than one event more."""
_SEE_OTHER = 303
router = APIRouter()
pages = APIRouter(route_class=PageRoute)


@pages.get("/")
def index(request: Request, token: str | None = None) -> Response:
    """The Loop page, a tenant's own or everybody's; or the form to sign in; or, for a fresh one-time token, a session that may look."""
    try:
        session = find_session(request)
    except Unauthorized:
        return _meet(request, token)
    if token is not None:
        return RedirectResponse("/", _SEE_OTHER)
    return render(request, "loop.html" if session.tenant is None else "own.html", session)


@pages.get("/ledger")
def ledger(request: Request, session: SignedIn) -> Response:
    """The Ledger page."""
    return render(request, "ledger.html", session)


@pages.post("/api/login", dependencies=[Depends(own_page)])
@takes(FormBody(("key", "next")))
def login(request: Request, body: Body) -> Response:
    """Exchange a key for a session."""
    fields = parse_qs(body.decode(errors="replace"))
    key, target = (fields.get(name, [""])[0] for name in ("key", "next"))
    try:
        with request.app.state.database.snapshot() as connection:
            caller = check_key(connection, f"Bearer {key}")
    except Unauthorized as error:
        return sign_in_form(request, error.message, error.status)
    request.app.state.sessions.end(request.cookies.get(COOKIE))
    session_id = request.app.state.sessions.start(caller)
    return _signed_in(request, session_id, _own_path(target))


@pages.post("/api/logout", dependencies=[Depends(own_page)])
def logout(request: Request) -> Response:
    """End the session, on every replica."""
    request.app.state.sessions.end(request.cookies.get(COOKIE))
    response = RedirectResponse("/", _SEE_OTHER)
    response.delete_cookie(COOKIE)
    return response


@router.get("/api/state")
async def state(request: Request, session: SignedIn) -> Response:
    """What the pages show, as JSON; to a tenant only its own."""
    return Response(await request.app.state.watchers.of(session.tenant).latest(), media_type="application/json")


@router.get("/events")
async def events(request: Request, session: SignedIn) -> Response:
    """The same, whenever it changes."""
    watched = _while_signed_in(request, session.tenant, request.app.state.watchers.of(session.tenant).events())
    return StreamingResponse(watched, media_type="text/event-stream")


router.include_router(pages)
router.include_router(policies)
router.include_router(generations)
router.include_router(rewards)
router.include_router(actions.router)


async def _while_signed_in(
    request: Request, tenant: str | None, events: AsyncGenerator[bytes, None]
) -> AsyncGenerator[bytes, None]:
    """An open page keeps its session from idling; signing out, the longest session, or the end of its key ends the stream."""
    checked_at = time.monotonic()
    async with aclosing(events):
        async for event in events:
            if time.monotonic() - checked_at >= CHECK_SECONDS:
                try:
                    session = await run_in_threadpool(find_session, request)
                    if session.tenant != tenant:
                        return
                except Unauthorized:
                    return
                except Unavailable:
                    # The page was let in before the database went away, and is told of that by the stream itself.
                    pass
                checked_at = time.monotonic()
            yield event


def _meet(request: Request, token: str | None) -> Response:
    if token is None:
        return sign_in_form(request, None, 200)
    try:
        with request.app.state.sessions.starting(None) as session_id:
            spend_token(request.app.state.settings.home, token)
    except Unauthorized as error:
        return sign_in_form(request, error.message, error.status)
    return _signed_in(request, session_id, "/")


def _own_path(target: str) -> str:
    """Where to go after signing in; another site's address leads to the Loop page."""
    parts = urlsplit(target)
    ours = not parts.scheme and not parts.netloc and target.startswith("/") and "\\" not in target
    return target if ours and not target.startswith("//") and target.isprintable() else "/"


def _signed_in(request: Request, session_id: str, target: str) -> Response:
    response = RedirectResponse(target, _SEE_OTHER)
    secure = request.url.scheme == "https"
    response.set_cookie(COOKIE, session_id, httponly=True, samesite="strict", secure=secure)
    return response
