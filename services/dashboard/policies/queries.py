"""One version: its verdict, its moves, and the samples and signals that it was the first to learn; and the gate of each task."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

from sqlalchemy import ColumnElement, Connection, Row, Select, and_, func, select, tuple_

from contracts import revocations
from contracts.errors import InvalidSettings, InvalidTask
from contracts.ledger import effective_state
from contracts.revocations import Revocation
from contracts.tables import alarm, assignment_change, generation, signal, swap, verdict
from contracts.tasks.loading import load_tasks
from runtime.sentinels import read_sentinels, sentinels_of_home
from services.dashboard.live.queries import VERSIONS_BACK

PAGE = 50
MAX_COUNTED = 50_000
MAX_MOVES = 50

Key = tuple[str, int]
Tally = list[tuple[Any, int]]
"""(value of a column, number of samples), in the order of the values."""


class VersionFacts(NamedTuple):
    """What the database knows about a version."""

    verdict: Any
    """A row: accepted, accuracy, best_accuracy (of the version that was live), reason, details, at; or None."""
    moves: list[Row[Any]]
    """arm, share, writer, reason, at; newest first."""
    swaps: list[Row[Any]]
    """arm, at, stage_seconds, pause_seconds, gap_seconds; newest first."""
    revoked: Revocation | None
    """Why it never serves again, if a rollback revoked it."""
    alarms: list[Row[Any]]
    """What its answers do more often than earlier versions' answers: task, name, cluster, at, details; oldest first."""


class LearnedCounts(NamedTuple):
    """What a version was the first to learn, counted up to `MAX_COUNTED` samples."""

    num_samples: int
    makers: Tally
    """By the version that made the samples."""
    signals: Tally
    """By their names."""
    tasks: Tally


class LearnedSample(NamedTuple):
    """One learned sample, as `_learned` finds it, and the names of the signals about it."""

    completion_id: str
    choice: int
    task: str
    version: int
    created_at: float
    signals: list[str]


class TaskGate(NamedTuple):
    """The gate of one task. `sees`: the smallest difference of shares that the newest verdict could detect; None: not known."""

    task: str
    alarm: Literal["", "ungated", "unreadable"]
    says: str
    sees: float | None = None


def read_facts(connection: Connection, policy: str, version: int) -> VersionFacts:
    """Verdict, moves, swaps, revocation and alarms of a version."""
    judged = select(*verdict.c["accepted", "accuracy", "best_accuracy", "reason", "details", "at"])
    moves = select(*assignment_change.c["arm", "share", "writer", "reason", "at"])
    swaps = select(*swap.c["arm", "replica", "at", "stage_seconds", "pause_seconds", "gap_seconds"])
    alarms = select(*alarm.c["task", "name", "cluster", "at", "details"]).where(alarm.c.version == version)

    def mine(statement: Select[Any], columns: Any, *order: ColumnElement[Any]) -> list[Row[Any]]:
        wanted = statement.where(columns.policy == policy, columns.version == version)
        return list(connection.execute(wanted.order_by(*order).limit(MAX_MOVES)))

    return VersionFacts(
        next(iter(mine(judged, verdict.c)), None),
        mine(moves, assignment_change.c, assignment_change.c.at.desc()),
        mine(swaps, swap.c, swap.c.id.desc()),
        revocations.read(connection, policy).get(version),
        list(connection.execute(alarms.order_by(alarm.c.at).limit(MAX_MOVES))),
    )


def newest_details(connection: Connection, policy: str) -> dict[str, Any] | None:
    """The details of the newest verdict that compared anything."""
    newest = select(verdict.c.details).where(verdict.c.policy == policy).order_by(verdict.c.at.desc())
    for details in connection.execute(newest.limit(MAX_MOVES)).scalars():
        if any(task.get("comparisons") for task in details.get("tasks", {}).values()):
            return dict(details)
    return None


def count_learned(connection: Connection, version: int) -> LearnedCounts:
    """How many samples and signals a version was the first to learn."""
    counted = _learned(version).limit(MAX_COUNTED).subquery()

    def tally(column: ColumnElement[Any], *about: ColumnElement[bool]) -> Tally:
        statement = select(column, func.count()).select_from(counted).group_by(column).order_by(column)
        if about:
            statement = statement.join(signal, and_(*about))
        return [(row[0], row[1]) for row in connection.execute(statement)]

    about = (
        signal.c.completion_id == counted.c.completion_id,
        signal.c.choice == counted.c.choice,
        signal.c.revision.is_not(None),
        signal.c.revision <= counted.c.state_revision,
    )
    makers = tally(counted.c.version)
    num_samples = sum(number for _, number in makers)
    return LearnedCounts(num_samples, makers, tally(signal.c.name, *about), tally(counted.c.task))


def list_learned(
    connection: Connection, version: int, after: Key | None = None
) -> tuple[list[LearnedSample], Key | None]:
    """One page of these samples, newest first, and the key after which the next page begins; None after the last page."""
    columns = generation.c
    statement = _learned(version).order_by(columns.completion_id.desc(), columns.choice.desc()).limit(PAGE + 1)
    if after is not None:
        statement = statement.where(tuple_(columns.completion_id, columns.choice) < tuple_(*after))
    rows = list(connection.execute(statement))
    ids = {row.completion_id for row in rows}
    about = select(*signal.c["completion_id", "choice", "name"]).where(
        signal.c.completion_id.in_(ids), signal.c.revision.is_not(None)
    )
    names: defaultdict[Key, list[str]] = defaultdict(list)
    for row in connection.execute(about.order_by(signal.c.received_at)):
        names[row.completion_id, row.choice].append(row.name)
    samples = [LearnedSample._make([*row[:-1], names[row.completion_id, row.choice]]) for row in rows[:PAGE]]
    return samples, (samples[-1].completion_id, samples[-1].choice) if len(rows) > PAGE else None


def read_gates(task_files: tuple[Path, ...], home: Path, newest: Mapping[str, Any] | None) -> list[TaskGate]:
    """One row for each task, or a single row with the mistake in the files. `newest`: details of the newest verdict."""
    try:
        tasks = load_tasks(task_files)
        sentinels = read_sentinels(sentinels_of_home(home), tasks)
    except (InvalidTask, InvalidSettings) as error:
        return [TaskGate("this home", "unreadable", error.message)]
    found = []
    for name, task in tasks.items():
        if name in sentinels.ungated:
            says = f"{sentinels.ungated[name]}: versions ship however bad they are at it"
            found.append(TaskGate(name, "ungated", says))
        else:
            says = f"{', '.join(task.gate_graders)} on {len(sentinels.places_of(name))} sentinels"
            found.append(TaskGate(name, "", says, _sees(name, newest)))
    return found


def _learned(version: int) -> Select[Any]:
    # No index contains the version that learned. The bounds on the maker let the index on (state, version) limit the search.
    columns = generation.c
    names = columns["completion_id", "choice", "task", "version", "created_at", "state_revision"]
    return select(*names).where(
        columns.state == "trained",
        effective_state() == "trained",
        columns.version <= version,
        columns.version >= version - VERSIONS_BACK,
        columns.state_version == version,
    )


def _sees(task: str, newest: Mapping[str, Any] | None) -> float | None:
    """The largest over all comparisons but that with the train: the verdict needs each of them."""
    comparisons = ((newest or {}).get("tasks", {}).get(task) or {}).get("comparisons", [])
    least = [item["least_difference"] for item in comparisons if item.get("reference") != "train"]
    return max((value for value in least if value is not None), default=None)
