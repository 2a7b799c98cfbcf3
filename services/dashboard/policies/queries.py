"""One version: its verdict, its moves, and which samples and signals it was the first to learn."""

from __future__ import annotations

from typing import Any, NamedTuple

from sqlalchemy import Connection, Row, Select, and_, func, select, tuple_

from contracts import revocations
from contracts.ledger import effective_state
from contracts.revocations import Revocation
from contracts.tables import alarm, assignment_change, generation, signal, swap, verdict
from services.dashboard.live.loop.queries import VERSIONS_BACK

PAGE = 50
MAX_COUNTED = 50_000
MAX_MOVES = 50

Key = tuple[str, int]


class VersionFacts(NamedTuple):
    """What the database knows of a version."""

    verdict: Any
    """A row: accepted, accuracy, best_accuracy (of what was live), reason, details, at; or None."""
    moves: list[Row[Any]]
    """arm, share, writer, reason, at; newest first."""
    swaps: list[Row[Any]]
    """arm, at, stage_seconds, pause_seconds, gap_seconds; newest first."""
    revoked: Revocation | None
    """Why it never serves again, if a rollback took it back."""
    alarms: list[Row[Any]]
    """What its answers did that earlier versions' did not: task, name, cluster, at, details; oldest first."""


class LearnedCounts(NamedTuple):
    """What a version learned first, counted up to `MAX_COUNTED`."""

    num_samples: int
    makers: list[tuple[int, int]]
    """(the version that made the samples, how many)."""
    signals: list[tuple[str, int]]
    """(name of a signal, how many)."""
    tasks: list[tuple[str, int]]
    """(task, how many samples)."""


class LearnedSample(NamedTuple):
    """One learned sample; `signals` are the names of what it was learned from."""

    completion_id: str
    choice: int
    task: str
    version: int
    created_at: float
    signals: list[str]


def read_facts(connection: Connection, policy: str, version: int) -> VersionFacts:
    """Verdict, moves, swaps, revocation and alarms of a version."""
    columns = verdict.c
    judged = select(
        columns.accepted, columns.accuracy, columns.best_accuracy, columns.reason, columns.details, columns.at
    )
    change = assignment_change.c
    moves = select(change.arm, change.share, change.writer, change.reason, change.at).where(
        change.policy == policy, change.version == version
    )
    swaps = select(swap.c.arm, swap.c.at, swap.c.stage_seconds, swap.c.pause_seconds, swap.c.gap_seconds).where(
        swap.c.policy == policy, swap.c.version == version
    )
    alarms = select(alarm.c.task, alarm.c.name, alarm.c.cluster, alarm.c.at, alarm.c.details)
    return VersionFacts(
        connection.execute(judged.where(verdict.c.policy == policy, verdict.c.version == version)).one_or_none(),
        list(connection.execute(moves.order_by(change.at.desc()).limit(MAX_MOVES))),
        list(connection.execute(swaps.order_by(swap.c.id.desc()).limit(MAX_MOVES))),
        revocations.read(connection, policy).get(version),
        list(connection.execute(alarms.where(alarm.c.version == version).order_by(alarm.c.at).limit(MAX_MOVES))),
    )


def newest_details(connection: Connection, policy: str) -> dict[str, Any] | None:
    """What the newest verdict that compared anything rests on."""
    statement = (
        select(verdict.c.details).where(verdict.c.policy == policy).order_by(verdict.c.at.desc()).limit(MAX_MOVES)
    )
    for details in connection.execute(statement).scalars():
        if any(task.get("comparisons") for task in details.get("tasks", {}).values()):
            return dict(details)
    return None


def count_learned(connection: Connection, version: int) -> LearnedCounts:
    """How many samples and signals a version was the first to learn."""
    counted = _learned(version).limit(MAX_COUNTED).subquery()
    makers = select(counted.c.version, func.count()).group_by(counted.c.version).order_by(counted.c.version)
    tasks = select(counted.c.task, func.count()).group_by(counted.c.task).order_by(counted.c.task)
    names = (
        select(signal.c.name, func.count())
        .join(counted, and_(signal.c.completion_id == counted.c.completion_id, signal.c.choice == counted.c.choice))
        .where(signal.c.revision.is_not(None), signal.c.revision <= counted.c.state_revision)
        .group_by(signal.c.name)
        .order_by(signal.c.name)
    )
    made = [(row[0], row[1]) for row in connection.execute(makers)]
    return LearnedCounts(
        sum(number for _, number in made),
        made,
        [(row[0], row[1]) for row in connection.execute(names)],
        [(row[0], row[1]) for row in connection.execute(tasks)],
    )


def list_learned(
    connection: Connection, version: int, after: Key | None = None
) -> tuple[list[LearnedSample], Key | None]:
    """One page of them, newest first, and where the next one begins; None if there is none."""
    columns = generation.c
    statement = _learned(version).order_by(columns.completion_id.desc(), columns.choice.desc()).limit(PAGE + 1)
    if after is not None:
        statement = statement.where(tuple_(columns.completion_id, columns.choice) < tuple_(*after))
    rows = list(connection.execute(statement))
    shown = rows[:PAGE]
    names: dict[Key, list[str]] = {}
    said = (
        select(signal.c.completion_id, signal.c.choice, signal.c.name)
        .where(signal.c.completion_id.in_([row.completion_id for row in shown]), signal.c.revision.is_not(None))
        .order_by(signal.c.received_at)
    )
    for row in connection.execute(said):
        names.setdefault((row.completion_id, row.choice), []).append(row.name)
    samples = [
        LearnedSample(
            row.completion_id,
            row.choice,
            row.task,
            row.version,
            row.created_at,
            names.get((row.completion_id, row.choice), []),
        )
        for row in shown
    ]
    return samples, (samples[-1].completion_id, samples[-1].choice) if len(rows) > PAGE else None


def _learned(version: int) -> Select[Any]:
    # The bounds on the maker are for the index on (state, version): no index has the version that learned.
    columns = generation.c
    return select(
        columns.completion_id,
        columns.choice,
        columns.task,
        columns.version,
        columns.created_at,
        columns.state_revision,
    ).where(
        columns.state == "trained",
        effective_state() == "trained",
        columns.version <= version,
        columns.version >= version - VERSIONS_BACK,
        columns.state_version == version,
    )
