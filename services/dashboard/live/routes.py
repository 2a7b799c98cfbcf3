"""The pages that the stream of states draws, and the stream. A tenant's session gets that tenant's states."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from contextlib import aclosing

from fastapi import APIRouter, Request, Response
from fastapi.responses import RedirectResponse, StreamingResponse
from starlette.concurrency import run_in_threadpool

from contracts.errors import Unauthorized, Unavailable
from services.dashboard.signin.access import OperatorReader, SignedIn, Visitor, find_session
from services.dashboard.signin.pages import PageRoute, render, sign_in_form
from services.dashboard.signin.routes import SEE_OTHER, enter_with_token

CHECK_SECONDS = 1.0
"""An open stream checks its session this often: after a sign-out or the end of a key, at most one more event is sent."""
router = APIRouter()
pages = APIRouter(route_class=PageRoute)


@pages.get("/")
def index(request: Request, session: Visitor, token: str | None = None) -> Response:
    """The Loop page; without a session the form to sign in, or a session that may only look for a fresh one-time token."""
    if session is None:
        return sign_in_form(request, None, 200) if token is None else enter_with_token(request, token)
    if token is not None:
        return RedirectResponse("/", SEE_OTHER)
    return render(request, "loop.html" if session.tenant is None else "tenant.html", session)


@pages.get("/ledger")
def ledger(request: Request, session: SignedIn) -> Response:
    """The Ledger page."""
    return render(request, "ledger.html", session)


@pages.get("/rollout")
def rollout(request: Request, session: OperatorReader) -> Response:
    """The running train, its evidence, and earlier trains."""
    return render(request, "rollout.html", session)


@pages.get("/lift")
def lift(request: Request, session: OperatorReader) -> Response:
    """What everybody gets, compared with the hold-out's version."""
    return render(request, "lift.html", session)


@router.get("/api/state")
async def state(request: Request, session: SignedIn) -> Response:
    """The state that the pages show, as JSON; a tenant gets only its own numbers."""
    return Response(await request.app.state.watchers.of(session.tenant).latest(), media_type="application/json")


@router.get("/events")
async def events(request: Request, session: SignedIn) -> Response:
    """The same state as server-sent events, whenever it changes."""
    stream = request.app.state.watchers.of(session.tenant).events()
    return StreamingResponse(_while_signed_in(request, session.tenant, stream), media_type="text/event-stream")


router.include_router(pages)


async def _while_signed_in(
    request: Request, tenant: str | None, events: AsyncGenerator[bytes, None]
) -> AsyncGenerator[bytes, None]:
    """Pass events on until the session ends or changes its tenant. An open page keeps its session from idling."""
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
                    # The session was valid before the database went away, and the stream reports that fault itself.
                    pass
                checked_at = time.monotonic()
            yield event
