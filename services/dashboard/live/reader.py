"""Reads the state of the whole loop from the database, the log and the weight store.

A part that cannot be read hides no other: the fault is counted and logged, and the rest is shown. The age of the last look at the ledger
is a metric of its own, so that its alarm also rings when every look fails.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress

from sqlalchemy import Connection

from contracts import heartbeats, train_points
from contracts.assignments import PROVIDER, Assignment
from contracts.errors import InvalidSettings, NotFound, Unavailable, WeightsRefused
from contracts.event_log import EventLog
from runtime import metrics
from runtime.database import Database
from runtime.learning_ledger import LearningFindings, check_learning
from runtime.lease import unheld_seconds
from runtime.log.dead_letters import OPEN
from runtime.log.loss_detection import EVIDENCE
from services.dashboard.formatting import note_fault
from services.dashboard.live import queries
from services.dashboard.live.charts import Flow, acceptance, legs, newest_live, rates, step_buckets, window_start
from services.dashboard.live.identities import Identities, identities
from services.dashboard.live.pulses import Pulses
from services.dashboard.live.state import State, build_state
from services.dashboard.live.tiles import NUM_LATEST, FrontFigures
from services.dashboard.live.timeline import Published
from services.dashboard.live.traffic import CONSUMERS, Traffic, TrafficReader
from services.dashboard.live.watcher import ThrottledValue
from services.dashboard.rollout.queries import read_levels, read_rollout, read_sides
from services.dashboard.rollout.state import Rollout, Series, build_rollout
from services.provider import ProviderSettings
from weights.stores.store import WeightStore

_LEARNING_SHARE, _LEARNING_SECONDS = 0.01, 600.0
"""Of the time for the identities about learning, which read all scores; and the longest time between two looks at them."""


class StateReader:
    """Reads the state of one policy's loop. Used from one thread at a time. `has_trains`: [train] enabled; `provider`: who answers, if no version does."""

    def __init__(
        self,
        policy: str,
        database: Database,
        event_log: EventLog,
        store: WeightStore,
        *,
        has_trains: bool = True,
        provider: ProviderSettings | None = None,
    ) -> None:
        self._policy, self._provider = policy, provider
        self._costs: ThrottledValue[queries.Costs] = ThrottledValue()
        self._has_trains = has_trains
        self._database = database
        self._traffic = TrafficReader(event_log)
        self._store = store
        self._published: dict[int, Published] = {}
        self._totals: ThrottledValue[queries.Totals] = ThrottledValue()
        self._learning: ThrottledValue[LearningFindings] = ThrottledValue(most_seconds=_LEARNING_SECONDS)
        self._flow: ThrottledValue[Flow] = ThrottledValue()
        self._listed: ThrottledValue[dict[int, Published]] = ThrottledValue()
        self._series: ThrottledValue[Series] = ThrottledValue()
        self._subject = ""
        self._pulses = Pulses()
        self._began_at = self._looked_at = time.monotonic()
        metrics.LEDGER_LOOK_AGE.labels(policy).set_function(lambda: time.monotonic() - self._looked_at)

    def read(self, now: float) -> State:
        """The state of the whole loop. Raises Unavailable if the database cannot be read."""
        topics, ledger = self._check_ledger(now)
        # The page is read afterwards: a row that it cannot show must not keep the ledger from being checked.
        versions = self._listed.get(self._versions)
        with self._database.snapshot() as connection:
            rows = queries.read_loop(connection, self._policy)
            rollout = self._read_rollout(connection, rows.arms, now)
            processes = self._pulses.statuses(heartbeats.read(connection, self._policy), now)
            front = self._front(connection)
        flow = self._flow.get(lambda: self._read_flow(rows, versions, now))
        shown = {"policy": self._policy, "rollout": rollout, "processes": processes}
        return build_state(rows, topics, versions, ledger, flow, now=now, front=front, **shown)

    def _front(self, connection: Connection) -> FrontFigures | None:
        if self._provider is None:
            return None
        return FrontFigures(self._provider, self._costs.get(lambda: queries.read_costs(connection, NUM_LATEST)))

    def _check_ledger(self, now: float) -> tuple[dict[str, Traffic], Identities]:
        """Check the identities, and set the metrics that alarms look at."""
        with self._database.snapshot() as connection:
            positions = queries.read_positions(connection)
            totals = self._totals.get(lambda: queries.read_totals(connection))
            learning = self._learning.get(lambda: check_learning(connection, now), _LEARNING_SHARE)
            unheld = unheld_seconds(connection, self._policy)
        missing = time.monotonic() - self._began_at if unheld is None else unheld
        missing = 0.0 if self._provider else missing
        metrics.TRAINER_MISSING_SECONDS.labels(self._policy).set(missing)
        # The log is read after the positions: records appended between the two count as waiting.
        topics = {topic: self._traffic.read(topic, positions, now) for topic in CONSUMERS}
        ledger = identities(totals, topics, learning)
        _set_metrics(ledger, topics, totals, positions)
        self._looked_at = time.monotonic()
        return topics, ledger

    def _read_rollout(self, connection: Connection, arms: Mapping[str, Assignment], now: float) -> Rollout:
        found = read_rollout(connection, self._policy, now)
        subject = train_points.primary_of(found.trains[0].version) if found.trains else ""

        def read_series() -> Series:
            return Series(
                train_points.read(connection, self._policy, subject),
                train_points.read(connection, self._policy, train_points.LIFT),
                read_levels(connection, self._policy, now),
                read_sides(connection, self._policy) if PROVIDER in arms else {},
            )

        if subject != self._subject:
            self._subject, self._series = subject, ThrottledValue()
        return build_rollout(found, arms, self._series.get(read_series), now, is_enabled=self._has_trains)

    def _read_flow(self, rows: queries.LoopRows, versions: dict[int, Published], now: float) -> Flow:
        start, live = window_start(now), newest_live(rows.changes)
        made = {number: kept.created_at for number, kept in versions.items()}
        try:
            with self._database.snapshot() as connection:
                buckets = queries.read_rates(connection, start) | {
                    "steps": step_buckets((row.at for row in rows.steps), start)
                }
                judged = queries.read_sentinel_values(connection, self._policy)
                by_version = acceptance(queries.read_user_rewards(connection), judged)
                return Flow(
                    rates(buckets, start), legs(queries.read_learned(connection, list(live)), made, live), by_version
                )
        except Unavailable:
            raise
        except Exception as error:  # noqa: BLE001 a row that no chart can draw must not hide everything else
            note_fault("flow", error)
            return Flow(rates({}, start), legs([], made, live), acceptance([], []))

    def _versions(self) -> dict[int, Published]:
        policy = self._policy
        # Without the store, new versions are shown without sizes. The time that a failed read took delays the next one.
        with suppress(Unavailable, InvalidSettings, WeightsRefused):
            for version in self._store.versions(policy)[-queries.MAX_VERSIONS :]:
                # The manifest was removed or is damaged: the version is shown without sizes.
                with suppress(NotFound, WeightsRefused):
                    if version not in self._published:
                        self._published[version] = Published.of(self._store.manifest(policy, version))
        return self._published


def _set_metrics(
    ledger: Identities,
    topics: Mapping[str, Traffic],
    totals: queries.Totals,
    positions: Mapping[tuple[str, str, int], int],
) -> None:
    """Set the metrics of this process."""
    for kind, identity in ledger.by_kind.items():
        metrics.LEDGER_UNEXPLAINED.labels(kind).set(len(identity.problems))
    num_open = Counter[str]()
    for (group, _, state), num in totals.dead_letters.items():
        num_open[group] += num if state == OPEN else 0
    for group, num in num_open.items():
        metrics.DEAD_LETTERS_OPEN.labels(group).set(num)
    for topic, group in CONSUMERS.items():
        for lag in topics[topic].partitions:
            if lag.next_offset is not None:
                metrics.LAG_RECORDS.labels(group, topic, str(lag.partition)).set(max(0, lag.end - lag.next_offset))
    for (group, topic, partition), next_offset in positions.items():
        if group == EVIDENCE:  # it reads topics of others, from the moment on at which it began
            end = next((lag.end for lag in topics[topic].partitions if lag.partition == partition), next_offset)
            metrics.LAG_RECORDS.labels(group, topic, str(partition)).set(max(0, end - next_offset))
