"""What the Loop, Policies and Ledger pages ask the database. Every list has a limit, every count an index.

`read_loop` is cheap and runs every second. The others run less often, depending on their cost: `read_totals` counts whole tables, `read_rates`
and `read_learned` read index ranges.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from sqlalchemy import BigInteger, Column, ColumnElement, Connection, Row, Table, cast, desc, func, select

from contracts import assignments, ledger, revocations, rollback
from contracts.ids import parse_sample_key, sample_key
from contracts.records import Generation, decode_shape
from contracts.tables import (
    assignment_change,
    behaviour,
    dead_letter,
    generation,
    generation_count,
    outbox,
    outcome,
    position,
    received_signal,
    score,
    signal,
    swap,
    training_step,
    verdict,
)
from contracts.version_history import read_live_history
from runtime.log.dead_letters import OPEN
from runtime.log.loss_acceptance import num_written_off

MAX_SCORES = 5000
MAX_STEPS = 300
MAX_VERSIONS = 60
MAX_CHANGES = 200
MAX_DEAD_LETTERS = 100

BUCKET_SECONDS = 10
WINDOW_SECONDS = 900
AHEAD_SECONDS = 3600
"""Clocks of other machines may be ahead this much: their events are read, and shown when their time has come."""
MAX_SAMPLES = 400
MAX_LOOKED = 20_000
VERSIONS_BACK = 16
"""The pages look for samples that were made at most this many versions before the version that learned them. Later ones count in the
ledger and are not shown here. The bound lets the index on (state, version) limit the search."""

Rows = list[Row[Any]]


class StateCount(NamedTuple):
    """The number of generations of one version in one effective state."""

    state: str
    version: int
    number: int


class ScoredAnswer(NamedTuple):
    """One scored answer. `reward` None: unlabelled."""

    at: float
    version: int
    reward: float | None


class Totals(NamedTuple):
    """Counts of whole tables at one moment; `identities` checks that they balance."""

    state_counts: list[StateCount]
    signals: ledger.LedgerCounts
    num_unjoined: int
    """Acknowledged signals that episodes has not seen, without those that wait for an answer with their join key."""
    positions: dict[tuple[str, str, int], int]
    """(consumer group, topic, partition) to the next offset."""
    dead_letters: dict[tuple[str, str, str], int]
    """(consumer group, topic, state) to the number of dead letters."""
    outboxes: dict[str, int]
    """Process to the number of messages that its outbox holds for the log."""
    without_row: int = 0
    """Generations that were read from the log and have no row: duplicates, and those of a day that was deleted."""
    num_lost: int = 0
    """Generations that existed only in a log that was lost."""


class Costs(NamedTuple):
    """What a provider's newest labelled answers cost: their rewards, and US dollars of the `num_known` whose cost is known."""

    rewards: list[float]
    num_known: int
    dollars: float


class LoopRows(NamedTuple):
    """The rows of one policy's loop at one moment."""

    arms: dict[str, assignments.Assignment]
    rollback_to: int | None
    live_history: list[int | None]
    revoked: dict[int, revocations.Revocation]
    dead_letters: Rows
    """Open ones: consumer_group, topic, partition, offset, reason, at, num_bytes; newest first."""
    outboxes: dict[str, int]
    """As in `Totals`."""
    scores: list[ScoredAnswer]
    """Scores of answers to users; newest first."""
    steps: Rows
    """at, step, metrics; newest first."""
    verdicts: Rows
    """version, accepted, accuracy, best_accuracy, reason, at; newest first."""
    changes: Rows
    """arm, version, share, writer, reason, at; newest first."""
    swaps: Rows
    """arm, version, at, pause_seconds, gap_seconds; newest first."""

    def version_of(self, arm: str) -> int | None:
        """The version that an arm points at; None without an assignment."""
        return self.arms[arm].version if arm in self.arms else None


class SampleTimes(NamedTuple):
    """The times of one trained sample, in UTC epoch seconds; None: not known."""

    version: int
    """The first version that contains it."""
    created_at: float
    joined_at: float
    signal_at: float | None
    scored_at: float | None
    trained_at: float | None


class UserReward(NamedTuple):
    """What users gave one version: the mean of `num` rewards, as a share of their range."""

    version: int
    num: int
    mean: float


class SentinelValue(NamedTuple):
    """What the gate measured of one version: its value over `num` sentinels; 0: the verdict does not say how many."""

    version: int
    num: int
    value: float
    accepted: bool


def read_loop(connection: Connection, policy: str) -> LoopRows:
    """The rows of one policy, without totals."""
    columns = dead_letter.c["consumer_group", "topic", "partition", "offset", "reason", "at"]
    letters = select(*columns, func.length(dead_letter.c.value).label("num_bytes")).where(dead_letter.c.state == OPEN)
    letters = letters.order_by(dead_letter.c.at.desc(), desc(dead_letter.c.offset)).limit(MAX_DEAD_LETTERS)
    scores = select(*score.c["at", "version", "reward"]).where(score.c.purpose == "user").order_by(score.c.at.desc())
    newest = (training_step.c.epoch.desc(), training_step.c.step.desc())
    steps = select(*training_step.c["at", "step", "metrics"]).order_by(*newest).limit(MAX_STEPS)
    judged = select(*verdict.c["version", "accepted", "accuracy", "best_accuracy", "reason", "at"])
    judged = judged.where(verdict.c.policy == policy).order_by(verdict.c.version.desc()).limit(MAX_VERSIONS)
    swaps = select(*swap.c["arm", "version", "at", "pause_seconds", "gap_seconds"]).where(swap.c.policy == policy)
    return LoopRows(
        arms=assignments.read(connection, policy),
        rollback_to=rollback.read_target(connection, policy),
        live_history=read_live_history(connection, policy),
        revoked=revocations.read(connection, policy),
        dead_letters=list(connection.execute(letters)),
        outboxes=_outboxes(connection),
        scores=[ScoredAnswer(*row) for row in connection.execute(scores.limit(MAX_SCORES))],
        steps=list(connection.execute(steps)),
        verdicts=list(connection.execute(judged)),
        changes=_changes(connection, policy),
        swaps=list(connection.execute(swaps.order_by(swap.c.id.desc()).limit(MAX_CHANGES))),
    )


def read_costs(connection: Connection, num: int) -> Costs:
    """Of the newest labelled answers to users, up to `num`."""
    scored = select(*score.c["key", "reward"]).where(score.c.purpose == "user", score.c.reward.is_not(None))
    newest = connection.execute(scored.order_by(score.c.at.desc()).limit(num))
    rewards = {row.key: row.reward for row in reversed(list(newest))}  # the last revision of each counts
    keys = {parse_sample_key(key) for key in rewards}
    where = generation.c.completion_id.in_([completion_id for completion_id, _ in keys])
    found = connection.execute(select(*generation.c["completion_id", "choice", "record"]).where(where))
    provided = [
        decode_shape(Generation, row.record).provided for row in found if (row.completion_id, row.choice) in keys
    ]
    # The first choice of an answer carries the cost of all.
    known = [about.cost for about in provided if about is not None and about.cost is not None]
    return Costs(list(rewards.values()), len(known), sum(known))


def read_positions(connection: Connection) -> dict[tuple[str, str, int], int]:
    """(consumer group, topic, partition) to the next offset."""
    rows = connection.execute(select(*position.c["consumer_group", "topic", "partition", "next_offset"]))
    return {(row.consumer_group, row.topic, row.partition): row.next_offset for row in rows}


def read_totals(connection: Connection) -> Totals:
    """All counts of the two identities."""
    # Only columns of ix_generation_state, so that no row is touched.
    states = (ledger.effective_state().label("state"), generation.c.version)
    letters = dead_letter.c["consumer_group", "topic", "state"]
    dead = connection.execute(select(*letters, func.count().label("number")).group_by(*letters))
    num_unjoined = _num_rows(connection, received_signal) - _num_rows(connection, signal)
    return Totals(
        state_counts=[StateCount(*row) for row in connection.execute(select(*states, func.count()).group_by(*states))],
        signals=ledger.signal_counts(connection),
        num_unjoined=num_unjoined - ledger.num_waiting(connection),
        positions=read_positions(connection),
        dead_letters={(row.consumer_group, row.topic, row.state): row.number for row in dead},
        outboxes=_outboxes(connection),
        without_row=sum(connection.execute(select(generation_count.c["count"])).scalars()),
        num_lost=num_written_off(connection),
    )


def read_rates(connection: Connection, start: float, tenant: str | None = None) -> dict[str, dict[int, int]]:
    """Series to bucket number since `start` to the number of events in the bucket. `tenant` None: all tenants."""
    times = {"generations": generation.c.created_at, "signals": signal.c.received_at, "experiences": score.c.at}
    return {name: _bucketed(connection, at, start, tenant) for name, at in times.items()}


def read_learned(connection: Connection, versions: Collection[int]) -> list[SampleTimes]:
    """Samples that one of these versions was the first to learn."""
    if not versions:
        return []
    columns = generation.c["completion_id", "choice", "created_at", "joined_at", "state_version"]
    trained = select(*columns).where(
        generation.c.state == "trained",
        generation.c.version <= max(versions),
        generation.c.version >= min(versions) - VERSIONS_BACK,
    )
    newest = trained.order_by(generation.c.version.desc()).limit(MAX_LOOKED).subquery()
    rows = list(connection.execute(select(newest).where(newest.c.state_version.in_(versions)).limit(MAX_SAMPLES)))
    keys = [sample_key(row.completion_id, row.choice) for row in rows]
    said = select(*signal.c["completion_id", "choice"], func.min(signal.c.received_at).label("at"))
    said = said.where(signal.c.completion_id.in_([row.completion_id for row in rows]), signal.c.revision.is_not(None))
    firsts = connection.execute(said.group_by(signal.c.completion_id, signal.c.choice))
    signalled = {sample_key(row.completion_id, row.choice): row.at for row in firsts}
    scored = _first(connection, score, score.c.key.in_(keys), score.c.reward.is_not(None))
    learned = _first(connection, outcome, outcome.c.key.in_(keys), outcome.c.state == "trained")
    known = [(signalled.get(key), scored.get(key), learned.get(key)) for key in keys]
    return [
        SampleTimes(row.state_version, row.created_at, row.joined_at, *times)
        for row, times in zip(rows, known, strict=True)
    ]


def read_user_rewards(connection: Connection) -> list[UserReward]:
    """The mean reward of users' answers of the newest versions, over all tasks; see `rewards/monitors/`."""
    columns = behaviour.c
    sums = select(columns.version, func.sum(columns.num).label("num"), func.sum(columns.total).label("total"))
    mine = sums.where(columns.metric == "reward", columns.cluster == "").group_by(columns.version)
    rows = connection.execute(mine.order_by(columns.version.desc()).limit(MAX_VERSIONS))
    return [UserReward(row.version, int(row.num), row.total / int(row.num)) for row in rows if row.num]


def read_sentinel_values(connection: Connection, policy: str) -> list[SentinelValue]:
    """What the gate measured of the newest versions."""
    columns = verdict.c["version", "accepted", "accuracy", "details"]
    statement = select(*columns).where(verdict.c.policy == policy, verdict.c.accuracy.is_not(None))
    rows = connection.execute(statement.order_by(verdict.c.version.desc()).limit(MAX_VERSIONS))
    return [SentinelValue(row.version, num_sentinels(row.details), row.accuracy, row.accepted) for row in rows]


def num_sentinels(details: Mapping[str, Any]) -> int:
    """How many sentinels a verdict graded, over all tasks."""
    return sum(task.get("num") or 0 for task in details.get("tasks", {}).values())


def _outboxes(connection: Connection) -> dict[str, int]:
    statement = select(outbox.c.process, func.sum(outbox.c.num_messages)).group_by(outbox.c.process)
    return {process: int(num) for process, num in connection.execute(statement)}


def _num_rows(connection: Connection, table: Table) -> int:
    return connection.execute(select(func.count()).select_from(table)).scalar_one()


def _changes(connection: Connection, policy: str) -> Rows:
    columns = assignment_change.c
    changes: Rows = []
    for arm in (*assignments.SLOTS, assignments.PROVIDER, assignments.TRAINING):
        statement = select(*columns["arm", "version", "share", "writer", "reason", "at"])
        newest = statement.where(columns.policy == policy, columns.arm == arm).order_by(columns.epoch.desc())
        changes += connection.execute(newest.limit(MAX_CHANGES))
    return sorted(changes, key=lambda row: float(row.at), reverse=True)


def _bucketed(connection: Connection, at: Column[float], start: float, tenant: str | None) -> dict[int, int]:
    # Whole seconds first: PostgreSQL rounds and SQLite truncates, which moves an event by at most half a second.
    bucket = (cast(at - start, BigInteger) // BUCKET_SECONDS).label("bucket")
    # A time in the far future has no bucket, and its number is too large for PostgreSQL.
    shown = at.between(start, start + WINDOW_SECONDS + AHEAD_SECONDS)
    statement = select(bucket, func.count()).select_from(at.table).where(shown).group_by(bucket)
    if tenant is not None:
        statement = statement.where(at.table.c.tenant == tenant)
    return {number: count for number, count in connection.execute(statement)}  # noqa: C416 a row is not a tuple for dict()


def _first(connection: Connection, table: Table, *conditions: ColumnElement[bool]) -> dict[str, float]:
    """Sample key to the time of its first row that meets the conditions."""
    first = select(table.c.key, func.min(table.c.at).label("at")).where(*conditions).group_by(table.c.key)
    return {row.key: row.at for row in connection.execute(first)}
