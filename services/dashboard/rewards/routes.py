"""The Rewards page. Transactions begin and end here."""

from __future__ import annotations

import time
from collections import Counter
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from contracts.errors import NotFound
from services.dashboard.rewards import queries
from services.dashboard.signin.access import SignedIn
from services.dashboard.signin.pages import PageRoute, render

router = APIRouter(prefix="/rewards", route_class=PageRoute)


@router.get("")
def show(request: Request, session: SignedIn, task: Annotated[str, Query(max_length=64)] = "") -> Response:
    """How one task is rewarded: by default the task with the most answers of the last day. A tenant sees its own counts."""
    now = time.time()
    window = queries.TimeWindow(now - queries.DAY_SECONDS, now - queries.HOUR_SECONDS, tenant=session.tenant)
    with request.app.state.database.snapshot() as connection:
        states = queries.count_states(connection, window)
        known = queries.list_tasks(connection) if session.tenant is None else []
        tasks = sorted({*known, *(row.task for row in states.rows)})
        if task and task not in tasks:
            raise NotFound(f"the task {task!r} is not known here; choose one of: {', '.join(tasks) or 'none yet'}")
        counts: Counter[str] = Counter()
        for row in states.rows:
            counts[row.task] += row.num
        chosen = task or min(tasks, key=lambda name: (-counts[name], name), default="")
        figures = queries.read_figures(connection, chosen, window, states, now) if chosen else {}
    return render(request, "rewards.html", session, tasks=tasks, task=chosen, now=now, **figures)
