"""Finds the answers of signals about keys, inside the transaction of the join.

    feedback ── signal whose key has no answer ──▶ waiting_signal ──▶ register (the answer arrives), sweep, settle_sessions ──▶ signals

In: generations that were just joined. Out: signals about them, sent to the log: those that waited for their keys, and a user's
next message as a signal about the answer before it. Waits: a signal waits for an answer with its key, seven days at most. Feedback looks for
the answer, and the join looks for waiting signals; each may look before the other has committed, so `sweep` looks again each minute.

A signal about a session always waits: it means the last answer that existed when it came, or all calls that led to it (`credit.py`).
That is known when a later answer arrives, or when the join has been at the end of the log at least `SETTLE_SECONDS` later.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from sqlalchemy import Connection

from contracts.event_log import Message
from contracts.records import Generation, Signal
from contracts.tasks import Task
from contracts.topics import SIGNALS
from pipelines.episodes.join import ORPHAN_SECONDS
from pipelines.episodes.keys import credit, repository, rules
from pipelines.episodes.keys.rules import main_line
from runtime.log.outbox import message

KEY_SECONDS = 30 * 86_400.0
"""How long a key is kept after its last answer. Its records leave the log at that age."""
SETTLE_SECONDS = 2.0
"""How long after a signal about a session its last answer may still be on its way through the log."""
RETRACTED_SECONDS = 600.0
"""How long a retracted signal still waits for its answer: it shows that the client received that answer."""
RECENT_SECONDS = 20.0
"""Signals about sessions that came longer ago are found by `sweep`: each tick looks at few rows, however many wait."""
_MAX_SIGNALS = 500


def register(
    connection: Connection, tasks: Mapping[str, Task], arrived: Sequence[Generation], now: float
) -> list[Message]:
    """Store the keys of answers that were just joined; returns the signals about them that can be sent."""
    names = {name for record in arrived for name in rules.names_of(record)}
    if not names:
        return []
    held = repository.answers(connection, names)
    meant = dict(held)
    successions = rules.assign(meant, arrived)
    repository.save_answers(connection, held, meant, now)
    repository.save_calls(connection, arrived)
    followed = _follow_ups(connection, tasks, arrived, successions)
    known = {name: {answer} for name, answer in held.items()}
    for record in arrived:
        for name in rules.names_of(record):
            known.setdefault(name, set()).add(rules.AnswerRef(record.completion_id, record.choice))
    waiting = repository.waiting(connection, meant, _MAX_SIGNALS)
    aimed = [found for item in waiting if (found := _aimed(item, known[item.name])) is not None]
    return _sent([*followed, *credit.shared(connection, tasks, credit.affordable(connection, aimed))])


def settle_sessions(
    connection: Connection, tasks: Mapping[str, Task], now: float, partitions: frozenset[int]
) -> list[Message]:
    """Send signals about sessions that came a moment ago. Call it at the end of the log: then the last answers have been read."""
    came = (now - RECENT_SECONDS, now - SETTLE_SECONDS)
    found = repository.answered(connection, partitions, came, _MAX_SIGNALS)
    return _sent(credit.shared(connection, tasks, credit.affordable(connection, found)))


def off_line(connection: Connection, calls: Mapping[rules.AnswerRef, rules.KeyName]) -> set[rules.AnswerRef]:
    """Those of these calls, by their sessions, that do not lead to the last answer of their session as it is known now."""
    found = repository.calls_of(connection, set(calls.values()))
    known = {name: {call.answer for call in held} - set(main_line(held)) for name, held in found.items()}
    return {answer for answer, name in calls.items() if answer in known.get(name, ())}


def take_back(connection: Connection, retracted: Sequence[Signal], now: float) -> list[Message]:
    """Send what was made from signals about sessions that were taken back."""
    return _sent(credit.take_back(connection, retracted, now))


class Sweep(NamedTuple):
    """What a look at a page of the waiting signals found. `next`: where to look next; None: it was the last page."""

    messages: list[Message]
    next: repository.WaitingId | None


def sweep(
    connection: Connection,
    tasks: Mapping[str, Task],
    now: float,
    partitions: frozenset[int],
    after: repository.WaitingId,
) -> Sweep:
    """Look again for the answers of waiting signals, a page at a time, and reject those that waited too long.

    `partitions`: those that this process has read to the end; signals about other sessions keep waiting.
    """
    these = repository.page(connection, after, _MAX_SIGNALS)
    if not these:
        return Sweep([], None)
    found = repository.answered(connection, partitions, (0.0, now - SETTLE_SECONDS), _MAX_SIGNALS, these)
    now_shared = credit.affordable(connection, found)
    sent = _sent(credit.shared(connection, tasks, now_shared))
    repository.settle(connection, these, now - ORPHAN_SECONDS, now - RETRACTED_SECONDS)
    following = these[-1] if len(these) == _MAX_SIGNALS else None
    return Sweep(sent, after if len(now_shared) < len(found) else following)


def forget(connection: Connection, now: float) -> bool:
    """Delete old keys, some at a time; True if some are left."""
    return repository.forget(connection, now - KEY_SECONDS, _MAX_SIGNALS)


def _aimed(item: repository.WaitingSignal, answers: Iterable[rules.AnswerRef]) -> repository.WaitingSignal | None:
    """The signal with the answer that it means; None if that is not known yet."""
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
    replies = [item for item in successions if rules.follow_up_name(tasks.get(item.record.task))]
    if not replies:
        return []
    records = {rules.AnswerRef(record.completion_id, record.choice): record for record in arrived}
    records |= repository.records(connection, {item.before for item in replies} - records.keys())
    known = ((item, records[item.before]) for item in replies if item.before in records)
    said = (rules.follow_up(item, before, tasks[item.record.task]) for item, before in known)
    return repository.receive(connection, [signal for signal in said if signal is not None])


def _sent(signals: Iterable[Signal]) -> list[Message]:
    return [message(SIGNALS, signal.key, signal) for signal in signals]
