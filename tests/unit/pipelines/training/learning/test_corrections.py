"""A reward that changes after training: the difference is trained once, outside every baseline."""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from sqlalchemy import select

from contracts.records import Experience
from contracts.tables import training_step
from pipelines.training.checkpoints.checkpoint import CheckpointStore
from pipelines.training.known.batches import Lesson
from pipelines.training.known.experiences import num_tokens, worth
from pipelines.training.learning.learner import Learner
from pipelines.training.learning.masters import Checkpoint
from pipelines.training.settings import TrainingSettings
from pipelines.training.state import Correction, Fate, TrainerState
from pipelines.training.worker import Trainer
from tests.unit.pipelines.training.breaking import answer
from tests.unit.pipelines.training.builders import a_learner, model_of, random_experience, remembering, tiny_model
from tests.unit.pipelines.training.learning.test_learner import on_policy
from tests.unit.pipelines.training.world import World, weights_of

pytestmark = pytest.mark.slow

SETTINGS = TrainingSettings(
    loss="truncated", learning_rate=1e-2, divergence_bound=math.inf, step_bound=math.inf, kl_coefficient=0.0
)
"""`truncated`, because every correction follows it: only then is a first pull of the same kind."""


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World.new(tmp_path / "home")
    yield world
    world.close()


def batch(count: int = 8, seed: int = 0) -> list[Experience]:
    random = np.random.default_rng(seed)
    return [random_experience(random, reward=float(number % 2)) for number in range(count)]


def later(item: Experience, reward: float | None, revision: int = 1, **changes: Any) -> Experience:
    status = "unlabelled" if reward is None else "scored"
    return msgspec.structs.replace(item, **({"reward": reward, "revision": revision, "status": status} | changes))


def late(world: World) -> list[tuple[int, str, int | None]]:
    """Outcomes of later revisions in the newest epoch."""
    newest = max(outcome.epoch for outcome in world.outcomes())
    return sorted(
        (outcome.revision, outcome.reason, outcome.version)
        for outcome in world.outcomes()
        if outcome.state == "late" and outcome.epoch == newest
    )


def fate_of(trainer: Trainer, item: Experience) -> Fate:
    return trainer.state.fates[item.key]


def learn(world: World, trainer: Trainer, *items: Experience) -> None:
    world.add(*items)
    world.turns(trainer, 3)


def begun(world: World, weight: float = 1.0) -> tuple[Trainer, Experience]:
    """A trainer that has learned four samples, and the first of them."""
    trainer = world.start()
    first, *_ = world.add_random(4, reward=1.0, weight=weight)
    world.turns(trainer, 2)
    return trainer, first


def figures(world: World, name: str) -> list[Any]:
    """Of each step."""
    with world.database.snapshot() as connection:
        return [row.metrics[name] for row in connection.execute(select(training_step))]


# The effect of a correction on a policy.


def test_a_corrected_sample_pulls_in_all_as_its_last_revision_would_have() -> None:
    items = batch()
    learner = a_learner(tiny_model(), SETTINGS)
    first = learner.step(items, [0.5] * 8, {})
    lessons = [Lesson(item, 1.0 - 2.0 * (item.reward or 0.0), 0.5 * first.pulls[item.key]) for item in items]
    second = learner.step([], [], {}, lessons)
    # Half of them are right: with every reward turned round, so is every advantage.
    count = first.metrics["num_tokens"]
    before = np.array([row["advantage"] * row["weight"] / count for row in first.samples])
    change = np.array([row["advantage"] * row["weight"] for row in second.samples])
    assert before + change == pytest.approx(-before)


@pytest.mark.parametrize("reward", [0.0, 0.25, 0.9])
def test_a_light_guess_and_its_correction_pull_as_the_last_word_alone_would_have(reward: float) -> None:
    """Silence has weight 0.1, then a signal comes. Without its baseline, a bad signal would reinforce the answer."""
    items = batch()
    guessed = msgspec.structs.replace(items[0], reward=0.8, weight=0.1)
    learner = a_learner(tiny_model(), SETTINGS)
    first = learner.step([guessed, *items[1:]], [0.1, *[1.0] * 7], {})
    fate = Fate.trained(guessed, first.pulls[guessed.key], first.zeros[guessed.key])
    spoken = later(guessed, reward, 2, weight=1.0)
    lesson = Lesson(spoken, worth(spoken) - (fate.applied_now or 0.0), first.pulls[guessed.key], fate.owed(1.0))
    count = first.metrics["num_tokens"]
    assert count is not None
    before = first.samples[0]["advantage"] * first.samples[0]["weight"] / count
    together = before + lesson.advantage * lesson.pull
    assert together == pytest.approx((reward - first.zeros[guessed.key]) * first.pulls[guessed.key])
    assert (together > 0) == (reward > first.zeros[guessed.key])
    settled = fate.corrected(2, worth(spoken), 1.0)
    assert (settled.weight_now, settled.owed(1.0), settled.owed(0.0)) == (1.0, 0.0, -first.zeros[guessed.key])


def test_a_light_zero_is_topped_up_although_the_rewards_add_up_to_nothing(world: World) -> None:
    trainer = world.start()
    (first,) = world.add_random(1, reward=0.0, weight=0.25)
    world.add_random(3, reward=1.0)
    world.turns(trainer, 2)
    learn(world, trainer, later(first, 0.0, weight=1.0))
    trainer.checkpoint()
    assert [said[:2] for said in late(world)] == [(1, "corrected")]
    assert (fate_of(trainer, first).applied_now, fate_of(trainer, first).weight_now) == (0.0, 1.0)


def test_a_fate_of_an_older_checkpoint_owes_nothing() -> None:
    old = msgspec.json.decode(
        b'{"revision":0,"state":"trained","applied":1.0,"pull":2.0,"corrections":[{"applied":0.5}]}', type=Fate
    )
    assert old.owed(1.0) == 0.0
    assert Fate(0, "trained", applied=1.0, pull=2.0, weight=1.0).owed(0.5) == 0.0


@pytest.mark.parametrize("difference", [1.0, -1.0])
def test_a_correction_moves_the_answer_the_way_of_its_sign(difference: float) -> None:
    learner, (item,) = a_learner(tiny_model(), SETTINGS), batch(1)
    rows = [learner.step([], [], {}, [Lesson(item, difference, 1.0)]).samples[0] for _ in range(2)]
    assert (rows[1]["log_prob_sum"] - rows[0]["log_prob_sum"]) * difference > 0


def test_no_baseline_and_no_other_advantage_hears_of_a_correction() -> None:
    # Samples as the policy makes them now, and old ones that it has drifted far from.
    items, old = on_policy(8, 1.0), batch(3, seed=5)
    lessons = [Lesson(item, 0.7, 9.0) for item in old]
    plain, mixed = (a_learner(tiny_model(), SETTINGS) for _ in range(2))
    alone, together = plain.step(items, [1.0] * 8, {}), mixed.step(items, [1.0] * 8, {}, lessons)
    assert mixed.tracker == plain.tracker
    assert together.pulls == alone.pulls
    assert together.samples[:8] == alone.samples
    assert [row["advantage"] for row in together.samples[8:]] == [0.7] * 3
    assert (together.metrics["num_samples"], together.metrics["num_corrections"]) == (8, 3)
    assert together.metrics["reward_mean"] == alone.metrics["reward_mean"]


def gradient_of(learner: Learner) -> torch.Tensor:
    """All gradients in one vector."""
    return torch.cat(
        [parameter.grad.flatten() for parameter in model_of(learner).model.parameters() if parameter.grad is not None]
    )


def pulled(items: list[Experience], lessons: list[Lesson]) -> torch.Tensor:
    """The gradient of a step over these rows, always at the same weights."""
    learner = a_learner(tiny_model(), SETTINGS, max_gradient_norm=1e9)
    found: list[torch.Tensor] = []
    model_of(learner).optimizer.register_step_pre_hook(lambda *_: found.append(gradient_of(learner)))
    learner.step(items, [1.0] * len(items), {}, lessons)
    return found[0]


@pytest.mark.parametrize(("first_batch", "companions"), [(1, 0), (1, 63), (8, 0), (8, 7), (64, 0), (64, 63)])
def test_a_correction_pulls_exactly_what_was_missing_whatever_batch_it_comes_in(
    first_batch: int, companions: int
) -> None:
    """First pull plus correction equals the last revision's pull, for one to three segments of 1 to 30 tokens."""
    random = np.random.default_rng(first_batch)
    items = [answer(random, segments=1 + number % 3, reward=float(number % 2)) for number in range(first_batch)]
    others = [answer(random, segments=1 + number % 2) for number in range(companions)]
    corrected = items[0]
    learner = a_learner(tiny_model(), SETTINGS)
    result = learner.step(items, [1.0] * first_batch, {})
    fate = Fate.trained(corrected, result.pulls[corrected.key])
    lesson = Lesson(corrected, 0.75, fate.pull_for(corrected, 64))

    # What 0.75 more of reward would have pulled at each token: the same advantage over all tokens of the first batch.
    whole = num_tokens(items)
    unit = result.pulls[corrected.key] * whole
    alone = a_learner(tiny_model(), SETTINGS, max_gradient_norm=1e9, whiten=False)
    expect = alone.tracker.expect(corrected.baseline_key, 0)
    found: list[torch.Tensor] = []
    model_of(alone).optimizer.register_step_pre_hook(lambda *_: found.append(gradient_of(alone)))
    once = msgspec.structs.replace(corrected, reward=expect + 0.75 * unit)
    alone.step([once], [1.0], {})
    wanted = found[0] * (num_tokens([corrected]) / whole)

    correction = pulled(others, [lesson]) - (pulled(others, []) if others else 0.0)
    # float32 sums over a batch: rounding is relative to the largest of the terms that cancel.
    scale = max(float(wanted.abs().max()), float(pulled(others, []).abs().max()) if others else 0.0)
    torch.testing.assert_close(correction, wanted, rtol=1e-4, atol=2e-5 * scale)


def test_an_older_checkpoint_corrects_as_hard_as_in_a_full_batch_of_such_answers() -> None:
    (item,) = batch(1)
    old = msgspec.json.decode(b'{"revision":0,"state":"trained","applied":1.0,"scale":2.0}', type=Fate)
    assert old.pull_for(item, 64) == 2.0 / (64 * num_tokens([item]))
    assert Fate.trained(item, 0.0625).pull_for(item, 64) == 0.0625


# Corrections in the trainer.


def test_the_difference_is_learned_once_and_the_ledger_stays_as_it_is(world: World) -> None:
    trainer = world.start()
    first, *others = world.add_random(4, reward=1.0)
    world.turns(trainer, 2)
    before, tracker, ledger = weights_of(trainer), trainer.learner.tracker.to_json(), world.ledger()
    assert fate_of(trainer, first).applied == 1.0

    learn(world, trainer, later(first, 0.25), later(first, 0.25), first)
    assert any(not torch.equal(value, before[name]) for name, value in weights_of(trainer).items())
    assert trainer.learner.tracker.to_json() == tracker
    trainer.checkpoint()
    assert late(world) == [(1, "corrected", 1)]
    assert {state for state, _, _ in world.ledger().values()} == {"trained"}
    assert world.ledger().keys() >= ledger.keys()
    assert (figures(world, "num_samples"), figures(world, "num_corrections")) == ([4, 0], [0, 1])
    assert figures(world, "correction_mean")[1] == -0.75

    restarted = world.start()
    world.turns(restarted, 3)
    assert restarted.state.step == 2
    assert fate_of(restarted, first).applied_now == 0.25
    assert late(world) == [(1, "corrected", 1)]
    assert [fate_of(restarted, item).corrections for item in others] == [()] * 3


def test_each_further_revision_is_compared_with_what_is_applied_by_then(world: World) -> None:
    trainer, first = begun(world)
    for revision, reward, weight in ((1, 0.0, 1.0), (2, 0.5, 0.5), (3, None, 1.0), (4, 1.0, 0.25), (5, 1.0, 1.0)):
        learn(world, trainer, later(first, reward, revision, weight=weight))
    assert fate_of(trainer, first).applied_now == 1.0
    found = figures(world, "correction_mean")
    assert found == [None, -1.0, 0.25, 0.0, 0.75]  # the fourth is worth as much, and weighs less
    assert sum(found[1:]) == 0.0


def test_a_provisional_reward_is_learned_by_its_weight_and_the_rest_when_it_is_final(world: World) -> None:
    trainer, first = begun(world, weight=0.3)
    assert fate_of(trainer, first).applied == 0.3
    learn(world, trainer, later(first, 1.0, weight=1.0))
    assert fate_of(trainer, first).applied_now == 1.0
    assert figures(world, "correction_mean") == [None, 0.7]


def test_a_correction_that_is_too_late_is_named(world: World) -> None:
    trainer, first = begun(world)
    world.now += 2e6
    learn(world, trainer, later(first, 0.0))
    trainer.checkpoint()
    assert fate_of(trainer, first).applied_now == 1.0
    assert late(world) == [(1, "correction_stale", None)]
    assert trainer.state.step == 1


def test_what_the_guard_skips_is_not_applied_and_a_later_revision_starts_from_what_is(tmp_path: Path) -> None:
    world = World.new(tmp_path / "home", max_gradient_norm=1e-3)
    trainer, first = begun(world)
    remembering(trainer.learner, [(1e-9, 1e-9)] * 20)
    learn(world, trainer, later(first, 0.0))
    trainer.checkpoint()
    assert fate_of(trainer, first).applied_now == 1.0
    assert late(world) == [(1, "correction_quarantined", None)]
    assert world.ledger()[first.key][0] == "trained"
    remembering(trainer.learner, [])
    learn(world, trainer, later(first, 0.5, 2))
    assert fate_of(trainer, first).applied_now == 0.5
    world.close()


def test_a_rollback_takes_back_what_was_corrected_since(tmp_path: Path) -> None:
    world = World.new(tmp_path / "home", publish_samples=4)
    trainer, first = begun(world)
    at_version_1 = weights_of(trainer)
    learn(world, trainer, later(first, 0.5), *batch(3, seed=3))
    learn(world, trainer, later(first, 0.0, 2), *batch(3, seed=4))
    assert fate_of(trainer, first).corrections == (Correction(0.5, 2, 1.0), Correction(0.0, 3, 1.0))
    assert late(world) == [(1, "corrected", 2), (2, "corrected", 3)]

    world.revoke_down_to(2)
    trainer.turn()
    assert fate_of(trainer, first).corrections == (Correction(0.5, 2, 1.0),)
    assert late(world) == [(2, "correction_rolled_back", None)]
    world.revoke_down_to(1)
    trainer.turn()
    assert fate_of(trainer, first).applied_now == 1.0
    assert all(torch.equal(value, at_version_1[name]) for name, value in weights_of(trainer).items())
    assert world.ledger()[first.key] == ("trained", "", 1)

    learn(world, trainer, later(first, 0.25, 3))
    assert fate_of(trainer, first).applied_now == 0.25
    world.close()


def test_a_correction_waits_through_a_restart(tmp_path: Path) -> None:
    world = World.new(tmp_path / "home", max_wait_seconds=60.0)
    trainer, first = begun(world)
    learn(world, trainer, later(first, 0.0))
    trainer.checkpoint()
    assert (len(trainer.intake), trainer.state.step) == (1, 1)
    restarted = world.start()
    world.turns(restarted, 2)
    world.now += 60.0
    world.turns(restarted, 2)
    assert fate_of(restarted, first).applied_now == 0.0
    world.close()


def test_a_sample_without_weight_is_named_and_counts_once_it_has_some(world: World) -> None:
    trainer = world.start()
    (first,) = world.add_random(1, weight=0.0)
    world.turns(trainer, 2)
    trainer.checkpoint()
    assert world.ledger()[first.key] == ("filtered", "no_weight", None)
    assert trainer.state.step == 0
    learn(world, trainer, later(first, 1.0, weight=0.5))
    trainer.checkpoint()
    assert world.ledger()[first.key] == ("trained", "", 1)
    assert fate_of(trainer, first).applied == 0.5


# Corrections in a checkpoint.


def test_an_older_checkpoint_knows_no_applied_reward_and_nothing_is_corrected(world: World) -> None:
    old = b'{"epoch":3,"fates":{"k":{"revision":1,"state":"trained","version":2,"late":4}}}'
    state = msgspec.json.decode(old, type=TrainerState)
    assert state.fates["k"] == Fate(1, "trained", version=2, late=4)
    assert state.fates["k"].applied_now is None

    trainer, first = begun(world)
    trainer.state.fates[first.key] = msgspec.structs.replace(fate_of(trainer, first), applied=None)
    learn(world, trainer, later(first, 0.0))
    trainer.checkpoint()
    assert late(world) == [(1, "unknown_reward", None)]


def test_fates_with_corrections_survive_a_checkpoint(tmp_path: Path) -> None:
    fate = Fate(1, "trained", applied=0.5, scale=1.75).corrected(2, 0.25).cut(3).corrected(4, 1.0)
    assert fate.corrections == (Correction(0.25, 3), Correction(1.0))
    state = TrainerState(fates={"k": fate})
    store = CheckpointStore(tmp_path, keep=1)
    name = store.save(Checkpoint(state, {}, {}))
    assert store.load(name).state.fates == {"k": fate}


def test_corrections_within_one_version_are_kept_as_one() -> None:
    fate = Fate(1, "trained", version=1, applied=0.5).corrected(2, 0.25).corrected(3, 0.75)
    assert fate.corrections == (Correction(0.75),)
