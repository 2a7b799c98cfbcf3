"""Rows of one tenant become the state that its pages draw. Pure.

Some rows cannot be told apart by tenant, so their figures are left out: positions and lags of the log, dead letters, steps of the trainer,
verdicts of the gate, and decisions of operators.
"""

from __future__ import annotations

from collections.abc import Sequence

from contracts.ledger import PENDING
from services.dashboard.live.answers import Columns, answers_over_time
from services.dashboard.live.identities import GENERATION_STATES, Identity, VersionCounts, counts_by_version
from services.dashboard.live.queries import ScoredAnswer
from services.dashboard.live.state import Overview
from services.dashboard.live.tiles import tenant_tiles
from services.dashboard.tenant.queries import TenantTotals

STATES = tuple(name for name in GENERATION_STATES if name != "dead_letter")
SIGNAL_STATES = ("joined", PENDING, "late", "retracted", "rejected")
"""Duplicates and conflicts are counted for all tenants together: they have no rows."""


class TenantState(Overview, frozen=True, kw_only=True):
    """Everything that a tenant sees: its own overview and its name."""

    tenant: str


def build_tenant_state(
    *,
    policy: str,
    tenant: str,
    live: int | None,
    totals: TenantTotals,
    scores: Sequence[ScoredAnswer],
    rates: Columns,
) -> TenantState:
    """The state from one look at the database. `scores`: newest first."""
    generations, signals = _generations(totals, tenant), _signals(totals, tenant)
    return TenantState(
        policy=policy,
        tenant=tenant,
        live=live,
        tiles=tenant_tiles(live, scores, generations, signals),
        rewards=answers_over_time(scores),
        generations=generations,
        signals=signals,
        rates=rates,
    )


def _generations(totals: TenantTotals, tenant: str) -> Identity:
    counts = counts_by_version(totals.state_counts.get(tenant, []))
    versions = [
        VersionCounts(version, sum(states.values()), [states.get(name, 0) for name in STATES])
        for version, states in sorted(counts.items(), reverse=True)
    ]
    summed = [sum(row.counts[place] for row in versions) for place in range(len(STATES))]
    return Identity(names=list(STATES), total=sum(summed), counts=summed, problems=[], versions=versions)


def _signals(totals: TenantTotals, tenant: str) -> Identity:
    states = totals.signals.get(tenant, {})
    unseen = max(0, totals.num_received.get(tenant, 0) - sum(states.values()))
    counts = [states.get(name, 0) + (unseen if name == PENDING else 0) for name in SIGNAL_STATES]
    return Identity(names=list(SIGNAL_STATES), total=sum(counts), counts=counts, problems=[])
