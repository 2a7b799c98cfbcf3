"""The Rewards page. The transaction ends here."""

from __future__ import annotations

import time
from collections import Counter
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response
from sqlalchemy import Connection

from contracts.errors import NotFound
from services.dashboard.rewards import queries
from services.dashboard.rewards.figures import (
    alarm_words,
    columns_of,
    faulty_parts,
    judges_of,
    parts_of,
    version_rows,
)
from services.dashboard.rewards.queries import TimeWindow
from services.dashboard.signin.access import SignedIn
from services.dashboard.signin.pages import PageRoute, render

HOUR_SECONDS, DAY_SECONDS = 3600.0, 86_400.0
NUM_DAYS = 7
"""Days of spending that are summed up, today included."""
NO_REWARD = ("unlabelled", "unscored")
router = APIRouter(prefix="/rewards", route_class=PageRoute)


@router.get("")
def show(request: Request, session: SignedIn, task: Annotated[str, Query(max_length=64)] = "") -> Response:
    """How one task is rewarded; without a name, the one with the most answers of the last day. A tenant sees its own counts."""
    now = time.time()
    with request.app.state.database.snapshot() as connection:
        window = TimeWindow(now - DAY_SECONDS, now - HOUR_SECONDS, tenant=session.tenant)
        scores, states = queries.count_scores(connection, window), queries.count_states(connection, window)
        known = queries.list_tasks(connection) if session.tenant is None else []
        tasks = sorted({*known, *(row.task for row in states.rows)})
        if task and task not in tasks:
            raise NotFound(f"nothing is known of a task {task!r}; there is {', '.join(tasks) or 'none yet'}")
        chosen = task or _busiest(states, tasks)
        figures = _read(connection, chosen, window, now) if chosen else {}
    mine = [row for row in states.rows if row.task == chosen]
    return render(
        request,
        "rewards.html",
        session,
        tasks=tasks,
        task=chosen,
        now=now,
        scores=[row for row in scores.rows if row.task == chosen],
        is_cut=scores.is_cut or states.is_cut,
        max_looked=queries.MAX_LOOKED,
        num_answers=sum(row.num for row in mine),
        without=[row for row in mine if row.name in NO_REWARD],
        filtered=[row for row in mine if row.name == "filtered"],
        **figures,
    )


def _read(connection: Connection, task: str, window: TimeWindow, now: float) -> dict[str, Any]:
    figures = {
        "faulty": faulty_parts(queries.list_faults(connection, task, window)),
        "max_faults": queries.MAX_FAULTS,
        "voices": queries.read_voices(connection, task, tenant=window.tenant),
        "max_people": queries.MAX_PEOPLE,
        "max_refused": queries.MAX_REFUSED,
        "refused": queries.count_refused(connection, task, window.since, window.tenant),
    }
    return figures | (_read_shared(connection, task, now) if window.tenant is None else {})


def _read_shared(connection: Connection, task: str, now: float) -> dict[str, Any]:
    """Sums over all tenants, which nothing tells apart: for operators."""
    versions = queries.read_versions(connection, task)
    parts = parts_of(versions)
    rows = version_rows(versions, parts)
    today, first = (_day(now - days * DAY_SECONDS) for days in (0, NUM_DAYS - 1))
    spent = queries.read_spending(connection, task, first)
    return {
        "parts": parts,
        "versions": rows,
        "columns": columns_of(rows, parts),
        "alarms": [(row, alarm_words(row.details)) for row in queries.list_alarms(connection, task)],
        "judges": judges_of(spent, queries.count_verdicts(connection) if spent else {}, today),
        "num_days": NUM_DAYS,
    }


def _busiest(states: queries.TaskCounts, tasks: list[str]) -> str:
    counts: Counter[str] = Counter()
    for row in states.rows:
        counts[row.task] += row.num
    return min(tasks, key=lambda name: (-counts[name], name), default="")


def _day(at: float) -> str:
    return time.strftime("%Y-%m-%d", time.gmtime(at))
