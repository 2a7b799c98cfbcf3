"""Signals about keys meet their answers, inside the transaction of the join.

In: generations that have just been joined. Out: signals about them, sent to the log like any other: those that waited for
their keys, and a user's next message about the answer before it. Waits: for an answer with the key, seven days at most.

Feedback looks for the answer and, if there is none, leaves the signal in `waiting_signal`; the join writes the answer's keys
and looks for signals. Each may look before the other has committed, so `sweep` looks again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sqlalchemy import Connection

from contracts.event_log import Message
from contracts.outbox import message
from contracts.records import Generation, Signal
from contracts.tasks import Task
from contracts.topics import SIGNALS
from pipelines.episodes.join import ORPHAN_SECONDS
from pipelines.episodes.keys import repository, rules

KEY_SECONDS = 30 * 86_400.0
"""So long a key is known after its last answer; records leave the log then."""
_AT_ONCE = 500


def register(
    connection: Connection, tasks: Mapping[str, Task], arrived: Sequence[Generation], now: float
) -> list[Message]:
    """Note the keys of answers that were joined just now; returns the signals about them that can be sent."""
    names = {name for record in arrived for name in rules.names_of(record)}
    if not names:
        return []
    held = repository.answers(connection, names)
    meant = dict(held)
    successions = rules.assign(meant, arrived)
    repository.save_answers(connection, held, meant, now)
    followed = _follow_ups(connection, tasks, arrived, successions)
    waiting = repository.waiting(connection, meant, _AT_ONCE)
    return [_sent(signal) for signal in [*followed, *repository.take(connection, waiting)]]


def sweep(connection: Connection, now: float) -> list[Message]:
    """Look again for the answers of signals that wait, name those that waited in vain, and forget old keys."""
    taken = repository.take(connection, repository.answered(connection, _AT_ONCE))
    repository.settle(connection, now - ORPHAN_SECONDS, _AT_ONCE)
    repository.forget(connection, now - KEY_SECONDS)
    return [_sent(signal) for signal in taken]


def _follow_ups(
    connection: Connection,
    tasks: Mapping[str, Task],
    arrived: Sequence[Generation],
    successions: Sequence[rules.Succession],
) -> list[Signal]:
    listening = [item for item in successions if rules.follow_up_name(tasks.get(item.record.task))]
    if not listening:
        return []
    records = {rules.Answer(record.completion_id, record.choice): record for record in arrived}
    records |= repository.records(connection, {item.before for item in listening} - records.keys())
    said = (
        rules.follow_up(item, records[item.before], tasks[item.record.task])
        for item in listening
        if item.before in records
    )
    return repository.receive(connection, [signal for signal in said if signal is not None])


def _sent(signal: Signal) -> Message:
    return message(SIGNALS, signal.key, signal)
