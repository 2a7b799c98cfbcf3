"""How every room renders its pages: templates, the sign-in form, and failures as pages instead of JSON."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from fastapi import Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from fastapi.templating import Jinja2Templates

from contracts.errors import MillraceError, NotFound, Unauthorized, Unavailable
from services.dashboard.formatting import add_filters
from services.dashboard.signin.access import find_visitor
from services.dashboard.signin.repository import Session
from services.http import refusal_of

templates = Jinja2Templates(Path(__file__).parent.parent / "templates")
add_filters(templates.env)
PAGES = {
    "/": "Loop", "/rollout": "Rollout", "/lift": "Lift", "/policies": "Policies", "/generations": "Generations",
    "/rewards": "Rewards", "/ledger": "Ledger",
}  # fmt: skip
OF_VERSIONS = ("/rollout", "/lift", "/policies")
"""Pages that have nothing to show where a provider answers."""
TENANT_PAGES = {"/": "Overview", "/rewards": "Rewards", "/ledger": "Ledger"}


class PageRoute(APIRoute):
    """A route for people: without a session it shows the sign-in form, and a failure is a page with the reason."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Wrap FastAPI's handler."""
        handle = super().get_route_handler()

        async def handle_as_page(request: Request) -> Response:
            try:
                return await handle(request)
            except Unauthorized as error:
                return sign_in_form(request, None, error.status)
            except (MillraceError, RequestValidationError) as error:
                return _failure(request, refusal_of(error) if isinstance(error, RequestValidationError) else error)

        return handle_as_page


def render(
    request: Request, template: str, session: Session | None, status_code: int = 200, **context: Any
) -> Response:
    """A page from a template, which also gets the session and its pages, the policy, the settings, the request's path and address."""
    state = request.app.state
    known = {"session": session, "policy": state.policy, "settings": state.settings, "path": request.url.path}
    known["here"] = _address(request)
    known["pages"] = PAGES if session is None or session.tenant is None else TENANT_PAGES
    if (provider := state.provider) is not None:
        known["provider"] = provider
        known["pages"] = {path: name for path, name in known["pages"].items() if path not in OF_VERSIONS}
    return templates.TemplateResponse(request, template, {**known, **context}, status_code=status_code)


def show_unknown(request: Request) -> Response:
    """The page for an address without a page: the known pages, or the sign-in form."""
    missing = NotFound(f"there is no page {request.url.path}")
    try:
        session = find_visitor(request)
    except Unavailable as error:
        return _failure(request, error)
    if session is None:
        return sign_in_form(request, f"{missing.message}; sign in to see the known ones", missing.status)
    return _failure(request, missing, session)


def sign_in_form(request: Request, problem: str | None, status: int) -> Response:
    """The form; signing in leads back to the page that was asked for."""
    target = _address(request) if request.method == "GET" else "/"
    return render(request, "login.html", None, status, problem=problem, next=target)


def _failure(request: Request, error: MillraceError, session: Session | None = None) -> Response:
    return render(request, "failed.html", session, error.status, problem=error.message, status=error.status)


def _address(request: Request) -> str:
    """The page's own address. The first page's query is left out: it may be a one-time token."""
    path, query = request.url.path, request.url.query
    return f"{path}?{query}" if query and path != "/" else path
