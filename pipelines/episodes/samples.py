"""What a batch touches, in memory: samples, their signals and their outcomes, and which of them changed.

Signals may arrive before their generation: then a sample has signals and no state yet.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeVar

import msgspec
from msgspec.structs import replace

from contracts.ledger import PENDING
from contracts.records import Generation, Outcome, Signal
from contracts.tasks import Task
from pipelines.episodes import join
from pipelines.episodes.lifecycle import Facts, Key, SampleState

MAX_CHOICES = 8
"""A completion never has more choices than this."""
NO_SUCH_CHOICE = "no_such_choice"
COUNTING = ("joined", "late")
"""States of a signal that is evidence."""
SignalName = tuple[str, str, str]
"""Completion id, tenant and signal id."""
Name = TypeVar("Name")
Row = TypeVar("Row")


class HeldSignal(msgspec.Struct, frozen=True):
    """A signal and its state. `revision`: the first revision of its sample that contains it."""

    record: Signal
    state: str
    reason: str = ""
    revision: int | None = None


class Tracked(dict[Name, Row]):
    """Rows by name. It remembers what was read from the database, so that only the differences are written."""

    def __init__(self) -> None:
        super().__init__()
        self._stored: dict[Name, Row] = {}

    def read(self, name: Name, row: Row) -> None:
        """Add a row that the database holds."""
        self[name] = self._stored[name] = row

    @property
    def new(self) -> list[Row]:
        """Rows that the database does not hold yet."""
        return [row for name, row in self.items() if name not in self._stored]

    @property
    def changed(self) -> list[Row]:
        """Rows that the database holds with other values."""
        return [row for name, row in self.items() if self._stored.get(name, row) != row]


@dataclass
class Samples:
    """All samples that a batch is about. Lives as long as a transaction, which locks what it has read."""

    states: Tracked[Key, SampleState] = field(default_factory=Tracked)
    signals: Tracked[SignalName, HeldSignal] = field(default_factory=Tracked)
    outcomes: dict[str, dict[tuple[int, int, str], Outcome]] = field(default_factory=dict)
    """By sample key, then by (revision, epoch, state)."""
    new_outcomes: list[Outcome] = field(default_factory=list)
    num_duplicates: int = 0
    """Generations that the log holds more than once: they were sent again after a lost acknowledgement."""
    _names: dict[Key, list[SignalName]] = field(default_factory=dict)

    def read_signal(self, held: HeldSignal) -> None:
        """Add a signal that the database holds."""
        self.signals.read(self._index(held.record), held)

    def facts(self, sample: SampleState, task: Task | None, now: float, session_at: float | None = None) -> Facts:
        """What the transitions of a sample may look at."""
        return Facts(task, [held.record for held in self.signals_of(sample.key, *COUNTING)], now, session_at)

    def signals_of(self, key: Key, *states: str) -> list[HeldSignal]:
        """The signals of a sample in the given states, oldest first."""
        names = self._names.get(key, ())
        if len(names) == 1:  # by far the most
            only = self.signals[names[0]]
            return [only] if only.state in states else []
        found = [held for name in names if (held := self.signals[name]).state in states]
        found.sort(key=lambda held: (held.record.at, held.record.id))
        return found

    def choices_of(self, completion_id: str) -> list[SampleState]:
        """The samples of one completion."""
        first = self.states.get((completion_id, 0))
        num = (first and first.record.num_choices) or MAX_CHOICES
        return [found for choice in range(num) if (found := self.states.get((completion_id, choice)))]

    def add_generation(self, sample: SampleState, task: Task | None) -> bool:
        """Add a generation and judge the signals that came before it; False if it was there already."""
        if self.states.setdefault(sample.key, sample) is not sample:
            self.num_duplicates += 1
            return False
        if self._names:
            self._judge_waiting(sample.record, task)
            for choice in range(sample.record.num_choices or MAX_CHOICES, MAX_CHOICES):
                for early in self.signals_of((sample.record.completion_id, choice), PENDING):
                    self._become(early, "rejected", NO_SUCH_CHOICE)
        return True

    def add_signal(self, record: Signal, task: Task | None) -> bool:
        """Add a signal, or take one back; True if the evidence about its sample has changed."""
        key, name = (record.completion_id, record.choice), _name_of(record)
        sample, known = self.states.get(key), self.signals.get(name)
        if known is None:
            held = HeldSignal(record, "retracted" if record.retracted else PENDING)
            self.signals[self._index(record)] = held
            if not record.retracted and self._lacks_choice(key):
                self._become(held, "rejected", NO_SUCH_CHOICE)
            return sample is not None and self._judge_waiting(sample.record, task)
        if not record.retracted:
            return False
        self._become(known, "retracted")
        # A task that was removed judges nothing any more; its samples keep what they have.
        if sample is None or task is None or known.state not in COUNTING:
            return False
        self._judge_counting(sample.record, task)
        return True

    def add_outcome(self, record: Outcome) -> bool:
        """False if this (key, revision, epoch, state) was there already."""
        told = self.outcomes.setdefault(record.key, {})
        if told.setdefault((record.revision, record.epoch, record.state), record) is not record:
            return False
        self.new_outcomes.append(record)
        return True

    def sent(self, key: Key, revision: int) -> None:
        """An episode was sent: its signals belong to this revision, unless an earlier one contained them."""
        for held in self.signals_of(key, *COUNTING):
            if held.revision is None:
                self.signals[_name_of(held.record)] = replace(held, revision=revision)

    def _judge_waiting(self, about: Generation, task: Task | None) -> bool:
        """Judge the signals that waited for their generation; True if one of them counts."""
        is_evidence = False
        for held in self.signals_of((about.completion_id, about.choice), PENDING):
            reason = join.rejection(held.record, about, task)
            self._become(held, "rejected" if reason else "joined", reason)
            is_evidence |= not reason
        if is_evidence and task is not None:
            self._judge_counting(about, task)
        return is_evidence

    def _judge_counting(self, about: Generation, task: Task) -> None:
        """Judge all signals of a sample again, so that the result does not depend on the order of arrival."""
        heard = self.signals_of((about.completion_id, about.choice), *COUNTING, "conflict")
        lost = join.superseded([held.record for held in heard])
        for held in heard:
            if held.record.id in lost:
                self._become(held, "conflict", "superseded")
            else:
                self._become(held, join.state_on_arrival(held.record, join.deadline(about, task, held.record)))

    def _become(self, held: HeldSignal, state: str, reason: str = "") -> None:
        if state != held.state:
            self.signals[_name_of(held.record)] = replace(held, state=state, reason=reason)

    def _lacks_choice(self, key: Key) -> bool:
        """True if the completion is known, and had fewer choices."""
        completion_id, choice = key
        return key not in self.states and any(
            0 < sample.record.num_choices <= choice for sample in self.choices_of(completion_id)
        )

    def _index(self, record: Signal) -> SignalName:
        name = _name_of(record)
        self._names.setdefault((record.completion_id, record.choice), []).append(name)
        return name


def _name_of(record: Signal) -> SignalName:
    return record.completion_id, record.tenant, record.id
