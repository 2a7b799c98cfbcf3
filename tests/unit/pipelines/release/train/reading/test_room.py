"""How many answers a comparison gets."""

from __future__ import annotations

import pytest

from contracts.assignments import CANARY, HOLDOUT, LEARNING, LIVE
from pipelines.release.train.reading import room as module
from pipelines.release.train.reading.room import Room
from pipelines.release.train.reading.sampling import CONTROL


@pytest.fixture
def room(monkeypatch: pytest.MonkeyPatch) -> Room:
    monkeypatch.setattr(module, "LEARNING_ROWS", 3)
    monkeypatch.setattr(module, "HELD_ROWS", 3)
    return Room(lambda: 0.0)


def test_both_sides_of_the_learning_arm_end_together(room: Room) -> None:
    assert [room.take(arm, 5, is_held=False) for arm in (LEARNING, CONTROL, CONTROL, LEARNING, CONTROL)] == [
        True, True, True, False, False,
    ]  # fmt: skip
    assert room.take(LEARNING, 6, is_held=False)
    assert room.take(LIVE, 5, is_held=False), "the train of the same version has room of its own"


def test_a_train_is_bounded_only_while_nothing_can_move(room: Room) -> None:
    assert [room.take(arm, 5, is_held=False) for arm in (CANARY, LIVE) * 3] == [True] * 6
    assert not room.take(CANARY, 5, is_held=True)
    assert not room.take(LIVE, 5, is_held=True)
    assert room.take(HOLDOUT, 5, is_held=True)
    assert room.take(CANARY, 5, is_held=False)


def test_a_new_process_counts_what_is_there() -> None:
    now = 0.0
    room = Room(lambda: now)
    room.look(lambda: {(LEARNING, 5): module.LEARNING_ROWS - 1, (CONTROL, 5): 1})
    assert not room.take(LEARNING, 5, is_held=False)
    now += 60.0
    room.look(dict)
    assert room.take(LEARNING, 5, is_held=False), "the rows were deleted"
