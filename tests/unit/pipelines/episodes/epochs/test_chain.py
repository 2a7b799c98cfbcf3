from __future__ import annotations

from typing import Any

import msgspec

from contracts.ledger import NO_END
from contracts.records import Outcome
from pipelines.episodes.epochs.chain import Epochs, EpochStart, LedgerChange, best, changes, valid_through
from tests.each_case import each_case


@each_case(
    ("epochs", "wanted"),
    [
        ([], {}),
        ([EpochStart(1, None, 0)], {1: NO_END}),
        # A restart keeps what the checkpoint holds, a second one what that held.
        ([EpochStart(1, None, 0), EpochStart(2, 1, 5), EpochStart(3, 2, 9)], {1: 5, 2: 9, 3: NO_END}),
        # The newest checkpoint of epoch 2 was refused: epoch 3 goes on from one of epoch 1.
        ([EpochStart(1, None, 0), EpochStart(2, 1, 5), EpochStart(3, 1, 4)], {1: 4, 2: -1, 3: NO_END}),
        # Later it can be read again: its story is the last one.
        ([EpochStart(1, None, 0), EpochStart(2, 1, 5), EpochStart(3, 1, 4), EpochStart(4, 2, 7)], {1: 5, 2: 7, 3: -1, 4: NO_END}),
        # Everything is told again: nothing older counts.
        ([EpochStart(7, None, 0), EpochStart(9, None, 0)], {7: -1, 9: NO_END}),
        ([EpochStart(7, None, -1), EpochStart(9, 7, -1)], {7: -1, 9: NO_END}),
        # What no trainer says: a circle, a predecessor that never began, less kept later than earlier.
        ([EpochStart(1, 2, 5), EpochStart(2, 2, 5)], {1: -1, 2: NO_END}),
        ([EpochStart(3, 2, 5)], {3: NO_END}),
        ([EpochStart(1, None, 0), EpochStart(2, 1, 9), EpochStart(3, 2, 4)], {1: 4, 2: 4, 3: NO_END}),
    ],
)  # fmt: skip
def test_how_far_each_epoch_holds(epochs: list[EpochStart], wanted: dict[int, int]) -> None:
    assert valid_through(epochs) == wanted
    assert valid_through(reversed(epochs)) == wanted


def test_what_changes_is_what_began_or_ceased_to_hold() -> None:
    before = Epochs({1: 5, 2: NO_END})
    assert changes(before, Epochs({1: 5, 2: 9, 3: NO_END}), [3]) == [LedgerChange(2, 9, NO_END)]
    assert changes(before, Epochs({1: 4, 2: -1, 3: NO_END}), []) == [
        LedgerChange(1, 4, 5),
        LedgerChange(2, -1, NO_END),
    ]
    # Epoch 3 was believed because it was the newest, and another one began first.
    assert changes(before, Epochs({1: 5, 2: 9, 4: NO_END}), [3]) == [
        LedgerChange(2, 9, NO_END),
        LedgerChange(3, -1, NO_END),
    ]


def test_an_epoch_that_is_newer_than_all_is_beginning_and_an_older_unknown_one_is_void() -> None:
    epochs = Epochs({2: NO_END})
    assert epochs.holds(3, 1)
    assert not epochs.holds(1, 0)
    assert Epochs({}).holds(0, 0)


def test_an_epoch_that_was_never_issued() -> None:
    assert Epochs({}).was_issued(99)
    issued = Epochs({}, {4, 6})
    assert [issued.was_issued(epoch) for epoch in (3, 4, 5, 6, 7)] == [True, True, False, True, False]


def said(writer: str, epoch: int, sequence: int, state: str, revision: int = 1) -> Outcome:
    fields: dict[str, Any] = {"writer": writer, "epoch": epoch, "sequence": sequence, "state": state}
    return Outcome(key="k:0", revision=revision, at=1.0, **fields)


TRAINED, QUARANTINED = said("training", 1, 3, "trained"), said("training", 2, 8, "quarantined")
SILENT = said("rewards", 0, 0, "unlabelled", 2)
EXPIRED = msgspec.structs.replace(said("training", 2, 9, "stale"), reason="expired")
TAKEN_BACK = said("training", 2, 9, "pending")
OFF_SUPPORT = said("training", 1, 3, "off_support")
UNDONE = msgspec.structs.replace(said("episodes", 0, 0, "quarantined"), reason="import")


@each_case(
    ("told", "epochs", "revision", "wanted"),
    [
        ([], Epochs({}), 0, None),
        ([SILENT], Epochs({}), 2, SILENT),
        # What was said about an older revision is no longer the state of a sample that has a newer one.
        ([SILENT], Epochs({}), 3, None),
        ([SILENT, said("rewards", 0, 0, "unscored", 3)], Epochs({}), 2, said("rewards", 0, 0, "unscored", 3)),
        # The trainer's word stands, whatever others say about whichever revision; `late` is no state.
        ([TRAINED, said("rewards", 0, 0, "unlabelled", 9)], Epochs({1: NO_END}), 9, TRAINED),
        ([TRAINED, said("training", 1, 4, "late", 2)], Epochs({1: NO_END}), 2, TRAINED),
        # An older word that holds shows again.
        ([TRAINED, QUARANTINED, SILENT], Epochs({1: 5, 2: NO_END}), 2, QUARANTINED),
        ([TRAINED, QUARANTINED, SILENT], Epochs({1: 5, 2: 7, 3: NO_END}), 2, TRAINED),
        ([TRAINED, QUARANTINED, SILENT], Epochs({1: 2, 2: -1, 3: NO_END}), 2, SILENT),
        ([TRAINED, QUARANTINED, SILENT], Epochs({1: 2, 2: -1, 3: NO_END}), 3, None),
        # Before numbers, the newest epoch's newest revision.
        ([said("training", 7, 0, "filtered"), said("training", 7, 0, "trained", 2)], Epochs({7: NO_END}), 2,
         said("training", 7, 0, "trained", 2)),
        # It took its word back: the others have theirs again, or nobody.
        ([TRAINED, TAKEN_BACK, SILENT], Epochs({1: 5, 2: NO_END}), 2, SILENT),
        ([TRAINED, TAKEN_BACK], Epochs({1: 5, 2: NO_END}), 1, TAKEN_BACK),
        # It no longer knows what it decided: whatever it said before stands.
        ([TRAINED, EXPIRED], Epochs({1: 5, 2: NO_END}), 1, TRAINED),
        ([EXPIRED, SILENT], Epochs({1: 5, 2: NO_END}), 2, EXPIRED),
        ([TRAINED, said("training", 2, 7, "pending"), EXPIRED], Epochs({1: 5, 2: NO_END}), 1, EXPIRED),
        ([TRAINED, TAKEN_BACK], Epochs({1: 5, 2: 8, 3: NO_END}), 1, TRAINED),
        # An import that was taken back stays so, whoever says what about any revision.
        ([UNDONE, OFF_SUPPORT, said("rewards", 0, 0, "unlabelled", 9)], Epochs({1: NO_END}), 9, UNDONE),
    ],
)  # fmt: skip
def test_which_outcome_is_the_state(told: list[Outcome], epochs: Epochs, revision: int, wanted: Outcome | None) -> None:
    assert best(told, epochs, revision) == wanted
    assert best(reversed(told), epochs, revision) == wanted
