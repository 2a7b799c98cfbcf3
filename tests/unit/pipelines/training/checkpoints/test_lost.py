"""Lost checkpoints and positions: reported, no restart from the base, and every sample has a named outcome."""

from __future__ import annotations

import shutil
import sqlite3

import pytest
from sqlalchemy import insert

from contracts.assignments import CANDIDATE, LIVE
from contracts.errors import PositionLost, WeightsRefused
from contracts.ids import parse_sample_key, route_of
from contracts.records import Experience, encode
from contracts.tables import generation, score
from contracts.topics import OUTCOMES
from pipelines.episodes.handler import EpisodesHandler
from pipelines.training.samples.lost_positions import SkippedRange
from runtime.worker import Worker
from tests.fakes import a_generation
from tests.ledger_states import generation_states
from tests.unit.pipelines.training.builders import bits_now, experience, segment
from tests.unit.pipelines.training.world import World
from tests.unit.weights.examples import same

pytestmark = pytest.mark.slow


HOME = {"checkpoint_seconds": 0.0}


def join(world: World, *experiences: Experience) -> None:
    """The records of these samples in episodes and rewards."""
    with world.database.transaction() as connection:
        for item in experiences:
            completion_id, choice = parse_sample_key(item.key)
            row = {
                "completion_id": completion_id, "choice": choice, "partition": route_of(completion_id) % 4, "policy": "tiny",
                "task": item.task, "purpose": "user", "arm": LIVE, "version": 0, "created_at": 1.0, "joined_at": 1.0,
                "closes_at": None, "revision": 1, "state": "pending", "state_reason": "", "state_writer": "episodes",
                "state_epoch": 0, "state_revision": 0, "record": encode(a_generation(completion_id=completion_id)),
            }  # fmt: skip
            connection.execute(insert(generation).values(row))
            scored = {"key": item.key, "revision": 1, "task": item.task, "purpose": "user", "version": 0, "reward": item.reward,
                      "status": item.status, "fault": "none", "components": [], "at": item.scored_at}  # fmt: skip
            connection.execute(insert(score).values(scored))


class Ledger(EpisodesHandler):
    """A ledger of outcomes alone: the generations of these tests have no records."""

    topics = (OUTCOMES,)  # type: ignore[assignment]


def project(world: World) -> dict[str, str]:
    """The real ledger: sample key to state."""
    worker = Worker(Ledger({}), world.database, world.log)
    for _ in range(4):
        worker.step()
    with world.database.snapshot() as connection:
        return {key: state for key, (_, state) in generation_states(connection).items()}


def learned(world: World, num: int, seed: int = 0) -> list[Experience]:
    samples = world.add_random(num, seed)
    join(world, *samples)
    return samples


def lose_checkpoints(world: World, *, damage: bool) -> None:
    if not damage:
        shutil.rmtree(world.settings.checkpoints)
        return
    for file in world.settings.checkpoints.glob("*/state.json"):
        file.write_bytes(b"{}")


@pytest.mark.parametrize("damage", [False, True])
def test_lost_checkpoints_go_on_from_what_is_live(world: World, damage: bool) -> None:
    trainer = world.start()
    first = learned(world, 8)
    stale = experience(segment([1, 2], [3], [-1.0]), generated_at=-1e9)
    join(world, stale)
    world.add(stale)
    world.turns(trainer, 6)
    assert world.arm(LIVE) == 1
    later = learned(world, 8, seed=1)
    for _ in range(6):
        trainer.turn()  # version 2 waits for its verdict
    assert (world.arm(LIVE), world.arm(CANDIDATE)) == (1, 2)
    before = project(world)
    assert {before[item.key] for item in [*first, *later]} == {"trained"}
    epoch = trainer.state.epoch
    lose_checkpoints(world, damage=damage)

    again = world.start()

    assert again.state.lineage == [1, 0]
    assert same(bits_now(again.learner), world.store.load("tiny", 1))
    assert again.state.epoch > epoch
    assert world.arm(CANDIDATE) is None
    after = project(world)
    assert {after[item.key] for item in first} == {"trained"}
    assert {after[item.key] for item in later} == {"pending"}, "the live version does not hold them"
    assert after[stale.key] == "stale"
    step = again.state.step
    world.turns(again, 8)
    assert again.state.step == step + 2, "only what the live version lacks is learned"
    assert again.state.lineage == [3, 1, 0], "the number of the lost version is not given again"
    assert set(project(world).values()) == {"trained", "stale"}


def test_a_correction_of_a_sample_whose_applied_reward_is_lost_is_named(world: World) -> None:
    trainer = world.start()
    first, *_ = learned(world, 8)
    world.turns(trainer, 6)
    project(world)
    lose_checkpoints(world, damage=False)
    again = world.start()
    world.add(
        type(first)(**{name: getattr(first, name) for name in first.__struct_fields__} | {"revision": 2, "reward": 9.0})
    )
    world.turns(again, 3)
    assert again.state.fates[first.key].late_reason == "unknown_reward"


def test_nothing_live_to_go_on_from_is_refused_and_says_what_to_do(world: World) -> None:
    world.start()
    lose_checkpoints(world, damage=False)
    world.point(LIVE, None)
    with pytest.raises(WeightsRefused, match="millrace policy promote"):
        world.start()


def expire(world: World, before: int) -> int:
    """Delete records as retention does; returns their number."""
    with sqlite3.connect(world.settings.home / "log" / "experiences.db") as connection:
        return connection.execute("DELETE FROM record WHERE offset < ?", (before,)).rowcount


def test_lost_positions_are_refused_by_name_until_an_operator_gives_them_up(world: World) -> None:
    trainer = world.start()
    known = learned(world, 8)
    world.turns(trainer, 6)
    trainer.checkpoint()
    at = dict(trainer.state.positions["experiences"])
    gone = [experience(segment([1, 2], [3], [-1.0]), key=beside(item.key)) for item in known]
    join(world, *gone)
    world.add(*gone)
    there = max(at.values()) + 4
    assert expire(world, there) > 0
    with pytest.raises(PositionLost, match=r"millrace training --home .* --from earliest"):
        world.start()

    skipped = world.make().skip("earliest")

    assert all(isinstance(item, SkippedRange) and item.start == at.get(item.partition, 0) for item in skipped)
    assert skipped
    lost = {item.partition for item in skipped}
    states = project(world)
    for item in gone:
        in_lost = route_of(parse_sample_key(item.key)[0]) % 4 in lost
        assert not in_lost or states[item.key] in {"stale", "pending"}
    assert {states[item.key] for item in known} == {"trained"}
    world.start().turn()


def beside(key: str) -> str:
    """Another sample of the same partition."""
    number = int(key[-6:-2], 16) ^ 1
    return f"{key[:-6]}{number:04x}{key[-2:]}"


def test_now_skips_what_waits_and_names_it(world: World) -> None:
    trainer = world.start()
    trainer.checkpoint()
    waiting = learned(world, 5)
    world.now += 10.0
    skipped = world.make().skip("now")
    assert sum(item.number for item in skipped) == 5
    states = project(world)
    assert {states[item.key] for item in waiting} == {"stale"}
    told = {(item.state, item.reason) for item in world.outcomes() if item.key}
    assert told == {("stale", "position_lost")}
    again = world.start()
    world.turns(again, 4)
    assert again.state.step == 0
    assert world.make().skip("earliest") == []
