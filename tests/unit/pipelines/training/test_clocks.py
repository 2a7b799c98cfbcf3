import pytest

from pipelines.training.surroundings import began_before, rising, wall_for_ages
from tests.unit.pipelines.training.world import NOW, AwayStore, World, a_home, states
from weights.stores.folder import FolderObjects

YEAR = 365 * 86_400.0


@pytest.mark.parametrize("jump", [YEAR, -YEAR])
@a_home(publish_seconds=100.0)
def test_a_jump_of_the_wall_clock_publishes_nothing_sooner_and_nothing_never(world: World, jump: float) -> None:
    trainer = world.start()
    world.add_random(4, generated_at=NOW)
    world.turns(trainer, 2)
    world.now, world.wall_jump = world.now + 99.0, jump
    world.turns(trainer, 2)
    assert world.store.versions("tiny") == [0], "99 of 100 seconds are over"
    world.now += 1.0
    world.turns(trainer, 2)
    assert world.store.versions("tiny") == [0, 1]
    world.wall_jump = 0.0
    world.add_random(4, seed=1, generated_at=world.now)
    world.turns(trainer, 2)
    world.now += 100.0
    world.turns(trainer, 2)
    assert world.store.versions("tiny") == [0, 1, 2], "and after the clock was set right again"


@pytest.mark.parametrize("jump", [YEAR, -YEAR])
@a_home(max_wait_seconds=15.0, horizon_seconds=3600.0, checkpoint_seconds=5.0)
def test_a_jump_makes_no_sample_stale_and_no_batch_early(world: World, jump: float) -> None:
    trainer = world.start()
    world.add_random(3, generated_at=NOW - 60.0)
    world.turns(trainer, 1)
    world.now, world.wall_jump = world.now + 14.0, jump
    world.turns(trainer, 1)
    assert trainer.state.step == 0, "14 of 15 seconds are over"
    world.now += 1.0
    world.turns(trainer, 2)
    assert trainer.state.step == 1
    # Written after the jump by a process of the same machine, and read after the clock was set right.
    world.add_random(4, seed=1, generated_at=world.now + world.wall_jump if jump > 0 else world.now)
    world.turns(trainer, 2)
    world.wall_jump = 0.0
    world.now += 5.0
    world.turns(trainer, 2)
    assert states(world) == {("trained", ""): 7}


@a_home(horizon_seconds=3600.0, checkpoint_seconds=0.0)
def test_what_its_own_times_call_old_is_stale_all_the_same(world: World) -> None:
    trainer = world.start()
    world.wall_jump = YEAR
    world.add_random(2, generated_at=NOW - 3600.0 - 1.0)
    world.turns(trainer, 2)
    assert states(world) == {("stale", "expired"): 2}


@pytest.mark.parametrize("jump", [YEAR, -YEAR])
@a_home(publish_samples=4)
def test_a_store_that_was_away_is_asked_again_in_time(world: World, jump: float) -> None:
    world.store = away = AwayStore(FolderObjects(world.settings.weights))
    away.is_away = True
    trainer = world.start()
    world.add_random(4, generated_at=NOW)
    world.turns(trainer, 2)
    assert away.num_refused == 1
    away.is_away, world.wall_jump = False, jump
    world.turns(trainer, 1)
    assert world.store.versions("tiny") == [0], "not before its pause is over"
    world.now += 5.0
    world.turns(trainer, 1)
    assert world.store.versions("tiny") == [0, 1]


@pytest.mark.slow
@pytest.mark.parametrize(("jump", "seconds_left"), [(0.0, 40.0), (YEAR, 0.0), (-YEAR, 100.0)])
@a_home(publish_seconds=100.0, checkpoint_seconds=0.0)
def test_at_a_restart_a_timer_has_run_for_no_less_than_nothing_and_no_longer_than_it_may(
    world: World, jump: float, seconds_left: float
) -> None:
    trainer = world.start()
    world.add_random(4, generated_at=world.now)
    world.now += 60.0
    world.turns(trainer, 2)
    world.wall_jump = jump
    trainer = world.start()
    world.now += max(0.0, seconds_left - 1.0)
    world.turns(trainer, 1)
    assert world.store.versions("tiny") == ([0] if seconds_left else [0, 1])
    world.now += 1.0
    world.turns(trainer, 1)
    assert world.store.versions("tiny") == [0, 1]


def test_the_clock_of_the_timers_only_rises() -> None:
    first, second = rising(), rising()
    assert second >= first > 0


def test_the_clock_for_ages_follows_the_wall_back_and_not_ahead() -> None:
    times = {"wall": 1000.0, "rising": 5.0}
    ages = wall_for_ages(lambda: times["wall"], lambda: times["rising"])
    times |= {"wall": 1000.0 + YEAR, "rising": 15.0}
    assert ages() == 1010.0
    times |= {"wall": 900.0, "rising": 25.0}
    assert ages() == 900.0


def test_a_timer_that_began_before_a_restart() -> None:
    assert began_before(50.0, 30.0, 100.0) == 20.0
    assert began_before(50.0, -YEAR, 100.0) == 50.0
    assert began_before(50.0, YEAR, 100.0) == -50.0
