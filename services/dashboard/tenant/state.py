"""Rows of one tenant become what its page draws. Pure.

Left out is what no tenant can be told apart in: positions and lags of the log, dead letters, steps of the trainer, verdicts of
the gate, and what operators decided and wrote.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from contracts.ledger import PENDING
from services.dashboard.live.identities import GENERATION_STATES, Identity, VersionCounts, counts_by_version
from services.dashboard.live.queries import ScoredAnswer
from services.dashboard.live.state import NUM_LATEST, accept_rate, bucketed, mean
from services.dashboard.tenant.queries import TenantTotals

STATES = tuple(name for name in GENERATION_STATES if name != "dead_letter")
SIGNAL_STATES = ("joined", PENDING, "late", "retracted", "rejected")
"""What was refused at the door, or came twice, has no row and is counted for all tenants together."""


class TenantHeadline(msgspec.Struct, frozen=True, kw_only=True):
    """The figures at the top; shares lie in [0, 1], None means no data."""

    accept_rate: float | None
    reward: float | None
    num_latest: int
    num_pending: int
    num_trained: int


class TenantState(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that a tenant sees."""

    policy: str
    tenant: str
    live: int | None
    headline: TenantHeadline
    rewards: dict[str, list[float | None]]
    generations: Identity
    signals: Identity
    rates: dict[str, list[float | None]]


def build_tenant_state(
    *,
    policy: str,
    tenant: str,
    live: int | None,
    totals: TenantTotals,
    scores: Sequence[ScoredAnswer],
    rates: dict[str, list[float | None]],
) -> TenantState:
    """From one look. `scores`: newest first."""
    generations = _generations(totals, tenant)
    labelled = [row.reward for row in scores if row.reward is not None][:NUM_LATEST]
    states = dict(zip(generations.names, generations.counts, strict=True))
    return TenantState(
        policy=policy,
        tenant=tenant,
        live=live,
        headline=TenantHeadline(
            accept_rate=accept_rate(labelled),
            reward=mean(labelled),
            num_latest=len(labelled),
            num_pending=states[PENDING],
            num_trained=states["trained"],
        ),
        rewards=bucketed(scores),
        generations=generations,
        signals=_signals(totals, tenant),
        rates=rates,
    )


def _generations(totals: TenantTotals, tenant: str) -> Identity:
    counts = counts_by_version(totals.standings.get(tenant, []))
    versions = [
        VersionCounts(version, sum(states.values()), [states.get(name, 0) for name in STATES])
        for version, states in sorted(counts.items(), reverse=True)
    ]
    summed = [sum(row.counts[place] for row in versions) for place in range(len(STATES))]
    return Identity(names=list(STATES), total=sum(summed), counts=summed, problems=[], versions=versions)


def _signals(totals: TenantTotals, tenant: str) -> Identity:
    states: Mapping[str, int] = totals.signals.get(tenant, {})
    num_received = totals.num_received.get(tenant, 0)
    unseen = max(0, num_received - sum(states.values()))
    counts = [states.get(name, 0) + (unseen if name == PENDING else 0) for name in SIGNAL_STATES]
    return Identity(names=list(SIGNAL_STATES), total=sum(counts), counts=counts, problems=[])
