"""A product whose users are late, in small: rewards that come two days late on average, with a version every two hours."""

import pytest

from tests.worlds.late import simulate


@pytest.mark.parametrize("seed", [0, 1])
def test_late_rewards_are_learned_and_what_is_not_has_a_name(seed: int) -> None:
    found = simulate(4, per_version=16, seed=seed, speed=0.12)
    assert found.num == 4 * 12 * 16 == sum(found.fates.values())
    assert set(found.fates) <= {"trained", "stale(divergence)"}
    assert found.weight_learned / found.num_inside >= 0.95
    assert abs(found.reward_learned - found.reward_inside) / found.num_inside < 0.05
    assert sum(map(abs, found.baseline_errors)) / len(found.baseline_errors) < 0.15


def test_by_the_old_rules_most_of_it_was_lost() -> None:
    found = simulate(4, per_version=16, speed=0.12, before=True)
    assert found.weight_learned / found.num_inside < 0.25
    assert found.reward_learned / found.num_inside < 0.15
