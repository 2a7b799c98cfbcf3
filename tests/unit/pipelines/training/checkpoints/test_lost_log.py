"""The trainer on a log that was lost and accepted: it starts at the beginning of the new log, and trains nothing twice."""

from __future__ import annotations

from pathlib import Path

import pytest

from contracts.errors import PositionLost
from contracts.tables import position
from contracts.topics import EXPERIENCES
from runtime.log.loss_acceptance import accept_loss
from runtime.log.loss_detection import losses, note, require_same_log
from tests.unit.pipelines.training.world import World


@pytest.fixture
def lost(tmp_path: Path) -> World:
    """A world whose trainer decided eight experiences, and then the topic was deleted."""
    world = World.new(tmp_path / "home", checkpoint_seconds=0.0)
    world.log.create_topics()
    note(world.database, world.log.describe(), world.now)
    trainer = world.start()
    world.add_random(8)
    world.turns(trainer, 4)
    require_same_log(world.database, world.log, "HOME")
    world.log.close()
    for path in (tmp_path / "home" / "log").glob(f"{EXPERIENCES}.db*"):
        path.unlink()
    world.log = world.settings.event_log()
    return world


def test_it_refuses_positions_that_the_log_does_not_hold(lost: World) -> None:
    with pytest.raises(PositionLost, match=r"millrace training --home .* --from earliest"):
        lost.start()
    lost.close()


@pytest.mark.slow
def test_after_the_loss_was_accepted_it_reads_the_new_log_from_its_beginning(lost: World) -> None:
    found = losses(lost.database, lost.log)
    assert {item.topic for item in found} == {EXPERIENCES}
    with lost.database.transaction() as connection:
        assert accept_loss(connection, found, lost.log.describe(), {}, lost.now).is_training_hit
    lost.add_random(40, seed=1)  # past the old end, before the trainer is back
    trainer = lost.start()
    lost.turns(trainer, 12)
    assert len([state for state, _, _ in lost.ledger().values() if state == "trained"]) == 48
    with lost.database.snapshot() as connection:
        assert connection.execute(position.select().where(position.c.consumer_group == "training")).all() == []
    lost.close()
