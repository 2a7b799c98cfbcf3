"""The trainer's epochs as one story: each names the epoch it goes on from, and how much of it the checkpoint kept. Pure.

1 ──▶ 2 ──▶ 4        epoch 4 went on from a checkpoint of epoch 2: what 3 said is void, of 2 what came up to `kept`
       ╲──▶ 3
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from contracts.ledger import NO_END, PENDING
from contracts.records import Outcome

VOID = -1


class Epoch(NamedTuple):
    """One that began. `previous` None: it kept nothing of what was said before."""

    epoch: int
    previous: int | None
    kept_sequence: int


class Change(NamedTuple):
    """Outcomes of `epoch` after one sequence and up to another began to hold, or no longer do."""

    epoch: int
    after_sequence: int
    through_sequence: int


class Epochs(NamedTuple):
    """What is known when an outcome is judged."""

    valid_through: Mapping[int, int]
    """Epoch to the last sequence of it that holds."""
    issued: Collection[int] = ()
    """What the database issued; empty in a home that no trainer with a lease has met yet."""

    @property
    def newest(self) -> int:
        """The newest that began; -1 if none did."""
        return max(self.valid_through, default=-1)

    def was_issued(self, epoch: int) -> bool:
        """False if the database issues epochs and this is none of them. Older ones are of before it did."""
        return not self.issued or epoch in self.issued or epoch < min(self.issued)

    def holds(self, epoch: int, sequence: int) -> bool:
        """Whether an outcome of the trainer counts; that of an epoch newer than all that began does: it is beginning."""
        return sequence <= self.valid_through.get(epoch, VOID) or epoch > self.newest


def valid_through(epochs: Iterable[Epoch]) -> dict[int, int]:
    """Epoch to the last sequence of it that holds: all of the newest, then what each kept of the one before it."""
    known = {item.epoch: item for item in epochs}
    found = dict.fromkeys(known, VOID)
    at, bound = max(known, default=None), NO_END
    while at in known:
        found[at] = bound
        epoch = known[at]
        bound = min(bound, epoch.kept_sequence)
        # An epoch that goes on from a later one is nonsense, and must not make a circle.
        at = epoch.previous if epoch.previous is not None and epoch.previous < at else None
    return found


def changes(before: Epochs, after: Epochs, heard: Iterable[int]) -> list[Change]:
    """What another epoch changed. `heard`: epochs that said something, also those that have not begun."""
    found = []
    for epoch in sorted({*after.valid_through, *heard}):
        old, new = (
            NO_END if known.holds(epoch, NO_END) else known.valid_through.get(epoch, VOID) for known in (before, after)
        )
        if old != new:
            found.append(Change(epoch, min(old, new), max(old, new)))
    return found


def best(outcomes: Iterable[Outcome], epochs: Epochs, revision: int) -> Outcome | None:
    """What is the state of a generation whose newest revision is `revision`; it does not depend on the order of arrival.

    The trainer's word is final: of those that hold, the one said last. Other writers speak only about the newest revision,
    and only while the trainer has said nothing, or that it took its word back.
    """
    said = [item for item in outcomes if item.state != "late"]
    final = [item for item in said if item.writer == "training" and epochs.holds(item.epoch, item.sequence)]
    last = max(final, key=lambda item: (item.epoch, item.sequence, item.revision), default=None)
    if last is not None and last.state != PENDING:
        return last
    others = [item for item in said if item.writer != "training" and item.revision >= revision]
    return max(others, key=lambda item: (item.revision, item.at, item.state), default=last)
