"""Hostile but decodable experiences do not keep the intake from the other samples."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from sqlalchemy import select

from contracts.event_log import Message
from contracts.tables import dead_letter
from contracts.topics import EXPERIENCES
from tests.hostile import hostile
from tests.unit.pipelines.training.world import World


@pytest.mark.parametrize("seed", range(3))
def test_hostile_experiences_cost_themselves(tmp_path: Path, seed: int) -> None:
    draw, world = random.Random(seed), World.new(tmp_path / "home")
    trainer = world.start()
    innocent = world.add_random(60)
    places = [Message(EXPERIENCES, number, item.key, item.value) for number, item in enumerate(_waiting(world))]
    mixed = places + [hostile(EXPERIENCES, draw, ["booking", "sums"]) for _ in range(12)]
    draw.shuffle(mixed)
    world.log.append(mixed)
    heard = trainer.intake
    for partition in range(world.log.num_partitions):
        for record in world.log.read(EXPERIENCES, partition, 0, 1000):
            trainer.reader.take(record)
    keys = [item.experience.key for item in heard.waiting]
    assert {item.key for item in innocent} <= set(keys)
    assert len(keys) == len(set(keys))
    with world.database.snapshot() as connection:
        buried = connection.execute(select(dead_letter.c.consumer_group)).scalars().all()
    assert set(buried) == {"training"}
    assert len(keys) + len(buried) >= len(innocent)
    world.close()


def _waiting(world: World) -> list[Message]:
    """The values in the log, to append them again: the first of each counts."""
    found = [world.log.read(EXPERIENCES, partition, 0, 1000) for partition in range(world.log.num_partitions)]
    return [Message(EXPERIENCES, record.partition, record.key, record.value) for records in found for record in records]
