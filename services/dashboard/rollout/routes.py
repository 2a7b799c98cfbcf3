"""The Rollout and Lift pages; the stream of states brings what they draw."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from services.dashboard.signin.access import OperatorReader
from services.dashboard.signin.pages import PageRoute, render

router = APIRouter(route_class=PageRoute)


@router.get("/rollout")
def rollout(request: Request, session: OperatorReader) -> Response:
    """The running train, its evidence, and earlier trains."""
    return render(request, "rollout.html", session)


@router.get("/lift")
def lift(request: Request, session: OperatorReader) -> Response:
    """What everybody gets, compared with the hold-out's version."""
    return render(request, "lift.html", session)
