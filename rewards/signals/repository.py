"""SQL of voters, paces and delays. Rows are locked in the order of their keys, so that replicas cannot deadlock."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, Table, select, update

from contracts.tables import behaviour, heard, signal_delay, submitter, vote, vote_pace
from contracts.tables.statements import add_all, among, delete_free, insert_all_new, update_all
from rewards.repository import add_behaviour
from rewards.signals.bursts import VotePace
from rewards.signals.people import Agreement, Person
from rewards.signals.silence import HeardKey, Tally
from rewards.signals.votes import DelayName, PaceName, PersonName, VoteDecision
from rewards.sums import Sums

FORGOTTEN_AT_ONCE = 2_000
"""Rows deleted per transaction, which also holds locks on sums that all replicas add to."""
_RESPONSES = ("response", "response_asked")
"""Metrics, indexed by `asked`."""


def remembered(connection: Connection, keys: Collection[str]) -> dict[str, VoteDecision]:
    """Previous decisions about these samples, by key."""
    if not keys:
        return {}
    found = connection.execute(select(vote).where(among(connection, vote.c.key, keys))).mappings()
    return {
        row["key"]: VoteDecision(
            **{name: row[name] for name in VoteDecision._fields} | {"counted": tuple(row["counted"])}
        )
        for row in found
    }


def remember(connection: Connection, decided: Mapping[str, VoteDecision], known: Collection[str], at: float) -> None:
    """Store decisions. `known`: the keys that have a row."""
    rows = [{"key": key, **made._asdict(), "counted": list(made.counted), "at": at} for key, made in decided.items()]
    insert_all_new(connection, vote, [row for row in rows if row["key"] not in known])
    update_all(connection, vote, [row for row in rows if row["key"] in known])


def hold_people(connection: Connection, names: Collection[PersonName]) -> dict[PersonName, Person]:
    """Read these people, known or new, and lock them until the transaction ends."""
    found = _hold(connection, submitter, ("tenant", "task", "id"), [_person_row(name, Person()) for name in names])
    return {name: _person(*found[name]) for name in names}


def _person(*row: Any) -> Person:
    num, total, started_at, window_num, *agreement, num_speaking, num_repeating, edits = row
    seen = Agreement(*agreement)
    return Person(num, total, started_at, window_num, seen, num_speaking, num_repeating, edits or b"")


def _hold(
    connection: Connection, table: Table, columns: Sequence[str], rows: Sequence[Mapping[str, object]]
) -> dict[tuple[str, ...], tuple[Any, ...]]:
    """Insert the rows that are new; lock and read all that match in these columns, perhaps more than `rows`, by their key."""
    if not rows:
        return {}
    insert_all_new(connection, table, rows)
    matches = [among(connection, table.c[name], {row[name] for row in rows}) for name in columns]
    held = select(table).where(*matches).order_by(*table.primary_key.columns).with_for_update()
    return {tuple(row[:3]): tuple(row[3:]) for row in connection.execute(held)}


def keep_people(connection: Connection, people: Mapping[PersonName, Person]) -> None:
    """Store them."""
    update_all(connection, submitter, [_person_row(name, person) for name, person in people.items()])


def _person_row(name: PersonName, person: Person) -> dict[str, object]:
    counts = (person.num, person.total, person.window_started_at, person.window_num, *person.agreement)
    edits = (person.num_speaking, person.num_repeating, person.edits or None)
    return dict(zip(submitter.columns.keys(), (*name, *counts, *edits), strict=True))


def hold_paces(connection: Connection, names: Collection[PaceName]) -> dict[PaceName, VotePace]:
    """Read these paces and lock them until the transaction ends. New ones have bucket -1."""
    found = _hold(connection, vote_pace, ("task", "cluster"), [_pace_row(name, VotePace(-1)) for name in names])
    return {name: VotePace(*found[name]) for name in names}


def keep_paces(connection: Connection, paces: Mapping[PaceName, VotePace]) -> None:
    """Store them."""
    update_all(connection, vote_pace, [_pace_row(name, pace) for name, pace in paces.items()])


def _pace_row(name: PaceName, pace: VotePace) -> dict[str, object]:
    return dict(zip(vote_pace.columns.keys(), (*name, *pace), strict=True))


def quarantined_paces(connection: Connection, task: str) -> list[tuple[str, str, VotePace]]:
    """Cluster, side and pace of each burst whose votes weigh nothing."""
    found = select(vote_pace).where(vote_pace.c.task == task, vote_pace.c.quarantined_until >= vote_pace.c.bucket)
    rows = connection.execute(found.order_by(vote_pace.c.cluster, vote_pace.c.side))
    return [(cluster, side, VotePace(*pace)) for _, cluster, side, *pace in rows]


def clear_burst(connection: Connection, task: str, cluster: str, side: str) -> bool:
    """Let votes of a burst count again, without alarms in this interval. False if there is no such pace."""
    known = update(vote_pace).where(vote_pace.c.task == task, vote_pace.c.cluster == cluster, vote_pace.c.side == side)
    return connection.execute(known.values(quarantined_until=-1, cleared=vote_pace.c.bucket)).rowcount > 0


def add_delays(connection: Connection, counts: Mapping[DelayName, int]) -> None:
    """Add to the counts of answers and delays."""
    names = signal_delay.columns.keys()
    add_all(connection, signal_delay, [dict(zip(names, (*key, num), strict=True)) for key, num in counts.items()])


def delays_of(connection: Connection, tasks: Collection[str]) -> dict[tuple[str, str], list[tuple[int, int, int]]]:
    """(cohort, bucket, number) by task and signal."""
    found: dict[tuple[str, str], list[tuple[int, int, int]]] = {}
    if tasks:
        statement = select(signal_delay).where(among(connection, signal_delay.c.task, tasks))
        for row in connection.execute(statement):
            found.setdefault((row.task, row.name), []).append((row.cohort, row.bucket, row.num))
    return found


def forget_delays(connection: Connection, task: str, name: str, before_cohort: int) -> None:
    """Delete cohorts that are too old to describe today's users."""
    is_old = (signal_delay.c.task == task, signal_delay.c.name == name, signal_delay.c.cohort < before_cohort)
    delete_free(connection, signal_delay, *is_old, limit=FORGOTTEN_AT_ONCE)


def forget_votes(connection: Connection, before: float) -> bool:
    """Delete decisions older than `before` (UTC epoch seconds). False if more may be left."""
    return delete_free(connection, vote, vote.c.at < before, limit=FORGOTTEN_AT_ONCE) < FORGOTTEN_AT_ONCE


def add_heard(connection: Connection, counts: Mapping[HeardKey, Tally]) -> None:
    """Add to the tallies of reactions."""
    add_all(connection, heard, [place._asdict() | tally._asdict() for place, tally in counts.items()])


def heard_since(
    connection: Connection, task: str, task_hash: str, first: int, last: int
) -> list[tuple[int, int, Tally]]:
    """(bucket, asked, tally) of the hours from `first` to `last`, newest first."""
    columns = heard.c
    rows = connection.execute(
        select(heard)
        .where(columns.task == task, columns.task_hash == task_hash, columns.cohort.between(first, last))
        .order_by(columns.cohort.desc(), columns.bucket, columns.asked)
    )
    return [(row.bucket, row.asked, Tally(row.num_answers, row.num_heard, row.total)) for row in rows]


def forget_heard(connection: Connection, task: str, before: int) -> None:
    """Delete hours that are too old to count."""
    delete_free(connection, heard, heard.c.task == task, heard.c.cohort < before, limit=FORGOTTEN_AT_ONCE)


def add_responses(connection: Connection, counts: Mapping[tuple[str, int, int], Sums]) -> None:
    """Add to the answers of versions (`num`) and those with a reaction (`total`), by (task, version, asked)."""
    of_metrics = {(task, version, "", _RESPONSES[asked]): sums for (task, version, asked), sums in counts.items()}
    add_behaviour(connection, of_metrics)


def responses_of(
    connection: Connection, versions: Collection[tuple[str, int]]
) -> dict[tuple[str, int], dict[int, tuple[int, int]]]:
    """Answers by (task, version) and how many of them had a reaction, by `asked`."""
    found: dict[tuple[str, int], dict[int, tuple[int, int]]] = {}
    tasks, numbers = {task for task, _ in versions}, {version for _, version in versions}
    columns = behaviour.c
    rows = connection.execute(
        select(behaviour).where(
            among(connection, columns.task, tasks),
            among(connection, columns.version, numbers),
            columns.cluster == "",
            columns.metric.in_(_RESPONSES),
        )
    )
    for row in rows:
        of_version = found.setdefault((row.task, row.version), {})
        of_version[_RESPONSES.index(row.metric)] = (row.num, round(row.total))
    return found
