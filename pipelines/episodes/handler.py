"""The join and the ledger.

In: generations and signals (in any order), outcomes. Out: episodes, one revision at the first decisive signal or when
the window closes, one more for every later piece of evidence; outcomes for what never becomes an episode of a user.
Waits: for windows to close, which `tick` does.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Literal

from sqlalchemy import Connection

from contracts.event_log import LogRecord, Message
from contracts.ids import parse_sample_key
from contracts.outbox import message
from contracts.records import Episode, Generation, Outcome, Signal, State, decode
from contracts.tasks import Task
from contracts.topics import EPISODES, GENERATIONS, OUTCOMES, SIGNALS
from pipelines.episodes import join, repository
from pipelines.episodes.repository import Joined, Key

_DUE_AT_ONCE = 200
Reason = Literal["decisive", "window"]


class EpisodesHandler:
    """See the module docstring. Clock: UTC epoch seconds."""

    name = "episodes"
    topics = (GENERATIONS, SIGNALS, OUTCOMES)

    def __init__(self, tasks: Mapping[str, Task], clock: Callable[[], float] = time.time) -> None:
        self._tasks = tasks
        self._clock = clock

    def handle(self, connection: Connection, record: LogRecord) -> list[Message]:
        """Apply one record once."""
        if record.topic == GENERATIONS:
            return self._generation(connection, decode(Generation, record.value), record.partition)
        if record.topic == SIGNALS:
            return self._signal(connection, decode(Signal, record.value))
        self._outcome(connection, decode(Outcome, record.value))
        return []

    def tick(self, connection: Connection, now: float, partitions: frozenset[int]) -> list[Message]:
        """Close windows that have passed; what was not emitted yet is emitted with whatever it has."""
        messages = []
        for key in repository.due(connection, now, partitions, _DUE_AT_ONCE):
            repository.close_window(connection, key)
            held = repository.find_generation(connection, key)
            if held is not None and held.revision == 0:
                messages += self._emit(connection, key, held, "window")
        return messages

    def _generation(self, connection: Connection, record: Generation, partition: int) -> list[Message]:
        task = self._tasks.get(record.task)
        fate = self._fate(record, task)
        closes_at = join.deadline(record, task) if task and fate is None else None
        if not repository.add_generation(connection, record, partition, self._clock(), closes_at):
            return []
        key = (record.completion_id, record.choice)
        held = Joined(record, closes_at, 0)
        for early in repository.signals_of(connection, key, "pending"):
            self._settle(connection, early, record, task)
        if fate is not None:
            messages = [self._fated(record, *fate)]
            # Sentinels and rollouts are scored like everything else; only a user's generation waits for signals.
            return messages + (self._emit(connection, key, held, "window") if task and fate[0] == "filtered" else [])
        return self._emit_if_decisive(connection, key, held)

    def _fate(self, record: Generation, task: Task | None) -> tuple[State, str] | None:
        """What a generation is from the start, if it will not wait for signals."""
        if record.finish_reason == "cancelled":
            return "cancelled", "client_left"
        if record.finish_reason == "error":
            return "cancelled", "engine_failed"
        if task is None:
            return "filtered", "unknown_task"
        if record.purpose != "user":
            return "filtered", record.purpose
        return None

    def _signal(self, connection: Connection, record: Signal) -> list[Message]:
        key = (record.completion_id, record.choice)
        held = repository.find_generation(connection, key)
        if record.retracted:
            return self._retraction(connection, record, key, held)
        if not repository.add_signal(connection, record, "pending") or held is None:
            return []
        if not self._settle(connection, record, held.record, self._tasks.get(held.record.task)):
            return []
        if held.revision == 0:
            return self._emit_if_decisive(connection, key, held)
        return self._emit_again(connection, key, held)

    def _retraction(self, connection: Connection, record: Signal, key: Key, held: Joined | None) -> list[Message]:
        before = repository.set_signal_state(connection, record, "retracted")
        if before is None:
            repository.add_signal(connection, record, "retracted")
        # A task that was removed since judges nothing any more; its samples keep what they have.
        task = self._tasks.get(held.record.task) if held else None
        if held is None or task is None or before not in {"joined", "late"}:
            return []
        self._resolve(connection, held.record, task)
        return self._emit_again(connection, key, held)

    def _settle(self, connection: Connection, record: Signal, about: Generation, task: Task | None) -> bool:
        """Give a signal whose generation is known its state; False if it must not count."""
        declared = task is not None and record.name in task.signals
        if task is None or not declared or record.tenant != about.tenant:
            reason = "other_tenant" if declared else "undeclared_signal"
            repository.set_signal_state(connection, record, "rejected", reason)
            return False
        repository.set_signal_state(connection, record, "joined")
        self._resolve(connection, about, task)
        return True

    def _resolve(self, connection: Connection, about: Generation, task: Task) -> None:
        """Judge all signals of a sample anew, so that the result does not depend on the order of arrival."""
        key = (about.completion_id, about.choice)
        heard = repository.signals_of(connection, key, "joined", "late", "conflict")
        lost = join.superseded(heard)
        for signal in heard:
            if signal.id in lost:
                repository.set_signal_state(connection, signal, "conflict", "superseded")
            else:
                state = join.state_on_arrival(signal, join.deadline(about, task))
                repository.set_signal_state(connection, signal, state)

    def _emit_if_decisive(self, connection: Connection, key: Key, held: Joined) -> list[Message]:
        task = self._tasks[held.record.task]
        if held.closes_at is None or not join.is_decisive(task, self._counting(connection, key)):
            return []
        return self._emit(connection, key, held, "decisive")

    def _emit_again(self, connection: Connection, key: Key, held: Joined) -> list[Message]:
        """Later evidence makes a new revision of what was emitted, never a rewrite."""
        if held.revision == 0 or held.record.purpose != "user":
            return []
        return self._emit(connection, key, held, "decisive")

    def _emit(self, connection: Connection, key: Key, held: Joined, reason: Reason) -> list[Message]:
        # Only a user's generation is judged by signals; the others are scored by what they say alone.
        signals = self._counting(connection, key) if held.record.purpose == "user" else []
        revision = repository.next_revision(connection, key)
        repository.set_signal_revision(connection, signals, revision)
        episode = Episode(
            key=held.record.key,
            revision=revision,
            reason=reason,
            turns=(held.record,),
            signals=tuple(signals),
            closed_at=self._clock(),
        )
        return [message(EPISODES, episode.key, episode)]

    def _counting(self, connection: Connection, key: Key) -> list[Signal]:
        return repository.signals_of(connection, key, "joined", "late")

    def _fated(self, record: Generation, state: State, reason: str) -> Message:
        outcome = Outcome(
            key=record.key, revision=1, epoch=0, state=state, reason=reason, writer="episodes", at=self._clock()
        )
        return message(OUTCOMES, outcome.key, outcome)

    def _outcome(self, connection: Connection, record: Outcome) -> None:
        if not repository.add_outcome(connection, record) or record.state == "epoch_started":
            return
        key = parse_sample_key(record.key)
        found = repository.find_standing(connection, key)
        if found is not None and join.replaces(record, *found):
            repository.set_standing(connection, key, record)
