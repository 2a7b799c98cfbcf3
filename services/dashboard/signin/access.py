"""The rights that a route can ask for in its signature, and the policy that its page shows."""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from typing import Annotated
from urllib.parse import urlsplit

from fastapi import Depends, Request, Security

from contracts.errors import Forbidden, MissingScope, Unauthorized
from services.dashboard.signin.repository import COOKIE, Session, Sessions


def find_session(request: Request) -> Session:
    """The session of a request. Raises Unauthorized, Unavailable."""
    sessions: Sessions = request.app.state.sessions
    return sessions.find(request.cookies.get(COOKIE))


def find_visitor(request: Request) -> Session | None:
    """The session of a request, or None if nobody is signed in. Raises Unavailable."""
    try:
        return find_session(request)
    except Unauthorized:
        return None


async def require_own_page(request: Request) -> None:
    """Raises Forbidden if the request was made by a page of another site."""
    check_same_origin(request.headers)


def check_same_origin(headers: Mapping[str, str]) -> None:
    """Refuse a change that a page of another site made the browser send. Raises Forbidden: a header names one, or none came."""
    site, origin = headers.get("sec-fetch-site"), headers.get("origin")
    ours = origin is not None and urlsplit(origin).netloc == headers.get("host")
    if site not in {None, "same-origin"} or not (ours or (origin is None and site == "same-origin")):
        raise Forbidden("this request did not come from the dashboard's own page")


def check_csrf(session: Session, sent: str | None) -> None:
    """Refuse a change without the secret of our own pages. Raises Forbidden."""
    if not hmac.compare_digest(session.csrf.encode(), (sent or "").encode()):
        raise Forbidden("the page is out of date; reload it and try again")


async def read_body(request: Request) -> bytes:
    """The whole body; the application bounds its size."""
    return await request.body()


async def policy_of(request: Request) -> str:
    """The one policy of this home."""
    policy: str = request.app.state.policy
    return policy


Body = Annotated[bytes, Depends(read_body)]
OwnPage = Annotated[None, Depends(require_own_page)]
"""Only the dashboard's own pages may send this request."""
Policy = Annotated[str, Depends(policy_of)]
"""The policy whose versions the route shows or moves."""
Visitor = Annotated[Session | None, Depends(find_visitor)]
"""Anybody, signed in or not: the route is open."""
SignedIn = Annotated[Session, Security(find_session)]
"""Anybody with a key. Show only the numbers of `Session.tenant`: sums over all tenants need `OperatorReader`."""


def require_reader(session: SignedIn) -> Session:
    """Raises MissingScope for a key that sees only one tenant: these pages show the numbers and words of all tenants."""
    if "operator:read" not in session.scopes:
        raise MissingScope(
            "this page shows what users of every app did and said: sign in with a key that has the scope operator:read"
        )
    return session


def require_writer(request: Request, session: SignedIn, _origin: OwnPage) -> Session:
    """Raises MissingScope for a key that may only read, Forbidden without the secret that only our own pages contain."""
    if not session.decides:
        raise MissingScope("this changes what is served: sign in with a key that has the scope operator:write")
    check_csrf(session, request.headers.get("x-csrf-token"))
    return session


OperatorReader = Annotated[Session, Security(require_reader, scopes=["operator:read"])]
OperatorWriter = Annotated[Session, Security(require_writer, scopes=["operator:write"])]
