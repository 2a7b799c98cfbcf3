"""`millrace audit`: every generation and every signal has exactly one state; compares them with the clients' own list.

A clients' list has JSON lines: {"kind": "generation", "key": "..."} for every answer that a client saw, and
{"kind": "signal", "id": "..."} for every signal that was acknowledged.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, NamedTuple

import typer

from commands.options import DEFAULT_HOME, HomeOption
from contracts.errors import InvalidSettings
from contracts.event_log import EventLog, LogRecord, is_damaged
from contracts.ledger import (
    PENDING,
    LedgerCounts,
    generation_counts,
    generation_states,
    rejection_counts,
    signal_counts,
    signal_states,
)
from contracts.topics import GENERATIONS
from runtime.database import Database
from runtime.log.dead_letters import OPEN, SKIPPED
from runtime.log.loss_acceptance import keys_before_loss, num_written_off
from runtime.log.redrive import DEAD_LETTER, DeadLetter, find
from runtime.settings import load_settings

_PAGE = 1000


class Audit(NamedTuple):
    """The result. `problems` is empty if everything is explained."""

    generations: LedgerCounts
    signals: LedgerCounts
    problems: tuple[str, ...]
    in_doubt: tuple[str, ...] = ()
    """Logged answers that no client saw and that are not cancelled: nobody read them to the end."""
    rejected: Mapping[str, int] = MappingProxyType({})
    """How many signals were refused or rejected, by reason."""

    @property
    def balanced(self) -> bool:
        """True if nothing is unexplained."""
        return not self.problems


def run_audit(
    home: HomeOption = DEFAULT_HOME,
    clients: Annotated[Path | None, typer.Option(help="The clients' own list, JSON lines.")] = None,
    *,
    settled: Annotated[bool, typer.Option("--settled", help="Nothing may be pending any more.")] = False,
) -> int:
    """Account for every generation and signal. Exit status 1 if anything is unexplained."""
    settings = load_settings(home)
    listed = read_clients(clients) if clients else None
    result = audit(settings.database(), settings.event_log(), listed, settled=settled)
    print_audit(result)
    return 0 if result.balanced else 1


def audit(
    database: Database, log: EventLog, clients: list[dict[str, Any]] | None = None, *, settled: bool = False
) -> Audit:
    """Check the ledger against the log.

    Args:
        database: of the home.
        log: of the home.
        clients: the clients' own list; see `read_clients`.
        settled: the loop was drained, so nothing may be pending.
    """
    with database.snapshot() as connection:
        joined, signals = generation_counts(connection), signal_counts(connection)
        rejected = rejection_counts(connection)
        states, signal_by_id = generation_states(connection), signal_states(connection)
        before_loss, num_lost = keys_before_loss(connection), num_written_off(connection)
        letters = find(connection, states=(OPEN, SKIPPED))
    # The log is read after the snapshot: while Millrace runs, everything that the join held then is in the log by now.
    damaged: list[LogRecord] = []
    logged = logged_generations(log, damaged) | before_loss | {item.key for item in damaged if item.key in states}
    # A record that the join has not read yet is pending. A row of the join without a record in the log is unexplained.
    unjoined = logged - states.keys()
    dead = unjoined & _dead_generations(log, letters)
    unread = len(unjoined - dead)
    by_state = joined.states | {PENDING: joined.states.get(PENDING, 0) + unread}
    by_state |= {"log_lost": num_lost} if num_lost else {}
    by_state |= {DEAD_LETTER: len(dead)} if dead else {}
    generations = LedgerCounts(len(logged) + num_lost, by_state)
    problems = _open_letters(letters) + [
        f"{name}: {counts.unexplained} unexplained"
        for name, counts in (("generations", generations), ("signals", signals))
        if counts.unexplained
    ]
    problems += [f"damaged in the log: {GENERATIONS}/{item.partition} {item.offset}" for item in damaged]
    if settled:
        problems += [
            f"{name}: {counts.states[PENDING]} still pending"
            for name, counts in (("generations", generations), ("signals", signals))
            if counts.states.get(PENDING)
        ]
    if clients is None:
        return Audit(generations, signals, tuple(problems), rejected=rejected)
    seen = {item["key"] for item in clients if item["kind"] == "generation"}
    said = {item["id"] for item in clients if item["kind"] == "signal"}
    problems += [f"generation {key}: a client saw it, and the log does not have it" for key in sorted(seen - logged)]
    problems += [f"signal {id_}: it was acknowledged, and it is lost" for id_ in sorted(said - signal_by_id.keys())]
    unseen = {key: state for key, (purpose, state) in states.items() if purpose == "user" and key not in seen}
    in_doubt = tuple(sorted(key for key, state in unseen.items() if state != "cancelled"))
    return Audit(generations, signals, tuple(problems), in_doubt, rejected)


def logged_generations(log: EventLog, damaged: list[LogRecord] | None = None) -> set[str]:
    """The sample keys of every generation in the log. A client may have seen any of them.

    Damaged records are left out and appended to `damaged`.
    """
    keys: set[str] = set()
    for partition, end in log.ends(GENERATIONS).items():
        offset = 0
        while offset < end and (records := log.read(GENERATIONS, partition, offset, _PAGE)):
            keys.update(record.key for record in records if not is_damaged(record.value))
            if damaged is not None:
                damaged += [item for item in records if is_damaged(item.value)]
            offset = records[-1].offset + 1
    return keys


def _dead_generations(log: EventLog, letters: Iterable[DeadLetter]) -> set[str]:
    """The keys of the generations that the join could not process."""
    buried = [letter for letter in letters if (letter.process, letter.place.topic) == ("episodes", GENERATIONS)]
    keys = {letter.key for letter in buried if letter.key is not None}
    # Older dead letters have no key: it is read from the log.
    places = [letter.place for letter in buried if letter.key is None]
    return keys | {record.key for place in places for record in log.read(*place, 1) if record.offset == place.offset}


def _open_letters(letters: Iterable[DeadLetter]) -> list[str]:
    """A problem for each process and topic with open dead letters. An operator has to decide about them."""
    counts = Counter((letter.process, letter.place.topic) for letter in letters if letter.state == OPEN)
    return [
        f"{topic}: {num} could not be processed by {process} (millrace dead-letters list --process {process})"
        for (process, topic), num in sorted(counts.items())
    ]


def read_clients(path: Path) -> list[dict[str, Any]]:
    """Read a clients' list. Raises InvalidSettings if that fails."""
    try:
        return [json.loads(line) for line in path.read_text().splitlines() if line]
    except (OSError, ValueError) as error:
        raise InvalidSettings(f"the clients' list {path} cannot be read: {error}") from error


def print_audit(result: Audit) -> None:
    """Print the result for a person."""
    for name, left, counts in (
        ("generations", "logged", result.generations),
        ("signals", "received", result.signals),
    ):
        parts = " + ".join(f"{count} {state}" for state, count in sorted(counts.states.items()) if count)
        print(f"{name}: {counts.total} {left} = {parts or '0'}")
    if result.rejected:
        print("rejected: " + ", ".join(f"{count} {reason}" for reason, count in sorted(result.rejected.items())))
    for key in result.in_doubt:
        print(f"in doubt: {key} was logged, and no client saw it")
    for problem in result.problems:
        print(f"UNEXPLAINED {problem}")
    print("balanced" if result.balanced else "NOT balanced")
