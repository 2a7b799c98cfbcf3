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
HEARD = ("", join.SUPERSEDED)
"""Reasons of signals that take room, see `join.crowded_out`: of all that were not rejected."""
SignalName = tuple[str, str, str]
Name = TypeVar("Name")
Row = TypeVar("Row")


class HeldSignal(msgspec.Struct, frozen=True):
    """A signal and its state. `revision`: the first revision of its sample that contains it."""

    record: Signal
    state: str
    reason: str = ""
    revision: int | None = None

    @property
    def heard(self) -> Signal:
        """The signal as `join.crowded_out` takes it: `retracted` if it was taken back."""
        return replace(self.record, retracted=True) if self.state == "retracted" else self.record


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
    _names: dict[Key, dict[SignalName, None]] = field(default_factory=dict)
    """Of the signals that take room, in the order in which they came."""
    _changed: dict[Key, None] = field(default_factory=dict)

    def read_signal(self, held: HeldSignal) -> None:
        """Add a signal that the database holds."""
        self._add(held)
        self.signals.read(name_of(held.record), held)

    def facts(self, sample: SampleState, task: Task | None, now: float, session_at: float | None = None) -> Facts:
        """What the transitions of a sample may look at."""
        return Facts(task, [held.record for held in self.signals_of(sample.key, *COUNTING)], now, session_at)

    def signals_of(self, key: Key, *states: str) -> list[HeldSignal]:
        """The signals of a sample in the given states, oldest first."""
        names = self._names.get(key, ())
        if len(names) == 1:  # by far the most
            only = self.signals[next(iter(names))]
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
                    self._reject(early, NO_SUCH_CHOICE)
        return True

    def add_signal(self, record: Signal, task: Task | None) -> None:
        """Add a signal, or take one back. What counts of its sample is judged later, once for many, see `take_changed`."""
        key, name = (record.completion_id, record.choice), name_of(record)
        sample, known = self.states.get(key), self.signals.get(name)
        if known is not None:
            # A task that was removed judges nothing any more; its samples keep what they have.
            if record.retracted and self._take_back(known) and sample is not None and task is not None:
                self._changed[key] = None
            return
        refusal = self._refusal(record, task)
        crowded_out = None if refusal else join.crowded_out(record, self._heard(key, record.tenant))
        if crowded_out is record:
            refusal = join.TOO_MANY
        elif crowded_out is not None:
            self._reject(self.signals[name_of(crowded_out)], join.TOO_MANY)
        state = "rejected" if refusal else PENDING if sample is None else "joined"
        self._add(HeldSignal(record, "retracted" if record.retracted else state, refusal))
        if state == "joined" and not record.retracted:
            self._changed[key] = None

    def take_changed(self, completion_id: str | None = None) -> list[Key]:
        """Samples, of one completion or of all, whose evidence has changed since they were last taken: `judge` them first."""
        keys = [key for key in self._changed if completion_id in {None, key[0]}] if self._changed else []
        for key in keys:
            del self._changed[key]
        return keys

    def judge(self, about: Generation, task: Task) -> None:
        """Judge all signals of a sample again, so that the result does not depend on the order of arrival."""
        heard = self.signals_of((about.completion_id, about.choice), *COUNTING, "conflict")
        lost = join.superseded([held.record for held in heard])
        for held in heard:
            if held.record.id in lost:
                self._become(held, "conflict", join.SUPERSEDED)
            else:
                self._become(held, join.state_on_arrival(held.record, about, join.deadline(about, task, held.record)))

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
                self.signals[name_of(held.record)] = replace(held, revision=revision)

    def _judge_waiting(self, about: Generation, task: Task | None) -> None:
        is_evidence = False
        for held in self.signals_of((about.completion_id, about.choice), PENDING, "retracted"):
            if reason := join.rejection(held.record, about, task):
                self._reject(held, reason)
            elif held.state == PENDING:
                self._become(held, "joined")
                is_evidence = True
        if is_evidence and task is not None:
            self.judge(about, task)

    def _refusal(self, record: Signal, task: Task | None) -> str:
        """Why a signal does not count, as far as its answer is known; empty if nothing speaks against it."""
        key = (record.completion_id, record.choice)
        if (sample := self.states.get(key)) is not None:
            return join.rejection(record, sample.record, task)
        return NO_SUCH_CHOICE if self._lacks_choice(key) else ""

    def _take_back(self, known: HeldSignal) -> bool:
        """True if the signal was evidence."""
        if known.state != "retracted":
            self._become(known, "retracted", known.reason if known.state == "rejected" else "")
        return known.state in COUNTING

    def _reject(self, held: HeldSignal, reason: str) -> None:
        """What was taken back stays so, and remembers why it does not count."""
        self._become(held, held.state if held.state == "retracted" else "rejected", reason)

    def _become(self, held: HeldSignal, state: str, reason: str = "") -> None:
        if (state, reason) != (held.state, held.reason):
            self._add(replace(held, state=state, reason=reason))

    def _lacks_choice(self, key: Key) -> bool:
        """True if the completion is known, and had fewer choices."""
        completion_id, choice = key
        return key not in self.states and any(
            0 < sample.record.num_choices <= choice for sample in self.choices_of(completion_id)
        )

    def _heard(self, key: Key, tenant: str) -> list[Signal]:
        """The signals of a tenant about an answer that take room."""
        return [self.signals[name].heard for name in self._names.get(key, ()) if name[1] == tenant]

    def _add(self, held: HeldSignal) -> None:
        """Keep the state of a signal; what does not count at all is found by its name alone."""
        name, names = name_of(held.record), self._names.setdefault((held.record.completion_id, held.record.choice), {})
        self.signals[name] = held
        if held.reason in HEARD:
            names[name] = None
        else:
            names.pop(name, None)


def name_of(record: Signal) -> SignalName:
    """The primary key of a signal."""
    return record.completion_id, record.tenant, record.id
