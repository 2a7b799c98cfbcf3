"""What the pages that follow the loop ask of the database. Every list has a limit, every count an index.

`read_loop` is cheap and read every second; `read_totals` counts whole tables, and is read as often as that costs.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, Connection, Row, Table, desc, func, select

from contracts import assignments, ledger, revocations, rollback
from contracts.tables import (
    assignment_change,
    dead_letter,
    generation,
    generation_count,
    outbox,
    position,
    received_signal,
    score,
    signal,
    swap,
    training_step,
    verdict,
)
from runtime.log.dead_letters import OPEN
from runtime.log.loss_acceptance import num_written_off

MAX_SCORES = 5000
MAX_STEPS = 300
MAX_VERSIONS = 60
MAX_CHANGES = 200
MAX_DEAD_LETTERS = 100

Rows = list[Row[Any]]


class StateCount(NamedTuple):
    """How many generations of a version have an effective state."""

    state: str
    version: int
    number: int


class ScoredAnswer(NamedTuple):
    """One scored answer. `reward` None: unlabelled."""

    at: float
    version: int
    reward: float | None


class Totals(NamedTuple):
    """Whole tables, counted at one moment: the identities are made of these."""

    state_counts: list[StateCount]
    signals: ledger.LedgerCounts
    num_unjoined: int
    """Acknowledged signals that episodes has not seen, except those that wait for the answer of their key."""
    positions: dict[tuple[str, str, int], int]
    """(consumer group, topic, partition) to the next offset."""
    dead_letters: dict[tuple[str, str, str], int]
    """(consumer group, topic, state) to how many."""
    outboxes: dict[str, int]
    """Process to how many messages wait for the log."""
    without_row: int = 0
    """Records of generations that were read and have no row: sent twice, or of a day that was dropped."""
    num_lost: int = 0
    """Generations that only a log had that was lost."""


class LoopRows(NamedTuple):
    """The database at one moment. Each list has the columns its query names, in the order its comment gives."""

    arms: dict[str, assignments.Assignment]
    rollback_to: int | None
    live_history: list[int | None]
    revoked: dict[int, revocations.Revocation]
    positions: dict[tuple[str, str, int], int]
    """(consumer group, topic, partition) to the next offset."""
    dead_letters: Rows
    """Open ones. consumer_group, topic, partition, offset, reason, num_bytes, at; newest first."""
    outboxes: dict[str, int]
    """Process to how many messages wait for the log."""
    scores: list[ScoredAnswer]
    """Of users' answers; newest first."""
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


def read_loop(connection: Connection, policy: str) -> LoopRows:
    """What the pages show of a policy, except totals and what the log and the weight store know."""
    return LoopRows(
        arms=assignments.read(connection, policy),
        rollback_to=rollback.read_target(connection, policy),
        live_history=rollback.read_live_history(connection, policy),
        revoked=revocations.read(connection, policy),
        positions=_positions(connection),
        dead_letters=_dead_letters(connection),
        outboxes=_counts(connection, outbox.c.process),
        scores=_scores(connection),
        steps=_steps(connection),
        verdicts=_verdicts(connection, policy),
        changes=_changes(connection, policy),
        swaps=_swaps(connection, policy),
    )


def read_totals(connection: Connection) -> Totals:
    """Every count of the two identities."""
    return Totals(
        state_counts=_state_counts(connection),
        signals=ledger.signal_counts(connection),
        num_unjoined=_num_rows(connection, received_signal)
        - _num_rows(connection, signal)
        - ledger.num_waiting(connection),
        positions=_positions(connection),
        dead_letters=_num_dead_letters(connection),
        outboxes=_counts(connection, outbox.c.process),
        without_row=sum(connection.execute(select(generation_count.c["count"])).scalars()),
        num_lost=num_written_off(connection),
    )


def _counts(connection: Connection, column: ColumnElement[str]) -> dict[str, int]:
    return {row[0]: row[1] for row in connection.execute(select(column, func.count()).group_by(column))}


def _num_rows(connection: Connection, table: Table) -> int:
    return connection.execute(select(func.count()).select_from(table)).scalar_one()


def _state_counts(connection: Connection) -> list[StateCount]:
    # Of columns of ix_generation_state only, so that no row is touched.
    columns = (ledger.effective_state().label("state"), generation.c.version)
    return [StateCount(*row) for row in connection.execute(select(*columns, func.count()).group_by(*columns))]


def _positions(connection: Connection) -> dict[tuple[str, str, int], int]:
    columns = (position.c.consumer_group, position.c.topic, position.c.partition, position.c.next_offset)
    return {(group, topic, part): offset for group, topic, part, offset in connection.execute(select(*columns))}


def _dead_letters(connection: Connection) -> Rows:
    columns = dead_letter.c
    statement = (
        select(
            columns.consumer_group,
            columns.topic,
            columns.partition,
            columns.offset,
            columns.reason,
            func.length(columns.value).label("num_bytes"),
            columns.at,
        )
        .where(columns.state == OPEN)
        .order_by(columns.at.desc(), desc(columns.offset))
        .limit(MAX_DEAD_LETTERS)
    )
    return list(connection.execute(statement))


def _num_dead_letters(connection: Connection) -> dict[tuple[str, str, str], int]:
    columns = (dead_letter.c.consumer_group, dead_letter.c.topic, dead_letter.c.state)
    statement = select(*columns, func.count()).group_by(*columns)
    return {(group, topic, state): count for group, topic, state, count in connection.execute(statement)}


def _scores(connection: Connection) -> list[ScoredAnswer]:
    statement = (
        select(score.c.at, score.c.version, score.c.reward)
        .where(score.c.purpose == "user")
        .order_by(score.c.at.desc())
        .limit(MAX_SCORES)
    )
    return [ScoredAnswer(*row) for row in connection.execute(statement)]


def _steps(connection: Connection) -> Rows:
    newest = (training_step.c.epoch.desc(), training_step.c.step.desc())
    columns = (training_step.c.at, training_step.c.step, training_step.c.metrics)
    return list(connection.execute(select(*columns).order_by(*newest).limit(MAX_STEPS)))


def _verdicts(connection: Connection, policy: str) -> Rows:
    statement = (
        select(
            verdict.c.version,
            verdict.c.accepted,
            verdict.c.accuracy,
            verdict.c.best_accuracy,
            verdict.c.reason,
            verdict.c.at,
        )
        .where(verdict.c.policy == policy)
        .order_by(verdict.c.version.desc())
        .limit(MAX_VERSIONS)
    )
    return list(connection.execute(statement))


def _changes(connection: Connection, policy: str) -> Rows:
    columns = assignment_change.c
    changes: Rows = []
    for arm in (assignments.LIVE, assignments.CANDIDATE, assignments.TRAINING):
        statement = (
            select(columns.arm, columns.version, columns.share, columns.writer, columns.reason, columns.at)
            .where(columns.policy == policy, columns.arm == arm)
            .order_by(columns.epoch.desc())
            .limit(MAX_CHANGES)
        )
        changes += connection.execute(statement)
    return sorted(changes, key=lambda row: float(row.at), reverse=True)


def _swaps(connection: Connection, policy: str) -> Rows:
    statement = (
        select(swap.c.arm, swap.c.version, swap.c.at, swap.c.pause_seconds, swap.c.gap_seconds)
        .where(swap.c.policy == policy)
        .order_by(swap.c.id.desc())
        .limit(MAX_CHANGES)
    )
    return list(connection.execute(statement))
