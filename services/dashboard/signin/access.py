"""Who may ask what, as dependencies of routes; and pages whose failures are pages."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Annotated, Any

from fastapi import Depends, Request, Response, Security
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from fastapi.templating import Jinja2Templates

from contracts.errors import MillraceError, MissingScope, Unauthorized
from services.dashboard.formatting import add_filters
from services.dashboard.signin.sessions import COOKIE, Session, Sessions, check_csrf, check_same_origin
from services.http import refusal_of

templates = Jinja2Templates(Path(__file__).parent.parent / "templates")
add_filters(templates.env)


def find_session(request: Request) -> Session:
    """The session of a request. Raises Unauthorized, Unavailable."""
    sessions: Sessions = request.app.state.sessions
    return sessions.find(request.cookies.get(COOKIE))


def own_page(request: Request) -> None:
    """Raises Forbidden unless our own page asks."""
    check_same_origin(request.headers)


async def read_body(request: Request) -> bytes:
    """The whole body; the application bounds its size."""
    return await request.body()


Body = Annotated[bytes, Depends(read_body)]
SignedIn = Annotated[Session, Security(find_session)]
"""Anybody with a key. `Session.tenant` says whose numbers: what cannot be told apart by tenant is not for this right."""


def reader(session: SignedIn) -> Session:
    """Raises MissingScope for who may see one tenant only: these pages show every tenant's numbers and words."""
    if "operator:read" not in session.scopes:
        raise MissingScope(
            "this page shows what users of every app did and said: sign in with a key that has the scope operator:read"
        )
    return session


def decider(request: Request, session: SignedIn) -> Session:
    """Raises MissingScope for who may only look, Forbidden if another site's page asks."""
    if not session.decides:
        raise MissingScope("this changes what is served: sign in with a key that has the scope operator:write")
    check_csrf(session, request.headers.get("x-csrf-token"))
    return session


OperatorReader = Annotated[Session, Security(reader, scopes=["operator:read"])]
OperatorWriter = Annotated[Session, Security(decider, scopes=["operator:write"])]


class PageRoute(APIRoute):
    """A route for people: who is not signed in meets the form, and a failure says so in a page."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Wrap the usual handler."""
        handle = super().get_route_handler()

        async def handle_as_page(request: Request) -> Response:
            try:
                return await handle(request)
            except Unauthorized as error:
                return sign_in_form(request, None, error.status)
            except MillraceError as error:
                return _failed(request, error.message, error.status)
            except RequestValidationError as error:
                refused = refusal_of(error)
                return _failed(request, refused.message, refused.status)

        return handle_as_page


def render(request: Request, name: str, session: Session, **context: Any) -> Response:
    """A page of ours."""
    known = {"session": session, "settings": request.app.state.settings, "path": request.url.path}
    return templates.TemplateResponse(request, name, {**known, **context})


def sign_in_form(request: Request, problem: str | None, status: int) -> Response:
    """The form, which leads back to where it stands."""
    target = request.url.path if request.method == "GET" else "/"
    return templates.TemplateResponse(request, "login.html", {"problem": problem, "next": target}, status_code=status)


def _failed(request: Request, problem: str, status: int) -> Response:
    context = {"session": None, "settings": request.app.state.settings, "path": request.url.path}
    return templates.TemplateResponse(
        request, "failed.html", {**context, "problem": problem, "status": status}, status_code=status
    )
