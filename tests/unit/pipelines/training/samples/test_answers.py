"""Experiences that say where their answer is are learned like those that carry it; a lost body has a name."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from contracts.event_log import LogPlace
from contracts.records import Experience, Generation, pack_body
from contracts.tables import dead_letter
from contracts.topics import GENERATIONS
from runtime.log.outbox import message
from tests.fakes import a_generation
from tests.unit.pipelines.training.builders import experience, segment
from tests.unit.pipelines.training.world import World, weights_of


@pytest.fixture
def worlds(tmp_path: Path) -> Iterator[list[World]]:
    worlds = [World.new(tmp_path / name) for name in ("carried", "pointed")]
    yield worlds
    for world in worlds:
        world.close()


def pointing(about: Generation, place: LogPlace, **changes: Any) -> Experience:
    return experience(key=about.key, source=place, generated_at=0.0, engine="", dtype="", **changes)


def logged(world: World, turn: Generation) -> LogPlace:
    item = message(GENERATIONS, turn.key, turn)
    world.log.append([item])
    partition = item.route % world.log.num_partitions
    return LogPlace(partition, world.log.ends(GENERATIONS)[partition] - 1)


def test_a_sample_teaches_the_same_whether_it_carries_its_tokens_or_says_where_they_are(worlds: list[World]) -> None:
    carried, pointed = worlds
    turns = [a_generation(policy="tiny", created_at=1000.0) for _ in range(4)]
    same = segment([1, 2, 3], [4, 5], [-0.5, -0.25])
    carried.add(*(experience(same, key=turn.key, reward=number % 2) for number, turn in enumerate(turns)))
    places = [logged(pointed, turn) for turn in turns]
    pointed.add(*(pointing(*pair, reward=number % 2) for number, pair in enumerate(zip(turns, places, strict=True))))
    weights = []
    for world in worlds:
        trainer = world.start()
        world.turns(trainer, 2)
        assert trainer.state.step == 1
        trainer.checkpoint()
        assert {state for state, _, _ in world.ledger().values()} == {"trained"}
        weights.append(weights_of(trainer))
    assert weights[0].keys() == weights[1].keys()
    assert all((weights[0][name] == weights[1][name]).all() for name in weights[0])


def test_a_sample_whose_body_is_lost_or_damaged_has_a_name_and_the_others_are_trained(worlds: list[World]) -> None:
    world = worlds[1]
    turns = [a_generation(policy="tiny", created_at=1000.0) for _ in range(4)]
    damaged = a_generation(policy="tiny", body=pack_body(turns[0].open())[:-3])
    lost = a_generation(policy="tiny")
    world.add(*(pointing(turn, logged(world, turn)) for turn in turns))
    world.add(pointing(damaged, logged(world, damaged)), pointing(lost, LogPlace(0, 999)))
    trainer = world.start()
    world.turns(trainer, 3)
    trainer.checkpoint()
    told = {key: fate[:2] for key, fate in world.ledger().items()}
    assert told == {turn.key: ("trained", "") for turn in turns} | {lost.key: ("stale", "body_lost")}
    with world.database.snapshot() as connection:
        assert connection.execute(select(dead_letter.c.key)).scalars().all() == [damaged.key]
