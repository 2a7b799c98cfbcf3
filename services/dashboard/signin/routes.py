"""Signing in with a key or a one-time link, and signing out."""

from __future__ import annotations

from urllib.parse import parse_qs, urlsplit

from fastapi import APIRouter, Request, Response
from fastapi.responses import RedirectResponse

from contracts.errors import Unauthorized
from contracts.keys import check_key
from services.dashboard.signin.access import Body, OwnPage
from services.dashboard.signin.pages import PageRoute, sign_in_form
from services.dashboard.signin.repository import COOKIE
from services.openapi import FormBody, takes

SEE_OTHER = 303
router = APIRouter(route_class=PageRoute)


@router.post("/api/login")
@takes(FormBody(("key", "next")))
def login(request: Request, body: Body, _origin: OwnPage) -> Response:
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
    return _signed_in(request, session_id, _local_path(target))


@router.post("/api/logout")
def logout(request: Request, _origin: OwnPage) -> Response:
    """End the session, on every replica."""
    request.app.state.sessions.end(request.cookies.get(COOKIE))
    response = RedirectResponse("/", SEE_OTHER)
    response.delete_cookie(COOKIE)
    return response


def enter_with_token(request: Request, token: str) -> Response:
    """Start a session that may only look, or show the form with the reason why the token is refused."""
    try:
        session_id = request.app.state.sessions.enter(token)
    except Unauthorized as error:
        return sign_in_form(request, error.message, error.status)
    return _signed_in(request, session_id, "/")


def _local_path(target: str) -> str:
    """Where to go after signing in; the address of another site is replaced by the Loop page."""
    parts = urlsplit(target)
    local = not parts.scheme and not parts.netloc and target.startswith("/") and "\\" not in target
    return target if local and not target.startswith("//") and target.isprintable() else "/"


def _signed_in(request: Request, session_id: str, target: str) -> Response:
    response = RedirectResponse(target, SEE_OTHER)
    secure = request.url.scheme == "https"
    response.set_cookie(COOKIE, session_id, httponly=True, samesite="strict", secure=secure)
    return response
