import numpy as np
import pytest
from msgspec.structs import replace

from contracts.records import Experience, Score
from contracts.sampling import Span
from contracts.turns import SessionShare
from pipelines.training.samples.reward_watch import REWARD_SPIKE, RewardWatch, of_tasks
from tests.each_case import each_case
from tests.unit.pipelines.training.builders import experience, segment


def answers(
    random: np.random.Generator, count: int, share: float, *, version: int = 0, task: str = "task"
) -> list[Experience]:
    """Answers of which a share is right."""
    return [
        experience(
            segment([1, 2], [3], [-1.0], spans=(Span(0, version),)), reward=float(random.random() < share), task=task
        )
        for _ in range(count)
    ]


def watch_that_knows(
    share: float, *, hold: float = 3600.0, batches: int = 8
) -> tuple[RewardWatch, np.random.Generator]:
    random, watch = np.random.default_rng(1), RewardWatch(0.0, 1.0, hold)
    for _ in range(batches):
        watch.learned(answers(random, 64, share))
    return watch, random


@each_case("share", [0.0, 0.1, 0.75, 0.9, 1.0])
@each_case("seed", range(4))
def test_flipped_rewards_are_found_in_their_first_batch(share: float, seed: int) -> None:
    watch, _ = watch_that_knows(share)
    batch = answers(np.random.default_rng(seed), 64, 1.0 - share)
    other = answers(np.random.default_rng(seed), 8, 0.5, task="other")
    (found,) = watch.suspicions([*batch, *other], 0.0)
    assert (found.task, found.num_samples) == ("task@hash", 64)
    assert found.surprise == pytest.approx(1.0 - 2.0 * share, abs=0.25)
    assert of_tasks([*batch, *other], [found]) == {item.key for item in batch}
    assert REWARD_SPIKE == "reward_spike"


def test_what_a_provider_earned_is_not_what_this_policy_is_expected_to_earn() -> None:
    watch, random = RewardWatch(0.0, 1.0, 3600.0), np.random.default_rng(1)
    provided = [
        replace(item, origin="openai", segments=(segment([1, 2], [3], [0.0], spans=()),))
        for item in answers(random, 64, 1.0)
    ]
    watch.learned(provided)
    assert watch.suspicions(answers(random, 64, 0.3), 0.0) == []
    (found,) = watch.suspicions([replace(item, reward=0.0) for item in provided], 0.0)
    assert found.task == "task@hash/openai"


@pytest.mark.parametrize("size", [1, 4, 16, *(pytest.param(size, marks=pytest.mark.slow) for size in (64, 256))])
@pytest.mark.parametrize("share", [0.05, 0.5, 0.95])
def test_honest_batches_of_any_size_are_no_suspicion(size: int, share: float) -> None:
    """False alarms: none in 9 x 300 small batches and 6 x 60 large ones. Chance says which of the same answers are right."""
    watch, random = watch_that_knows(share)
    right, wrong = answers(random, size, 1.0), answers(random, size, 0.0)
    for number in range(300 if size < 64 else 60):
        batch = [right[place] if random.random() < share else wrong[place] for place in range(size)]
        assert watch.suspicions(batch, float(number)) == []
        watch.learned(batch)


def test_a_policy_may_learn_fast_and_be_rolled_back_and_answer_late() -> None:
    random, watch = np.random.default_rng(2), RewardWatch(0.0, 1.0, 3600.0)
    for version in range(12):
        for _ in range(4):
            batch = answers(random, 64, 0.3 + 0.055 * version, version=version)
            assert watch.suspicions(batch, 0.0) == []
            watch.learned(batch)
    assert watch.suspicions(answers(random, 64, 0.3, version=0), 0.0) == [], "the base earns what the base earned"
    (found,) = watch.suspicions(answers(random, 64, 0.3, version=11), 0.0)
    assert found.surprise < -0.4


def test_a_new_task_has_nothing_to_jump_from() -> None:
    watch, random = watch_that_knows(1.0)
    assert watch.suspicions(answers(random, 64, 0.0, task="new"), 0.0) == []


def test_rewards_that_stay_at_their_new_level_are_believed_and_a_return_ends_the_hold() -> None:
    watch, random = watch_that_knows(0.9, hold=100.0)
    flipped = answers(random, 64, 0.1)
    assert [bool(watch.suspicions(flipped, now)) for now in (0.0, 50.0, 99.0)] == [True] * 3
    assert watch.suspicions(answers(random, 64, 0.9), 99.5) == []
    assert watch.suspect_since == {}
    assert [bool(watch.suspicions(flipped, now)) for now in (101.0, 200.0, 201.0)] == [True, True, False]


def test_single_samples_are_judged_together() -> None:
    watch, random = watch_that_knows(1.0)
    found = [bool(watch.suspicions(answers(random, 1, 0.0), 0.0)) for _ in range(16)]
    assert not any(found[:3]), "a few bad answers are no flip"
    assert found[-1]


def test_one_part_of_a_reward_is_enough() -> None:
    def graded(value: float, style: float) -> Experience:
        scores = (Score(name="truth", grader="math/1#h", value=value, weight=0.5),
                  Score(name="style", grader="judge/1#h", value=style, weight=0.5))  # fmt: skip
        return experience(segment([1, 2], [3], [-1.0]), scores=scores, reward=(value + style) / 2)

    watch = RewardWatch(0.0, 1.0, 3600.0)
    watch.learned([graded(1.0, 0.0) for _ in range(64)])
    (found,) = watch.suspicions([graded(0.0, 1.0) for _ in range(64)], 0.0)
    assert found.part in {"truth", "style"}
    assert watch.suspicions([graded(1.0, 0.0) for _ in range(64)], 0.0) == []


def test_what_it_knows_survives_a_checkpoint() -> None:
    watch, random = watch_that_knows(0.9)
    again = RewardWatch(0.0, 1.0, 3600.0)
    again.take(watch.levels.to_json(), {"task@hash": 5.0})
    batch = answers(random, 64, 0.1)
    assert again.suspicions(batch, 6.0) == watch.suspicions(batch, 6.0)
    assert again.suspect_since == {"task@hash": 5.0}


def sessions(random: np.random.Generator, count: int, share: float, num_calls: int = 40) -> list[Experience]:
    """Sessions of many calls each, of which a share went well."""
    made = []
    for number in range(count):
        name, reward = f"s{random.integers(1 << 60)}-{number}", float(random.random() < share)
        for index in range(num_calls):
            place = SessionShare(name, "last", index, num_calls, 1.0, 0.0)
            made.append(experience(segment([1, 2], [3], [-1.0]), reward=reward, share=place))
    return made


def test_one_bad_session_of_many_calls_is_one_surprise() -> None:
    random, watch = np.random.default_rng(3), RewardWatch(0.0, 1.0, 3600.0)
    for _ in range(10):
        batch = sessions(random, 3, 0.8)
        assert watch.suspicions(batch, 0.0) == []
        watch.learned(batch)
    assert watch.suspicions(sessions(random, 3, 0.0), 0.0) == [], "three sessions that failed are no flipped grader"
    found = watch.suspicions(sessions(random, 40, 0.0), 0.0)
    assert [item.num_samples for item in found] == [40], "forty are"
