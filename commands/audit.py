"""`millrace audit`: every generation and every signal has exactly one state; compares them with the clients' own list.

A record that the join has passed is known as a row, a dead letter, part of a dropped day, or an accepted loss; else it is unexplained,
and named with its place. A record that the join has not reached is pending.

A clients' list has JSON lines: {"kind": "generation", "key": "..."} for every answer that a client saw, and
{"kind": "signal", "id": "..."} for every signal that was acknowledged.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping
from datetime import date
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, NamedTuple

import typer

from commands.ledger import queries
from commands.ledger.account import account
from commands.ledger.logged import Say
from commands.ledger.readers import Reopen, log_of, rare_collections
from commands.ledger.sealing import counted, write_seals
from commands.ledger.signals import SignalFindings, check_signals
from commands.options import DEFAULT_HOME, HomeOption
from contracts.errors import InvalidSettings
from contracts.event_log import EventLog
from contracts.files import read_small
from contracts.ledger import PENDING, LedgerCounts, rejection_counts, signal_counts
from runtime.database import Database
from runtime.learning_ledger import NOTHING_LEARNED, LearningFindings, check_learning
from runtime.seals import Seal, read_seals
from runtime.settings import load_settings

_MAX_LIST_BYTES = 2**30
"""Of a clients' list: some millions of answers."""


class Audit(NamedTuple):
    """The result. `problems` is empty if everything is explained."""

    generations: LedgerCounts
    signals: LedgerCounts
    problems: tuple[str, ...]
    in_doubt: tuple[str, ...] = ()
    """Logged answers that no client saw and that are not cancelled: nobody read them to the end."""
    rejected: Mapping[str, int] = MappingProxyType({})
    """Signals that were refused or rejected, by reason."""
    learning: LearningFindings = NOTHING_LEARNED
    """What monitors measured, corrections, and prompts of shadows."""
    notes: tuple[str, ...] = ()
    """What the log no longer has, and what was sealed now."""

    @property
    def balanced(self) -> bool:
        """True if nothing is unexplained."""
        return not self.problems


def run_audit(
    home: HomeOption = DEFAULT_HOME,
    clients: Annotated[Path | None, typer.Option(help="The clients' own list, JSON lines.")] = None,
    day: Annotated[
        str | None, typer.Option(help="YYYY-MM-DD, UTC: print the seal of this day, and read nothing else.")
    ] = None,
    *,
    settled: Annotated[bool, typer.Option("--settled", help="Nothing may be pending any more.")] = False,
    deep: Annotated[
        bool, typer.Option("--deep", help="Read the rows of closed days too, and compare them with their seals.")
    ] = False,
    seal: Annotated[
        bool,
        typer.Option(
            "--seal", help="If all is explained, seal what was compared: the next audit does not read it again."
        ),
    ] = False,
) -> int:
    """Account for every generation and signal: each has one state. What is unexplained is named. Exit status 1 if anything is.

    Reads the log after the last seal, and the rows of all days that are not closed. Changes nothing, except with --seal.
    """
    settings = load_settings(home)
    database = settings.database()
    if day is not None:
        return print_day(database, day)
    listed, log = read_clients(clients) if clients else None, settings.event_log()
    reopen = partial(log_of, home)
    with rare_collections():
        result = audit(database, log, listed, settled=settled, deep=deep, seal=seal, say=_say, reopen=reopen)
    print_audit(result)
    return 0 if result.balanced else 1


def audit(
    database: Database,
    log: EventLog,
    clients: list[dict[str, Any]] | None = None,
    *,
    settled: bool = False,
    deep: bool = False,
    seal: bool = False,
    say: Say = lambda _: None,
    reopen: Reopen | None = None,
) -> Audit:
    """Check the ledger against the log.

    `clients`: see `read_clients`. `settled`: the loop was drained, so nothing may be pending. `seal`: write seals if all is explained. Others
    as `account`.
    """
    now = time.time()
    seen = {item["key"] for item in clients or () if item["kind"] == "generation"}
    said = {item["id"] for item in clients or () if item["kind"] == "signal"}
    with database.snapshot() as connection:
        found = account(connection, log, seen, say, deep=deep, seal_at=now if seal else None, reopen=reopen)
        lost = check_signals(connection, log, say)
        learning = check_learning(connection, now)
        signals = signal_counts(connection)
        # A lost signal is not pending: it has no state.
        signals = signals._replace(states=signals.states | {PENDING: signals.states.get(PENDING, 0) - lost.num_lost})
        rejected = rejection_counts(connection)
        letters = queries.open_letters(connection)
        rows = queries.users_rows(connection) if clients is not None else ()
        in_doubt = tuple(sorted(key for key, state in rows if key not in seen and state != "cancelled"))
        unheard = said - {id_ for _, id_ in queries.accepted_signals(connection)} if said else set()
    # An operator has to decide about dead letters.
    problems = [
        f"{topic}: {num} could not be processed by {process} (millrace dead-letters list --process {process})"
        for (process, topic), num in letters.items()
    ]
    both = (("generations", found.counts), ("signals", signals))
    problems += [f"{name}: {counts.unexplained} unexplained" for name, counts in both if counts.unexplained]
    problems += [*found.problems, *_about_signals(lost), *(text for kind in learning for text in kind.problems)]
    if settled:
        pending = [(name, counts.states.get(PENDING, 0)) for name, counts in both]
        problems += [f"{name}: {num} still pending" for name, num in pending if num > 0]
    problems += [f"generation {key}: a client saw it, and the log does not have it" for key in sorted(found.unlogged)]
    problems += [f"signal {id_}: it was acknowledged, and it is lost" for id_ in sorted(unheard)]
    notes = list(found.notes)
    if found.new_seals is not None and not problems:
        with database.transaction() as connection:
            write_seals(connection, found.new_seals, now)
        closed = found.new_seals.closed
        notes.append(f"sealed; {len(closed)} days closed" + (f": {', '.join(closed)}" if closed else ""))
    return Audit(found.counts, signals, tuple(problems), in_doubt, rejected, learning, tuple(notes))


def sealed_day(database: Database, day: str) -> dict[int, Seal]:
    """Partition of the log to the seal of a day; empty if the day was never sealed."""
    with database.snapshot() as connection:
        found = read_seals(connection, day)
    return {key.partition: found[key] for key in sorted(found)}


def print_day(database: Database, text: str) -> int:
    """Print the seal of a day. Status 1 if it has none, or one that contradicts itself."""
    try:
        day = date.fromisoformat(text).isoformat()
    except ValueError as error:
        raise InvalidSettings(f"--day is a date such as 2026-11-21, not {text!r}") from error
    seals, is_whole = sealed_day(database, day), True
    for partition, seal in seals.items():
        states = " + ".join(f"{number} {state}" for state, number in sorted(seal.states.items()))
        kind = "dropped" if seal.dropped_at is not None else "closed" if seal.closed_at is not None else "not closed"
        keys = counted(seal)
        is_whole &= keys is None or keys.num == sum(seal.states.values())
        num, value = keys or seal.sealed
        print(f"{day} generations/{partition}: {kind}, {num}, hash {value:016x}" + (f" = {states}" if states else ""))
    if not seals:
        print(f"{day}: never sealed (millrace audit --seal)")
    if not is_whole:
        print(f"UNEXPLAINED {day}: the states of its seal do not add up")
    return 0 if seals and is_whole else 1


def _say(progress: str) -> None:
    print(progress, file=sys.stderr, flush=True)


def _about_signals(found: SignalFindings) -> list[str]:
    problems = [f"signal {id_} of {tenant}: it was acknowledged, and nobody has it" for tenant, id_ in found.lost]
    problems += [f"signal {id_} of {tenant} has a state, and was never received" for tenant, id_ in found.unreceived]
    more = found.num_lost - len(found.lost) + found.num_unreceived - len(found.unreceived)
    return problems + ([f"and {more} more signals"] if more else [])


def read_clients(path: Path) -> list[dict[str, Any]]:
    """Read a clients' list. Raises InvalidSettings if that fails."""
    try:
        listed = [json.loads(line) for line in read_small(path, _MAX_LIST_BYTES).splitlines() if line]
    except (OSError, ValueError, RecursionError) as error:
        raise InvalidSettings(f"the clients' list {path} cannot be read: {error}") from error
    if not all(isinstance(item, dict) for item in listed):
        raise InvalidSettings(f"the clients' list {path} has a line that is no JSON object")
    return listed


def print_audit(result: Audit) -> None:
    """Print the result for a person."""
    for name, left, counts in (("generations", "logged", result.generations), ("signals", "received", result.signals)):
        parts = " + ".join(f"{count} {state}" for state, count in sorted(counts.states.items()) if count)
        print(f"{name}: {counts.total} {left} = {parts or '0'}")
    for name, (learned, _) in result.learning._asdict().items():
        if parts := " + ".join(f"{count} {part}" for part, count in sorted(learned.items()) if count):
            print(f"{name.replace('_', ' ')}: {sum(learned.values())} = {parts}")
    if result.rejected:
        print("rejected: " + ", ".join(f"{count} {reason}" for reason, count in sorted(result.rejected.items())))
    for note in result.notes:
        print(f"note: {note}")
    for key in result.in_doubt:
        print(f"in doubt: {key} was logged, and no client saw it")
    for problem in result.problems:
        print(f"UNEXPLAINED {problem}")
    print("balanced" if result.balanced else "NOT balanced")
