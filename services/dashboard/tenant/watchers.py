"""One watcher for all tenants together, and one for each tenant whose pages are open.

    GET /api/state, /events ──▶ Watchers.of(tenant) ──▶ Watcher ──▶ StateReader or TenantReader ──▶ database

All watchers of tenants share one thread, and read only while a page of their tenant is open. Some rows cannot be told apart by tenant,
so their figures are left out: positions and lags of the log, dead letters, steps of the trainer, verdicts of the gate, and decisions of
operators.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import partial

import msgspec

from contracts import assignments
from contracts.assignments import LIVE
from contracts.ledger import PENDING
from runtime.database import Database
from services.dashboard.live import identities
from services.dashboard.live.charts import answers_over_time, rates, window_start
from services.dashboard.live.queries import read_rates
from services.dashboard.live.state import Overview
from services.dashboard.live.tiles import tenant_tiles
from services.dashboard.live.watcher import COST_SHARE, MOST_SECONDS, ThrottledValue, Watcher
from services.dashboard.tenant.queries import TenantTotals, read_scores, read_totals
from services.provider import ProviderSettings

MAX_IDLE = 64
"""Up to this number, watchers without viewers are kept, so that a page that is opened again finds its state."""
STATES = tuple(name for name in identities.GENERATION_STATES if name != "dead_letter")
SIGNAL_STATES = ("joined", PENDING, "late", "retracted", "rejected")
"""Duplicates and conflicts are counted for all tenants together: they have no rows."""


class TenantState(Overview, frozen=True, kw_only=True):
    """Everything that a tenant sees: its own overview and its name."""

    tenant: str


class TenantReader:
    """Reads the states of tenants, each from one snapshot of the database. Used from one thread at a time.

    All tenants together spend at most `COST_SHARE` of the time on reads: each of them gets an equal part.
    """

    def __init__(self, policy: str, database: Database, provider: ProviderSettings | None = None) -> None:
        self._policy, self._provider = policy, provider
        self._database = database
        self._totals: ThrottledValue[TenantTotals] = ThrottledValue()
        self._looks: dict[str, ThrottledValue[TenantState]] = {}
        self._asked_at: dict[str, float] = {}

    def read(self, tenant: str, now: float) -> TenantState:
        """The state of one tenant. Raises Unavailable if the database cannot be read."""
        self._asked_at[tenant] = now
        self._asked_at = {name: at for name, at in self._asked_at.items() if at > now - MOST_SECONDS}
        self._looks = {name: self._looks.get(name) or ThrottledValue() for name in self._asked_at}
        return self._looks[tenant].get(lambda: self._look(tenant, now), COST_SHARE / len(self._looks))

    @property
    def num_watched(self) -> int:
        """Tenants that share the time: those whose state was read in the last `MOST_SECONDS`."""
        return len(self._looks)

    def _look(self, tenant: str, now: float) -> TenantState:
        start = window_start(now)
        with self._database.snapshot() as connection:
            held = assignments.read(connection, self._policy).get(LIVE)
            totals = self._totals.get(lambda: read_totals(connection))
            scores, buckets = read_scores(connection, tenant), read_rates(connection, start, tenant)
        live = held.version if held else None
        generations, signals = _generations(totals, tenant), _signals(totals, tenant)
        return TenantState(
            policy=self._policy,
            tenant=tenant,
            live=live,
            tiles=tenant_tiles(live, scores, generations, signals, self._provider),
            rewards=answers_over_time(scores),
            generations=generations,
            signals=signals,
            rates=rates(buckets, start),
        )


class Watchers:
    """The watchers of one process, by tenant. Belongs to one event loop."""

    def __init__(self, all_tenants: Watcher, reader: TenantReader) -> None:
        self._all_tenants = all_tenants
        self._reader = reader
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="dashboard-own")
        self._own: dict[str, Watcher] = {}

    def of(self, tenant: str | None) -> Watcher:
        """The watcher of one tenant; None: of all tenants together."""
        if tenant is None:
            return self._all_tenants
        if tenant not in self._own:
            if len(self._own) >= MAX_IDLE:
                self._own = {name: held for name, held in self._own.items() if held.num_viewers}
            self._own[tenant] = Watcher(partial(self._reader.read, tenant), executor=self._executor)
        return self._own[tenant]

    def wake(self) -> None:
        """An arm moved: all watchers read and send now."""
        for watcher in (self._all_tenants, *self._own.values()):
            watcher.wake()

    def stop(self) -> None:
        """End every stream, now."""
        for watcher in (self._all_tenants, *self._own.values()):
            watcher.stop()

    def close(self) -> None:
        """Wait for the reads that are under way."""
        self.stop()
        self._all_tenants.close()
        self._executor.shutdown()


def _generations(totals: TenantTotals, tenant: str) -> identities.Identity:
    counts = identities.counts_by_version(totals.state_counts.get(tenant, []))
    summed = {name: sum(states.get(name, 0) for states in counts.values()) for name in STATES}
    return msgspec.structs.replace(
        identities.identity_of(STATES, summed), versions=identities.version_counts(STATES, counts)
    )


def _signals(totals: TenantTotals, tenant: str) -> identities.Identity:
    states = totals.signals.get(tenant, {})
    unseen = max(0, totals.num_received.get(tenant, 0) - sum(states.values()))
    return identities.identity_of(SIGNAL_STATES, {**states, PENDING: states.get(PENDING, 0) + unseen})
