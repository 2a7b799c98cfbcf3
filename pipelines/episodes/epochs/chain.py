"""The trainer's epochs as a chain: each names the epoch that it continues, and how much of it the checkpoint kept. Pure.

1 ──▶ 2 ──▶ 4        epoch 4 continues a checkpoint of epoch 2: all outcomes of 3 are void, and those of 2 after `kept_sequence`
       ╲──▶ 3
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from contracts.ledger import EXPIRED, NO_END, PENDING, UNDONE
from contracts.records import Outcome

VOID = -1


class LedgerEntry(NamedTuple):
    """What the ledger holds about one sample: its state, and who wrote it about which revision.

    Fields are the columns of `generation`. By default nobody has decided.
    """

    state: str = PENDING
    state_reason: str = ""
    state_writer: str = "episodes"
    state_epoch: int = 0
    state_revision: int = 0
    state_version: int | None = None
    state_sequence: int = 0

    @property
    def is_undone(self) -> bool:
        """True if its import was taken back: nothing decides it any more."""
        return _is_undone(self.state, self.state_reason, self.state_writer)


class EpochStart(NamedTuple):
    """An epoch that began. `previous` None: it kept no earlier outcome."""

    epoch: int
    previous: int | None
    kept_sequence: int


class LedgerChange(NamedTuple):
    """Outcomes of `epoch` after one sequence and up to another that became valid or void."""

    epoch: int
    after_sequence: int
    through_sequence: int


class Epochs(NamedTuple):
    """The epochs that are known when an outcome is judged."""

    valid_through: Mapping[int, int]
    """Epoch to the sequence of its last valid outcome."""
    issued: Collection[int] = ()
    """Epochs that the database issued; empty until a trainer took a lease."""

    @property
    def newest(self) -> int:
        """The newest epoch that began; -1 if there is no epoch."""
        return max(self.valid_through, default=-1)

    def was_issued(self, epoch: int) -> bool:
        """False if the database issues epochs and did not issue this one. It issued none of those from older releases."""
        return not self.issued or epoch in self.issued or epoch < min(self.issued)

    def holds(self, epoch: int, sequence: int) -> bool:
        """Whether an outcome of the trainer is valid. An epoch that is newer than all known ones is just beginning: it is valid."""
        return sequence <= self.valid_through.get(epoch, VOID) or epoch > self.newest


def valid_through(epochs: Iterable[EpochStart]) -> dict[int, int]:
    """Epoch to the sequence of its last valid outcome: all of the newest epoch, then what each kept of the one before it."""
    known = {item.epoch: item for item in epochs}
    found = dict.fromkeys(known, VOID)
    at, bound = max(known, default=None), NO_END
    while at in known:
        found[at] = bound
        epoch = known[at]
        bound = min(bound, epoch.kept_sequence)
        # An epoch cannot continue a later one; following it would be a circle.
        at = epoch.previous if epoch.previous is not None and epoch.previous < at else None
    return found


def changes(before: Epochs, after: Epochs, heard: Iterable[int]) -> list[LedgerChange]:
    """What a new epoch changed. `heard`: epochs that have outcomes, also those that have not begun."""
    found = []
    for epoch in sorted({*after.valid_through, *heard}):
        old, new = (
            NO_END if known.holds(epoch, NO_END) else known.valid_through.get(epoch, VOID) for known in (before, after)
        )
        if old != new:
            found.append(LedgerChange(epoch, min(old, new), max(old, new)))
    return found


def best(outcomes: Iterable[Outcome], epochs: Epochs, revision: int) -> Outcome | None:
    """The outcome that is the state of a sample with the newest revision `revision`; independent of the order of arrival.

    That its import was taken back is final. So is a valid outcome of the trainer, the last one first. `stale(expired)` says that the trainer
    no longer knows what it decided: it counts only if nothing else was. Other writers count only for the newest revision, and only while the
    trainer has not decided, or has withdrawn its decision.
    """
    said = [item for item in outcomes if item.state != "late"]
    if undone := [item for item in said if _is_undone(item.state, item.reason, item.writer)]:
        return min(undone, key=lambda item: item.at)
    final = [item for item in said if item.writer == "training" and epochs.holds(item.epoch, item.sequence)]
    known = [item for item in final if item.reason != EXPIRED]
    for told in (known, final):
        last = max(told, key=lambda item: (item.epoch, item.sequence, item.revision), default=None)
        if last is not None and last.state != PENDING:
            return last
    others = [item for item in said if item.writer != "training" and item.revision >= revision]
    return max(others, key=lambda item: (item.revision, item.at, item.state), default=last)


def _is_undone(state: str, reason: str, writer: str) -> bool:
    return (state, reason, writer) == ("quarantined", UNDONE, "episodes")


def entry_of(outcomes: Iterable[Outcome], epochs: Epochs, revision: int) -> LedgerEntry:
    """What the ledger holds once these outcomes are known; see `best`."""
    found = best(outcomes, epochs, revision)
    if found is None:
        return LedgerEntry()
    return LedgerEntry(
        found.state, found.reason, found.writer, found.epoch, found.revision, found.version, found.sequence
    )
