"""What one tenant's page asks of the database: index ranges with a limit, and counts that all tenants share."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import NamedTuple

from sqlalchemy import Connection, func, select

from contracts import ledger
from contracts.tables import generation, received_signal, score, signal
from services.dashboard.live.queries import MAX_SCORES, ScoredAnswer, StateCount

MAX_LOOKED = 20_000
"""Of the newest scores, everybody's: a tenant's own are found among these."""


class TenantTotals(NamedTuple):
    """Whole tables, counted for every tenant at one moment. A row of before tenants were noted counts for nobody."""

    standings: Mapping[str, list[StateCount]]
    num_received: Mapping[str, int]
    """Acknowledged signals."""
    signals: Mapping[str, Mapping[str, int]]
    """Tenant to state to how many signals the join has seen."""


def read_totals(connection: Connection) -> TenantTotals:
    """Once for all tenants: it costs as much as the counts of the operator's page."""
    standings: dict[str, list[StateCount]] = defaultdict(list)
    # Of columns of ix_generation_state only, so that no row is touched.
    columns = (generation.c.tenant, ledger.effective_state().label("state"), generation.c.version)
    counted = select(*columns, func.count().label("number")).where(generation.c.tenant.is_not(None)).group_by(*columns)
    for row in connection.execute(counted):
        standings[row.tenant].append(StateCount(row.state, row.version, row.number))
    received = select(received_signal.c.tenant, func.count().label("number")).group_by(received_signal.c.tenant)
    states: dict[str, dict[str, int]] = defaultdict(dict)
    seen = (signal.c.tenant, signal.c.state)
    for row in connection.execute(select(*seen, func.count().label("number")).group_by(*seen)):
        states[row.tenant][row.state] = row.number
    return TenantTotals(standings, {row.tenant: row.number for row in connection.execute(received)}, states)


def read_scores(connection: Connection, tenant: str) -> list[ScoredAnswer]:
    """Of a tenant's users' answers, newest first, among the newest `MAX_LOOKED` of everybody's."""
    columns = (score.c.at, score.c.version, score.c.reward, score.c.purpose, score.c.tenant)
    looked = select(*columns).order_by(score.c.at.desc()).limit(MAX_LOOKED).subquery()
    mine = (looked.c.purpose == "user", looked.c.tenant == tenant)
    statement = select(looked.c.at, looked.c.version, looked.c.reward).where(*mine).order_by(looked.c.at.desc())
    return [ScoredAnswer(*row) for row in connection.execute(statement.limit(MAX_SCORES))]
