"""The join on a database, with a clock that tests move."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import delete

from contracts.event_log import LogRecord
from contracts.ledger import signal_counts
from contracts.records import Episode, Experience, Generation, Outcome, Record, Signal, decode, encode
from contracts.tables import outbox
from contracts.tasks import Task
from contracts.topics import EPISODES, EXPERIENCES, GENERATIONS, OUTCOMES, SIGNALS
from pipelines.episodes.handler import EpisodesHandler
from runtime.database import Database
from runtime.log.outbox import waiting
from services.feedback import repository as feedback
from services.feedback.requests import read_item
from tests.ledger_states import signal_states

TOPICS: dict[type[Record], str] = {Generation: GENERATIONS, Signal: SIGNALS, Outcome: OUTCOMES}
KINDS: dict[str, type[Record]] = {EPISODES: Episode, EXPERIENCES: Experience, SIGNALS: Signal, OUTCOMES: Outcome}


class Join:
    """A process with these tasks. Signals that it sends to itself are read at once."""

    def __init__(self, database: Database, *tasks: Task) -> None:
        self.database = database
        self.now = 103.0
        self.sent: list[Record] = []
        self.tasks = tasks
        self._handler = EpisodesHandler({task.name: task for task in tasks}, lambda: self.now)
        self._is_at_end = False

    def hear(self, *records: Record) -> list[Episode]:
        """Process a batch; returns the episodes that it sends."""
        before = len(self.sent)
        while records:
            wires = [LogRecord(TOPICS[type(record)], 0, 0, "", encode(record), 0.0) for record in records]
            with self.database.transaction() as connection:
                messages = self._handler.handle(connection, self._handler.prepare([*map(self._handler.read, wires)]))
            self._is_at_end = len(wires) < self._handler.batch_size
            records = self._keep(messages)
        return self._episodes(before)

    def wait(self, until: float) -> list[Episode]:
        """Move the clock; returns the episodes that are sent."""
        self.now, before = until, len(self.sent)
        with self.database.transaction() as connection:
            messages = self._handler.tick(connection, until, frozenset({0}), is_at_end=self._is_at_end)
        self.hear(*self._keep(messages))
        return self._episodes(before)

    def _episodes(self, since: int) -> list[Episode]:
        return [record for record in self.sent[since:] if isinstance(record, Episode)]

    def receive(self, *items: dict[str, Any], tenant: str = "default", at: float = 102.0) -> None:
        """Send items through feedback to the join."""
        tasks = {task.name: task for task in self.tasks}
        read = [read_item({"name": "accepted", "value": True} | item, tasks, tenant, at) for item in items]
        with self.database.transaction() as connection:
            feedback.add(connection, read)
        self.relay()

    def take_back(self, signal_id: str, tenant: str = "default") -> None:
        """Retract a signal through feedback."""
        with self.database.transaction() as connection:
            feedback.retract(connection, [feedback.Retraction(tenant, signal_id, self.now)])
        self.relay()

    def relay(self) -> None:
        """Pass the outbox of feedback to the join."""
        with self.database.transaction() as connection:
            wires = [item.value for item in waiting(connection, SIGNALS)]
            connection.execute(delete(outbox))
        self.hear(*(decode(Signal, wire) for wire in wires))

    def counts(self) -> dict[str, int]:
        """The number of signals in each state; every received signal has one."""
        with self.database.snapshot() as connection:
            found = signal_counts(connection)
        assert found.unexplained == 0
        return {state: count for state, count in found.states.items() if count}

    def states(self) -> dict[str, str]:
        with self.database.snapshot() as connection:
            return signal_states(connection)

    def _keep(self, messages: list[Any]) -> tuple[Signal, ...]:
        records = [decode(KINDS[item.topic], item.value) for item in messages]
        self.sent += records
        return tuple(record for record in records if isinstance(record, Signal))


def a_task(signals: Mapping[str, Mapping[str, Any]], **changes: Any) -> Task:
    """A task with a window of ten seconds and without verifiers."""
    content = {"name": "booking", "window_seconds": 10, "signals": signals, "reward": {"low": -1.0}}
    return Task.model_validate(content | changes)
