"""The whole account of one audit: counts by state, what is unexplained by name, and what can be sealed.

In: one snapshot of the database, and the log as it is after it. Out: an `Account`. Waits for: reads.

    log ──▶ readers.py ─╮
                        ├──▶ compare.py ──▶ explain.py ──▶ problems, notes ──▶ sealing.py
    rows ─▶ queries.py ─╯                       ▲
    seals ──────────────────────────────────────╯
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from sqlalchemy import Connection

from commands.ledger import queries
from commands.ledger.compare import UnknownRecords, compare, sort_out
from commands.ledger.explain import Explained, explain, find_orphans
from commands.ledger.logged import LogSide, Say
from commands.ledger.queries import DeadPlaces
from commands.ledger.readers import Reopen, read_log
from commands.ledger.sealing import NewSeals, plan_seals, range_of
from contracts.event_log import EventLog
from contracts.ledger import GENERATION_STATES, PENDING, LedgerCounts, generation_counts
from contracts.topics import GENERATIONS
from runtime.learning_ledger import MOST_NAMED
from runtime.log.loss_acceptance import num_written_off
from runtime.log.loss_detection import read_known
from runtime.log.redrive import DEAD_LETTER
from runtime.seals import Seal, SealKey, day_of, hash_of, hour_of, read_marks, read_seals


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
    positions = queries.join_positions(connection, GENERATIONS)
    letters = queries.letters_of_join(connection)
    marks = read_marks(connection) if with_marks else {}
    seals = read_seals(connection)
    if not with_marks:
        seals = {
            key: Seal(dropped=seal.dropped, dropped_at=seal.dropped_at, states=seal.states)
            for key, seal in seals.items()
        }
    lost_at = queries.lost_at(connection)

    def alive(progress: str = "") -> None:
        queries.stay(connection)
        if progress:
            say(progress)

    side = read_log(log, marks, alive, reopen)
    closed = set() if deep else _closed_days(seals) - {day_of(hour) for hour in side.hours}
    which = queries.ids_outside([range_of(day) for day in closed])
    say("database: comparing every row")
    difference = compare(side, (page for gap in which for page in queries.keys_of(connection, gap)))
    unknown = sort_out(difference, positions, letters, queries.keys_being_sent_again(connection), side.damaged)
    orphans = find_orphans(connection, difference.orphans, side, lost_at)
    open_seals = {key: seal for key, seal in seals.items() if key.day not in closed}
    found = explain(log, side, marks=marks, seals=open_seals, passed=unknown.passed, orphans=orphans, lost_at=lost_at)
    if found.broken_seals and with_marks:
        say("a seal does not fit: reading the whole log")
        again = account(connection, log, seen, say, deep=True, with_marks=False, seal_at=seal_at, reopen=reopen)
        if not again.problems and not any(first.offset for first in side.firsts.values()):
            # Records that came twice, before and after a mark, do that. The whole log agrees with the rows.
            return again._replace(
                notes=[*again.notes, "sealed days have records that came again: run it with --seal once"]
            )
        return again._replace(problems=[*found.broken_seals, *again.problems], new_seals=None)
    say("database: comparing states with outcomes")
    counts = _add(generation_counts(connection, *gap) for gap in which)
    problems = [
        *found.problems,
        *_about_log(connection, side, positions),
        *_about_seals(seals),
        *_about_states(connection, which, counts),
    ]
    ledger = _counted(
        connection, counts, seals=seals, closed=closed, unknown=unknown, letters=letters, marks=marks, found=found
    )
    problems += _about_positions(connection, positions, letters, counts, seals=seals, closed=closed, found=found)
    plan = None
    if seal_at is not None and not problems:
        plan = plan_seals(
            connection,
            side,
            difference,
            passed=unknown.passed,
            positions=positions,
            letters=letters,
            seals=seals,
            now=seal_at,
        )
    unlogged = _unlogged(connection, side, seen, {key.day for key, seal in seals.items() if seal.dropped.num})
    return Account(ledger, problems, found.notes, unlogged, plan)


def _closed_days(seals: Mapping[SealKey, Seal]) -> set[str]:
    return {key.day for key, seal in seals.items() if seal.closed_at is not None}


def _add(parts: Iterable[LedgerCounts]) -> LedgerCounts:
    states: Counter[str] = Counter()
    for part in parts:
        states.update(part.states)
    return LedgerCounts(sum(states.values()), dict(states))


def _counted(
    connection: Connection,
    counts: LedgerCounts,
    *,
    seals: Mapping[SealKey, Seal],
    closed: Collection[str],
    unknown: UnknownRecords,
    letters: DeadPlaces,
    marks: Mapping[int, int],
    found: Explained,
) -> LedgerCounts:
    """The identity: rows, seals, and records that have no row for a reason with a name."""
    states = Counter(counts.states)
    for key, seal in seals.items():
        if key.day in closed or seal.dropped_at is not None:
            states.update(seal.states)
    states[PENDING] += unknown.num_unread
    sealed_dead = sum(place.offset < marks.get(place.partition, 0) for place in letters.open | letters.skipped)
    more = {"log_lost": num_written_off(connection), DEAD_LETTER: unknown.num_dead + sealed_dead}
    states.update({state: number for state, number in more.items() if number})
    return LedgerCounts(sum(states.values()) + found.num_unexplained, dict(states))


def _about_log(connection: Connection, side: LogSide, positions: Mapping[int, int]) -> list[str]:
    problems = [f"damaged in the log: {place.topic}/{place.partition} {place.offset}" for place in side.damaged]
    problems += [f"the log lacks {number} records between others, from {place} on" for place, number in side.gaps]
    known = read_known(connection).get(GENERATIONS)
    for partition, end in side.ends.items():
        reached = max(positions.get(partition, 0), known.ends.get(partition, 0) if known else 0)
        if reached > end:
            problems.append(f"{GENERATIONS}/{partition} ends at {end}, and it had {reached} records")
    return problems


def _about_seals(seals: Mapping[SealKey, Seal]) -> list[str]:
    """A seal has two counts of the same rows."""
    return [
        f"{key.day}, {GENERATIONS}/{key.partition}: its seal counts {sum(seal.states.values())} by state and {number} in all"
        for key, seal in sorted(seals.items(), key=lambda item: item[0])
        for number in (seal.dropped.num if seal.dropped_at is not None else seal.sealed.num,)
        if (seal.dropped_at is not None or seal.closed_at is not None) and sum(seal.states.values()) != number
    ]


def _about_states(connection: Connection, which: list[list[queries.Condition]], counts: LedgerCounts) -> list[str]:
    problems = [
        f"{number} generations have the state {state!r}, which has no name"
        for state, number in sorted(counts.states.items())
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
    connection: Connection,
    positions: Mapping[int, int],
    letters: DeadPlaces,
    counts: LedgerCounts,
    *,
    seals: Mapping[SealKey, Seal],
    closed: Collection[str],
    found: Explained,
) -> list[str]:
    """The join moved its positions once for every record that it read. This needs no record, so it holds after retention too."""
    if not positions:
        return []
    rows = counts.total + sum(seal.sealed.num for key, seal in seals.items() if key.day in closed)
    without_row = queries.counts_without_row(connection)
    num_dead = len(letters.open) + len(letters.skipped) + letters.num_redriven
    read, known = sum(positions.values()), rows + sum(without_row.values()) + num_dead
    if read - known == found.num_unexplained:
        return []
    parts = " + ".join(f"{number} {name}" for name, number in sorted(without_row.items()) if number)
    return [
        f"the join read {read} records, and {known} are known = {rows} rows + {num_dead} dead letters"
        + (f" + {parts}" if parts else "")
    ]


def _unlogged(connection: Connection, side: LogSide, seen: Collection[str], dropped_days: set[str]) -> set[str]:
    hashes = {hash_of(key): key for key in seen}
    for keys in side.hours.values():
        for value in keys.hashes.tolist() if hashes else ():
            hashes.pop(value, None)
    # What is sealed is not read again: a row says that it was logged. Of days that were dropped, the key alone says nothing.
    left = {key for key in hashes.values() if day_of(hour_of(key)) not in dropped_days}
    return left - queries.has_rows(connection, left)
