"""What one tenant's pages ask the database: index ranges with a limit, and counts that are read once for all tenants."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import NamedTuple

from sqlalchemy import Connection, func, select

from contracts import ledger
from contracts.tables import generation, received_signal, score, signal
from services.dashboard.live.queries import MAX_SCORES, ScoredAnswer, StateCount

MAX_LOOKED = 20_000
"""Newest scores of all tenants, among which one tenant's own are found."""


class TenantTotals(NamedTuple):
    """Whole tables, counted by tenant at one moment. Rows that are older than tenants count for no tenant."""

    state_counts: Mapping[str, list[StateCount]]
    num_received: Mapping[str, int]
    """Acknowledged signals."""
    signals: Mapping[str, Mapping[str, int]]
    """Tenant to state to the number of signals that the join has seen."""


def read_totals(connection: Connection) -> TenantTotals:
    """Counts for all tenants at once: one tenant's counts would cost the same."""
    state_counts: dict[str, list[StateCount]] = defaultdict(list)
    # Only columns of ix_generation_state, so that no row is touched.
    columns = (generation.c.tenant, ledger.effective_state().label("state"), generation.c.version)
    counted = select(*columns, func.count().label("number")).where(generation.c.tenant.is_not(None)).group_by(*columns)
    for row in connection.execute(counted):
        state_counts[row.tenant].append(StateCount(row.state, row.version, row.number))
    received = select(received_signal.c.tenant, func.count().label("number")).group_by(received_signal.c.tenant)
    states: dict[str, dict[str, int]] = defaultdict(dict)
    seen = (signal.c.tenant, signal.c.state)
    for row in connection.execute(select(*seen, func.count().label("number")).group_by(*seen)):
        states[row.tenant][row.state] = row.number
    return TenantTotals(state_counts, {row.tenant: row.number for row in connection.execute(received)}, states)


def read_scores(connection: Connection, tenant: str) -> list[ScoredAnswer]:
    """Scored answers to a tenant's users, newest first, among the newest `MAX_LOOKED` of all tenants."""
    columns = (score.c.at, score.c.version, score.c.reward, score.c.purpose, score.c.tenant)
    looked = select(*columns).order_by(score.c.at.desc()).limit(MAX_LOOKED).subquery()
    mine = (looked.c.purpose == "user", looked.c.tenant == tenant)
    statement = select(looked.c.at, looked.c.version, looked.c.reward).where(*mine).order_by(looked.c.at.desc())
    return [ScoredAnswer(*row) for row in connection.execute(statement.limit(MAX_SCORES))]
