from __future__ import annotations

from typing import Any

import pytest

from contracts.ledger import NO_END
from contracts.records import Outcome
from pipelines.episodes.epochs.chain import Epochs
from pipelines.episodes.join import Standing, replaces, superseded
from tests.fakes import a_generation, a_signal

OPEN = Standing("episodes", 0, 0)


def outcome(writer: str, revision: int, epoch: int = 0, state: str = "unlabelled") -> Outcome:
    fields: dict[str, Any] = {"writer": writer, "revision": revision, "epoch": epoch, "state": state}
    return Outcome(key="k:0", at=1.0, **fields)


@pytest.mark.parametrize(
    ("said", "standing", "revision", "wanted"),
    [
        (outcome("rewards", 1), OPEN, 1, True),
        # What was said about an older revision is no longer the state of a sample that has a newer one.
        (outcome("rewards", 1), OPEN, 2, False),
        (outcome("rewards", 2), Standing("rewards", 0, 1), 2, True),
        # The trainer's word stands, whatever others say later about whichever revision.
        (outcome("training", 1, 1, "trained"), Standing("rewards", 0, 2), 2, True),
        (outcome("rewards", 3), Standing("training", 1, 1), 3, False),
        # Among the trainer's own the highest epoch wins, then the highest revision; `late` is no state.
        (outcome("training", 1, 2, "quarantined"), Standing("training", 1, 3), 3, True),
        (outcome("training", 3, 1, "trained"), Standing("training", 2, 1), 3, False),
        (outcome("training", 2, 1, "stale"), Standing("training", 1, 1), 2, True),
        (outcome("training", 2, 1, "late"), Standing("training", 1, 1), 2, False),
    ],
)
def test_which_outcome_becomes_the_state(said: Outcome, standing: Standing, revision: int, wanted: bool) -> None:
    assert replaces(said, standing, revision, Epochs({1: NO_END, 2: NO_END})) is wanted


def test_of_two_things_one_person_said_the_later_counts_and_others_are_not_touched() -> None:
    about = a_generation()
    first, second = a_signal(about, value=True, at=1.0), a_signal(about, value=False, at=2.0)
    same = a_signal(about, value=False, at=3.0)
    comment = a_signal(about, "comment", "hm", at=4.0)
    assert superseded([same, comment, second, first]) == {first.id}


def test_everything_that_differs_from_the_last_word_lost() -> None:
    about = a_generation()
    said = [a_signal(about, value=value, at=at) for at, value in enumerate([True, True, False])]
    assert superseded(said) == {said[0].id, said[1].id}
    assert superseded([said[0], said[2]]) == {said[0].id}, "taking back what had lost anyway changes nothing"
