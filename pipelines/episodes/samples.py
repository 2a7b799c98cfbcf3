"""What a batch touches, in memory: generations with their signals and standing, and which of it changed.

A sample is there before its generation arrives: signals may come first.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from contracts.ledger import PENDING
from contracts.records import Generation, Outcome, Signal
from pipelines.episodes.join import Standing

MAX_CHOICES = 8
"""More are neither asked for nor spoken about."""
_NOBODY_YET = Standing("episodes", 0, 0)
Key = tuple[str, int]
SignalName = tuple[str, str, str]
OutcomeName = tuple[int, int, str]


@dataclass
class HeldSignal:
    """A signal and its state. `revision`: the first one that holds it."""

    record: Signal
    state: str
    reason: str = ""
    revision: int | None = None
    is_new: bool = True
    is_changed: bool = False

    def become(self, state: str, reason: str = "") -> None:
        """Take a state; the reason of the one it has is kept."""
        if state != self.state:
            self.state, self.reason, self.is_changed = state, reason, True

    def belong_to(self, revision: int) -> None:
        """Remember the first revision that holds it."""
        if self.revision is None:
            self.revision, self.is_changed = revision, True


@dataclass
class HeldGeneration:
    """A generation and what the ledger says of it.

    `closes_at`: when its next episode is due though nobody says anything more; None once the last window closed. With a
    revision, that is one which was provisional.
    """

    record: Generation
    partition: int
    joined_at: float
    closes_at: float | None
    revision: int = 0
    state: str = PENDING
    state_reason: str = ""
    standing: Standing = _NOBODY_YET
    state_version: int | None = None
    superseded_by: str | None = None
    """The completion of a later try that replaced it; empty: one had, until somebody spoke about it."""
    is_new: bool = True
    is_changed: bool = False

    def close_at(self, closes_at: float | None) -> None:
        """Move the next close; None: there is none."""
        if closes_at != self.closes_at:
            self.closes_at, self.is_changed = closes_at, True

    def raise_revision(self) -> int:
        """What was said about an older revision is open again, unless the trainer said it."""
        self.revision, self.is_changed = self.revision + 1, True
        if self.standing.writer != "training":
            self.state, self.state_reason = PENDING, ""
        return self.revision

    def set_aside(self, superseded_by: str) -> None:
        """A later try replaced it: nothing more is expected. Nobody has said anything of the revision that this begins."""
        if self.superseded_by:
            self.superseded_by, self.is_changed = superseded_by, True
            return
        self.revision = max(1, self.revision)  # what was named at its arrival was named as revision 1
        self.raise_revision()
        self.superseded_by, self.closes_at = superseded_by, None

    def take_up(self) -> None:
        """Nothing replaced it after all."""
        self.raise_revision()
        self.superseded_by = ""

    def stand(self, record: Outcome | None) -> None:
        """Make an outcome its state; None: nobody has decided."""
        standing = Standing(record.writer, record.epoch, record.revision, record.sequence) if record else _NOBODY_YET
        if standing == self.standing and self.state == (record.state if record else PENDING):
            return
        self.standing, self.is_changed = standing, True
        self.state, self.state_reason, self.state_version = PENDING, "", None
        if record is not None:
            self.state, self.state_reason, self.state_version = record.state, record.reason, record.version


@dataclass
class Samples:
    """All that the records of a batch are about. Lives as long as a transaction, which holds what it has read."""

    generations: dict[Key, HeldGeneration] = field(default_factory=dict)
    signals: dict[SignalName, HeldSignal] = field(default_factory=dict)
    outcomes: dict[str, dict[OutcomeName, Outcome]] = field(default_factory=dict)
    """By sample key, then by what makes an outcome one of its own."""
    new_outcomes: list[Outcome] = field(default_factory=list)
    num_duplicates: int = 0
    """Generations that the log holds once more: sent again after a lost acknowledgement."""
    _signals_of: dict[Key, list[HeldSignal]] = field(default_factory=dict)

    def hold(self, found: Iterable[HeldSignal]) -> None:
        """Add signals that are held already."""
        for held in found:
            record = held.record
            self.signals[record.completion_id, record.tenant, record.id] = held
            self._signals_of.setdefault((record.completion_id, record.choice), []).append(held)

    def find_signal(self, record: Signal) -> HeldSignal | None:
        """The one with its name, which may be an earlier word about the same."""
        return self.signals.get((record.completion_id, record.tenant, record.id))

    def add_signal(self, record: Signal, state: str) -> HeldSignal | None:
        """None if its name was there already."""
        if self.find_signal(record) is not None:
            return None
        held = HeldSignal(record, state)
        self.hold([held])
        return held

    def signals_of(self, key: Key, *states: str) -> list[HeldSignal]:
        """The signals of a sample in the given states, oldest first."""
        found = [held for held in self._signals_of.get(key, ()) if held.state in states]
        return sorted(found, key=lambda held: (held.record.at, held.record.id))

    def lacks_choice(self, key: Key) -> bool:
        """True if the completion is known, and never had so many choices."""
        completion_id, choice = key
        if choice == 0 or key in self.generations:
            return False
        siblings = (self.generations.get((completion_id, other)) for other in range(min(choice, MAX_CHOICES)))
        return any(held is not None and 0 < held.record.num_choices <= choice for held in siblings)

    def signals_beyond(self, record: Generation) -> list[HeldSignal]:
        """Signals about choices that its completion never had, and that nobody has judged."""
        if not record.num_choices or not self.signals:
            return []
        beyond = range(record.num_choices, MAX_CHOICES)
        return [held for choice in beyond for held in self.signals_of((record.completion_id, choice), PENDING)]

    def add_generation(self, held: HeldGeneration) -> bool:
        """False if it was there already."""
        key = (held.record.completion_id, held.record.choice)
        is_first = self.generations.setdefault(key, held) is held
        self.num_duplicates += not is_first
        return is_first

    def add_outcome(self, record: Outcome) -> bool:
        """False if this (key, revision, epoch, state) was there already."""
        told = self.outcomes.setdefault(record.key, {})
        if told.setdefault((record.revision, record.epoch, record.state), record) is not record:
            return False
        self.new_outcomes.append(record)
        return True
