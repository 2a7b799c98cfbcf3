"""The signals of the ledger: each acknowledged one was seen by the join, or is on its way to it at a place that has a name.

In: one snapshot, and the log after the join's positions. Out: signals that are nowhere, and signals that nobody received. Holds 8 bytes
for each signal of either side.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from itertools import chain, islice
from typing import NamedTuple

import numpy as np
from sqlalchemy import Connection

from commands.ledger import queries
from commands.ledger.logged import Say, Words
from contracts.errors import InvalidRecord
from contracts.event_log import EventLog
from contracts.records import Signal, decode_shape
from contracts.topics import SIGNALS
from runtime.learning_ledger import MOST_NAMED
from runtime.log.recovery import unread_by_join

_WORDS = 2**64
Name = tuple[str, str]
"""Tenant and id."""


class SignalFindings(NamedTuple):
    """Signals without an explanation: how many, and the first ones by name."""

    num_lost: int
    """Acknowledged, not seen by the join, and not on their way."""
    lost: list[Name]
    num_unreceived: int
    """Seen by the join, and never acknowledged."""
    unreceived: list[Name]


def check_signals(connection: Connection, log: EventLog, say: Say) -> SignalFindings:
    """Compare what was acknowledged with what the join has seen, and look for the others."""
    say("signals: comparing")
    accepted = _hashes(queries.accepted_signals(connection))
    joined = _hashes(queries.joined_signals(connection))
    say(f"signals: {len(accepted):,} acknowledged, {len(joined):,} seen by the join")
    unreceived = joined[~np.isin(joined, accepted)]
    lost = accepted[~np.isin(accepted, joined)]
    if len(lost):
        unread = (record.value for record in unread_by_join(connection, log, SIGNALS))
        records = chain(queries.signals_under_way(connection), unread)
        known = chain(queries.waiting_signals(connection), filter(None, map(_name_of, records)))
        lost = lost[~np.isin(lost, _hashes(known))]
    named_lost = _named(queries.accepted_signals(connection), lost)
    return SignalFindings(
        len(lost), named_lost, len(unreceived), _named(queries.joined_signals(connection), unreceived)
    )


def _name_of(value: bytes) -> Name | None:
    try:
        record = decode_shape(Signal, value)
    except InvalidRecord:
        return None
    return record.tenant, record.id


def _hashes(names: Iterable[Name]) -> Words:
    found = array("q", map(hash, names))  # never stored: another process hashes otherwise
    return np.frombuffer(found, np.uint64) if found else np.empty(0, np.uint64)


def _named(names: Iterator[Name], hashes: Words) -> list[Name]:
    if not len(hashes):
        return []
    wanted = set(hashes.tolist())
    return list(islice((name for name in names if hash(name) % _WORDS in wanted), MOST_NAMED))
