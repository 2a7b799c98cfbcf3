"""Signals about keys meet their answers, inside the transaction of the join.

In: generations that have just been joined. Out: signals about them, sent to the log like any other: those that waited for
their keys, and a user's next message about the answer before it. Waits: for an answer with the key, seven days at most.

Feedback looks for the answer of a join key and, if there is none, leaves the signal in `waiting_signal`; the join writes the
answer's keys and looks for signals. Each may look before the other has committed, so `sweep` looks again.

A signal about a session always waits: it means the last answer that there was when it came. That is known when a later answer
arrives, or once the join has read on for `SETTLE_SECONDS` and stood at the end of the log.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from sqlalchemy import Connection

from contracts.event_log import Message
from contracts.records import Generation, Signal
from contracts.tasks import Task
from contracts.topics import SIGNALS
from pipelines.episodes.join import ORPHAN_SECONDS
from pipelines.episodes.keys import repository, rules
from runtime.log.outbox import message

KEY_SECONDS = 30 * 86_400.0
"""So long a key is known after its last answer; records leave the log then."""
SETTLE_SECONDS = 2.0
"""So long after a signal about a session its last answer may still be on its way through the log."""
RETRACTED_SECONDS = 600.0
"""So long a signal that was taken back still waits for its answer, which it shows to have been received."""
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
    known = {name: {answer} for name, answer in held.items()}
    for record in arrived:
        for name in rules.names_of(record):
            known.setdefault(name, set()).add(rules.Answer(record.completion_id, record.choice))
    aimed = [_aimed(item, known[item.name]) for item in repository.waiting(connection, meant, _AT_ONCE)]
    waiting = [item for item in aimed if item is not None]
    return [_sent(signal) for signal in [*followed, *repository.take(connection, waiting)]]


def settle_sessions(connection: Connection, now: float, partitions: frozenset[int]) -> list[Message]:
    """Send what came about sessions some time ago, at the end of the log: their last answers have been read."""
    found = repository.answered(connection, partitions, now - SETTLE_SECONDS, _AT_ONCE)
    return [_sent(signal) for signal in repository.take(connection, found)]


def sweep(connection: Connection, now: float) -> list[Message]:
    """Look again for the answers of signals that wait, name those that waited in vain, and forget old keys."""
    taken = repository.take(connection, repository.answered(connection, (), None, _AT_ONCE))
    repository.settle(connection, now - ORPHAN_SECONDS, now - RETRACTED_SECONDS, _AT_ONCE)
    repository.forget(connection, now - KEY_SECONDS)
    return [_sent(signal) for signal in taken]


def _aimed(item: repository.Waiting, answers: Iterable[rules.Answer]) -> repository.Waiting | None:
    """The same, about the answer that it means; None if that is not known yet."""
    if item.name.kind != rules.SESSION:
        return item
    answer = rules.answer_at(answers, item.received_at)
    return None if answer is None else item._replace(answer=answer)


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
