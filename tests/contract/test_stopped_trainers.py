"""A trainer that was stopped changes nothing when it wakes, on PostgreSQL as on SQLite."""

from __future__ import annotations

import shutil
from pathlib import Path
from random import SystemRandom

import pytest

from contracts.assignments import LIVE
from tests.worlds.servers.postgres import create_migrated

pytestmark = pytest.mark.services


def test_a_stopped_trainer_changes_nothing_when_it_wakes(tmp_path: Path) -> None:
    """At two of the places where it would hurt most."""
    # They load torch, which not every process that reads this file needs.
    from tests.unit.pipelines.training.checkpoints import test_fencing as fencing  # noqa: PLC0415
    from tests.unit.pipelines.training.world import World  # noqa: PLC0415

    template = tmp_path / "template"
    first = World.new(template)
    first.add_random(24, generated_at=fencing.LATER)
    first.close()
    places = SystemRandom().sample(sorted(fencing.QUICK), 2)
    for number, place in enumerate(places):
        url = create_migrated()

        def make(home: Path, url: str = url) -> World:
            world = fencing.a_world(home)
            world.database.close()
            world.settings = world.settings.model_copy(update={"database_url": url})
            world.database = world.settings.database()
            return world

        home = shutil.copytree(template, tmp_path / str(number))
        world = make(home)
        world.point(LIVE, 0)
        world.close()
        try:
            fencing.stop_and_wake(home, place, make)
        except AssertionError as error:
            error.add_note(f"stopped at {place!r}")
            raise
