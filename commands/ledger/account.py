"""The whole account of one audit: counts by state, what is unexplained by name, and what can be sealed.

In: one snapshot of the database, and the log as it is after it. Out: an `Account`. Waits for: reads.

    log ─────────▶ readers.py ─╮
                               ├──▶ differences.py ──▶ problems, notes ──▶ sealing.py
    rows, seals ─▶ queries.py ─╯
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from typing import NamedTuple

from sqlalchemy import Connection

from commands.ledger import queries
from commands.ledger.differences import UnknownRecords, compare, explain, find_orphans, sort_out
from commands.ledger.logged import LogSide, Say
from commands.ledger.queries import KnownRecords
from commands.ledger.readers import Reopen, read_log
from commands.ledger.sealing import NewSeals, counted, plan_seals, range_of
from contracts.event_log import EventLog
from contracts.ledger import GENERATION_STATES, PENDING, LedgerCounts, generation_counts
from contracts.topics import GENERATIONS
from runtime.learning_ledger import MOST_NAMED
from runtime.log.loss_acceptance import num_written_off
from runtime.log.loss_detection import read_known
from runtime.log.redrive import DEAD_LETTER
from runtime.seals import day_of, hash_of, hour_of


class Account(NamedTuple):
    """What the ledger says about generations."""

    counts: LedgerCounts
    problems: list[str]
    notes: list[str]
    unlogged: set[str]
    """Of the keys that clients saw: those that neither the log nor a seal has."""
    new_seals: NewSeals | None


def account(
    connection: Connection,
    log: EventLog,
    seen: Collection[str],
    say: Say,
    *,
    deep: bool = False,
    with_marks: bool = True,
    seal_at: float | None = None,
    reopen: Reopen | None = None,
) -> Account:
    """Account for every generation.

    Args:
        connection: a snapshot.
        log: read after the snapshot was taken, so that everything that the join held then is in it.
        seen: keys that clients saw.
        say: told how far the work is.
        deep: read the rows of closed days too.
        with_marks: do not read what is sealed again. False finds the keys where a seal no longer fits.
        seal_at: plan seals, with this time.
        reopen: opens the log in other processes; see `read_log`.
    """
    known = queries.known_records(connection, with_marks=with_marks)

    def alive(progress: str = "") -> None:
        queries.stay(connection)
        if progress:
            say(progress)

    side = read_log(log, known.marks, alive, reopen)
    closed = set() if deep else known.closed - {day_of(hour) for hour in side.hours}
    which = queries.ids_outside([range_of(day) for day in closed])
    say("database: comparing every row")
    difference = compare(side, (page for gap in which for page in queries.keys_of(connection, gap)))
    unknown = sort_out(difference, known, queries.keys_being_sent_again(connection), side.damaged)
    orphans = find_orphans(connection, difference.orphans, side, known.lost_at)
    read = known._replace(seals={key: seal for key, seal in known.seals.items() if key.day not in closed})
    found = explain(log, side, read, unknown.passed, orphans)
    if found.broken_seals and with_marks:
        say("a seal does not fit: reading the whole log")
        again = account(connection, log, seen, say, deep=True, with_marks=False, seal_at=seal_at, reopen=reopen)
        if not again.problems and not any(first.offset for first in side.firsts.values()):
            # Records that came twice, before and after a mark, do that. The whole log agrees with the rows.
            repeated = "sealed days have records that came again: run it with --seal once"
            return again._replace(notes=[*again.notes, repeated])
        return again._replace(problems=[*found.broken_seals, *again.problems], new_seals=None)
    say("database: comparing states with outcomes")
    states: Counter[str] = Counter()
    for gap in which:
        states.update(generation_counts(connection, *gap).states)
    problems = [
        *found.problems,
        *_about_log(connection, side, known),
        *_about_seals(known),
        *_about_states(connection, which, states),
        *_about_positions(connection, known, closed, states.total(), found.num_unexplained),
    ]
    plan = None
    if seal_at is not None and not problems:
        plan = plan_seals(connection, side, difference, passed=unknown.passed, known=known, now=seal_at)
    dropped_days = {key.day for key, seal in known.seals.items() if seal.dropped.num}
    unlogged = _unlogged(connection, side, seen, dropped_days)
    states.update(_without_row(known, closed, unknown))
    states["log_lost"] += num_written_off(connection)
    named = {state: number for state, number in states.items() if number or state == PENDING}
    ledger = LedgerCounts(sum(named.values()) + found.num_unexplained, named)
    return Account(ledger, problems, found.notes, unlogged, plan)


def _without_row(known: KnownRecords, closed: Collection[str], unknown: UnknownRecords) -> Counter[str]:
    """What the identity has beside rows: seals, and records that have no row for a reason with a name."""
    letters = known.letters.open | known.letters.skipped
    sealed_dead = sum(place.offset < known.marks.get(place.partition, 0) for place in letters)
    states = Counter({PENDING: unknown.num_unread, DEAD_LETTER: unknown.num_dead + sealed_dead})
    for key, seal in known.seals.items():
        if key.day in closed or seal.dropped_at is not None:
            states.update(seal.states)
    return states


def _about_log(connection: Connection, side: LogSide, known: KnownRecords) -> list[str]:
    problems = [f"damaged in the log: {place.topic}/{place.partition} {place.offset}" for place in side.damaged]
    problems += [f"the log lacks {number} records between others, from {place} on" for place, number in side.gaps]
    topic = read_known(connection).get(GENERATIONS)
    for partition, end in side.ends.items():
        reached = max(known.positions.get(partition, 0), topic.ends.get(partition, 0) if topic else 0)
        if reached > end:
            problems.append(f"{GENERATIONS}/{partition} ends at {end}, and it had {reached} records")
    return problems


def _about_seals(known: KnownRecords) -> list[str]:
    """A seal has two counts of the same rows."""
    return [
        f"{key.day}, {GENERATIONS}/{key.partition}: its seal counts {by_state} by state and {keys.num} in all"
        for key, seal in sorted(known.seals.items(), key=lambda item: item[0])
        if (keys := counted(seal)) is not None and (by_state := sum(seal.states.values())) != keys.num
    ]


def _about_states(connection: Connection, which: list[list[queries.Condition]], states: Counter[str]) -> list[str]:
    problems = [
        f"{number} generations have the state {state!r}, which has no name"
        for state, number in sorted(states.items())
        if state not in GENERATION_STATES
    ]
    wrong = [item for gap in which for item in queries.wrong_states(connection, gap)]
    for item in wrong[:MOST_NAMED]:
        told = f"its outcomes say {item.expected}" if item.expected else "no outcome says so"
        problems.append(f"generation {item.key} is {item.state}, and {told}")
    if len(wrong) > MOST_NAMED:
        problems.append(f"and {len(wrong) - MOST_NAMED} more generations have a state that their outcomes do not give")
    return problems


def _about_positions(
    connection: Connection, known: KnownRecords, closed: Collection[str], num_rows: int, num_unexplained: int
) -> list[str]:
    """The join moved its positions once for every record that it read. This needs no record, so it holds after retention too."""
    if not known.positions:
        return []
    rows = num_rows + sum(seal.sealed.num for key, seal in known.seals.items() if key.day in closed)
    without_row, letters = queries.counts_without_row(connection), known.letters
    num_dead = len(letters.open) + len(letters.skipped) + letters.num_redriven
    read, num_known = sum(known.positions.values()), rows + sum(without_row.values()) + num_dead
    if read - num_known == num_unexplained:
        return []
    parts = [
        f"{rows} rows",
        f"{num_dead} dead letters",
        *(f"{num} {name}" for name, num in sorted(without_row.items()) if num),
    ]
    return [f"the join read {read} records, and {num_known} are known = {' + '.join(parts)}"]


def _unlogged(connection: Connection, side: LogSide, seen: Collection[str], dropped_days: set[str]) -> set[str]:
    hashes = {hash_of(key): key for key in seen}
    for keys in side.hours.values():
        for value in keys.hashes.tolist() if hashes else ():
            hashes.pop(value, None)
    # What is sealed is not read again: a row says that it was logged. Of days that were dropped, the key alone says nothing.
    left = {key for key in hashes.values() if day_of(hour_of(key)) not in dropped_days}
    return left - queries.has_rows(connection, left)
