"""A signal about a session becomes one signal about each call that led to the session's last answer.

The client's own signal is about the last call of the main line (`rules.py`). For each earlier call that the task's [credit] gives a part,
the join makes a *derived* signal, stored and sent like any other: so each call keeps its own state, windows, revisions and
corrections, and each signal has one state. Taking back the client's signal takes back those that were made from it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from itertools import accumulate

import msgspec
from sqlalchemy import Connection

from contracts.ids import sample_key
from contracts.records import Signal
from contracts.tasks import Task
from pipelines.episodes import join
from pipelines.episodes import repository as repository_of_join
from pipelines.episodes.keys import repository
from pipelines.episodes.keys.rules import SESSION, AnswerRef, KeyName, LinePart, parts_of

MOST_SHARES = 2_000
"""Calls that a transaction looks at for signals about sessions, unless a single session has more."""


def shared(
    connection: Connection, tasks: Mapping[str, Task], found: Sequence[repository.WaitingSignal]
) -> list[Signal]:
    """Take waiting signals; those about sessions are shared among the calls. Returns the signals to send.

    A signal that does not count because there are too many about its own answer says nothing about earlier calls either.
    """
    about = [item for item in found if item.name.kind == SESSION]
    calls = repository.calls_of(connection, {item.name for item in about})
    lines = {item[:2]: parts_of(item.name.value, calls.get(item.name, ()), tasks, item.received_at) for item in about}
    parts = {name: line for name, line in lines.items() if line}
    aimed = [item._replace(**parts[item[:2]][-1]._asdict()) if item[:2] in parts else item for item in found]
    taken = repository.take(connection, aimed)
    derived = [
        _derived(said, part)
        for said in _with_room(connection, [said for said in taken if not said.retracted and said.share is not None])
        for part in parts[said.tenant, said.id][:-1]
    ]
    return [*taken, *repository.receive(connection, derived)]


def take_back(connection: Connection, retracted: Sequence[Signal], now: float) -> list[Signal]:
    """The derived signals of session signals that were taken back, to be sent as retracted. `now`: UTC epoch seconds."""
    sent = []
    for said in retracted:
        if said.share is None or said.share.is_derived:
            continue
        name = KeyName(said.tenant, SESSION, said.share.session)
        ids = [_id_of(said.id, call.answer) for call in repository.calls_of(connection, {name}).get(name, ())]
        sent += repository.retract(connection, said.tenant, ids, now)
    return sorted(sent, key=lambda each: each.id)


def affordable(connection: Connection, found: Sequence[repository.WaitingSignal]) -> Sequence[repository.WaitingSignal]:
    """These signals, of those about sessions the first, as many as a short transaction can share; the others keep waiting."""
    about = [item for item in found if item.name.kind == SESSION]
    nums, first = repository.num_calls(connection, {item.name for item in about}), next(iter(about), None)
    totals = accumulate(nums.get(item.name, 0) for item in found)
    return [
        item
        for item, total in zip(found, totals, strict=True)
        if item.name.kind != SESSION or item is first or total <= MOST_SHARES
    ]


def _with_room(connection: Connection, taken: Sequence[Signal]) -> list[Signal]:
    """Those of these signals that the join will count."""
    held: dict[tuple[str, str], list[Signal]] = {}
    for known in repository_of_join.heard(connection, {said.completion_id for said in taken}) if taken else ():
        held.setdefault((known.record.tenant, known.record.key), []).append(known.heard)
    counted = []
    for said in taken:
        room = held.setdefault((said.tenant, said.key), [])
        if (crowded_out := join.crowded_out(said, room)) is said:
            continue
        if crowded_out is not None:
            room.remove(crowded_out)
        room.append(said)
        counted.append(said)
    return counted


def _derived(said: Signal, part: LinePart) -> Signal:
    return msgspec.structs.replace(
        said, id=_id_of(said.id, part.answer), comment=None, metadata=None, share=part.share, **part.answer._asdict()
    )


def _id_of(signal_id: str, answer: AnswerRef) -> str:
    digest = hashlib.blake2b(signal_id.encode(), digest_size=16).hexdigest()
    return f"session:{digest}:{sample_key(*answer)}"
