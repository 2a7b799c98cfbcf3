"""The page of a session. Its transaction begins and ends here.

A session is named by its tenant and its id, both in the query: an id may contain any characters, and two tenants may use the same one.
"""

from __future__ import annotations

from typing import Annotated
from urllib.parse import urlencode

from fastapi import APIRouter, Query, Request, Response

from contracts.errors import InvalidValue, NotFound
from contracts.ids import parse_sample_key
from contracts.record_checks import MAX_NAME, is_sample_key
from contracts.tables import MAX_KEY
from services.dashboard.sessions.queries import CallRef, SessionPage, find_session
from services.dashboard.sessions.tree import totals_of, tree_of
from services.dashboard.signin.access import OperatorReader
from services.dashboard.signin.pages import PageRoute, render

router = APIRouter(prefix="/sessions", route_class=PageRoute)
_QUOTED = 64


@router.get("")
def show(
    request: Request,
    session: OperatorReader,
    session_id: Annotated[str, Query(alias="id")] = "",
    tenant: str = "default",
    after: str = "",
) -> Response:
    """The calls of one session as a tree, oldest first."""
    page = SessionPage([], 0, None)
    # A text that the database would refuse in a query is in no table.
    if _is_storable(session_id, MAX_KEY) and _is_storable(tenant, MAX_NAME):
        with request.app.state.database.snapshot() as connection:
            page = find_session(connection, tenant, session_id, _ref(after))
    if not page.num_calls:
        raise NotFound(
            f"the tenant {tenant[:_QUOTED]!r} has no session {session_id[:_QUOTED]!r} here; its calls may not have been joined yet, or "
            "were deleted. An answer's page links to its session"
        )
    here = {"tenant": tenant, "id": session_id}
    return render(
        request,
        "session.html",
        session,
        session_id=session_id,
        tenant=tenant,
        page=page,
        lines=tree_of(page.calls),
        totals=totals_of(page.calls),
        first=f"/sessions?{urlencode(here)}" if after else None,
        later=f"/sessions?{urlencode({**here, 'after': page.after.key})}" if page.after else None,
    )


def _is_storable(text: str, longest: int) -> bool:
    return 0 < len(text) <= longest and "\0" not in text


def _ref(text: str) -> CallRef | None:
    if not text:
        return None
    if not is_sample_key(text):
        raise InvalidValue("this page's address is damaged; begin with the session's first call", param="after")
    return CallRef(*parse_sample_key(text))
