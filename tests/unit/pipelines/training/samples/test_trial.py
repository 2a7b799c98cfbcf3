"""A broken sample costs only itself: no restart, and no good sample."""

import json
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from contracts.errors import StepsBroken, Unavailable
from contracts.records import Experience
from pipelines.training.learning.device import RECOVERY_STEPS, TokenBudget
from pipelines.training.learning.masters import Checkpoint
from pipelines.training.samples.trial import Failure, find_culprits
from pipelines.training.settings import TrainingSettings
from pipelines.training.worker import Trainer
from policy.logprobs import TokenScores
from tests.unit.pipelines.training.breaking import BROKEN, RAISES, RowError, answer, breaking_model
from tests.unit.pipelines.training.builders import (
    a_learner,
    captured,
    experience,
    model_of,
    remembering,
    segment,
    tiny_model,
)
from tests.unit.pipelines.training.world import World, weights_of

HOME: dict[str, Any] = {"batch_size": 8, "publish_samples": 10**6}
MAKE_MODEL = breaking_model


def learn(world: World, trainer: Trainer, *items: Experience) -> dict[str, tuple[str, str]]:
    world.add(*items)
    for _ in range(2 + len(items) // 4):
        trainer.turn()
    return {item.key: (trainer.state.fates[item.key].state, trainer.state.fates[item.key].reason) for item in items}


def innocents(count: int, seed: int = 0) -> list[Experience]:
    random = np.random.default_rng(seed)
    return [answer(random, segments=1 + number % 3) for number in range(count)]


@given(st.lists(st.none() | st.sampled_from(sorted(BROKEN)), min_size=1, max_size=20), st.integers(0, 2**16))
@settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@pytest.mark.slow
def test_whatever_the_corpus_innocents_are_trained_and_culprits_are_named_without_a_restart(
    tmp_path_factory: pytest.TempPathFactory, kinds: list[str | None], seed: int
) -> None:
    world = World.new(tmp_path_factory.mktemp("corpus") / "home", **HOME)
    world.make_model = breaking_model
    random = np.random.default_rng(seed)
    items, expected = [], {}
    for kind in kinds:
        item = answer(random) if kind is None else BROKEN[kind][0](random)
        items.append(item)
        expected[item.key] = ("trained", "") if kind is None else BROKEN[kind][1]
    assert learn(world, world.start(), *items) == expected
    world.close()


@pytest.mark.parametrize("kind", sorted(BROKEN))
@pytest.mark.slow
def test_each_kind_is_found_among_innocents_and_changes_nothing_of_what_they_teach(world: World, kind: str) -> None:
    make, fate = BROKEN[kind]
    good, bad = innocents(6), make(np.random.default_rng(9))
    trainer = world.start()
    assert learn(world, trainer, *good[:3], bad, *good[3:]) == {
        **{item.key: ("trained", "") for item in good},
        bad.key: fate,
    }
    without = World.new(world.settings.home / "without", **HOME)
    other = without.start()
    learn(without, other, *good)
    expected = weights_of(other)
    # The budget may have been smaller on the way: sums in another order.
    for name, value in weights_of(trainer).items():
        torch.testing.assert_close(value, expected[name], atol=1e-5, rtol=1e-4)
    assert trainer.learner.tracker == other.learner.tracker
    without.close()


def test_a_culprit_leaves_a_bundle_with_its_traceback_and_no_content(world: World) -> None:
    bad = answer(np.random.default_rng(1), token=RAISES)
    learn(world, world.start(), *innocents(3), bad)
    (path,) = (world.settings.home / "bundles").glob("step-*/bundle.json")
    bundle = json.loads(path.read_text())
    (culprit,) = bundle["culprits"]
    assert (culprit["key"], culprit["error"]) == (bad.key, "RowError: a row that the code did not expect")
    assert any("breaking.py" in line for line in culprit["traceback"])
    assert set(culprit) == {
        "key", "revision", "reward", "weight", "num_tokens", "reason", "error", "traceback"
    }  # fmt: skip
    assert "token_ids" not in path.read_text()


def test_a_correction_that_breaks_its_step_is_passed_over(world: World) -> None:
    trainer, (good, *others) = world.start(), innocents(4)
    learn(world, trainer, good, *others)
    random = np.random.default_rng(3)
    later = answer(random, token=RAISES, key=good.key, revision=1, reward=0.25)
    more = innocents(3, seed=5)
    learn(world, trainer, later, *more)
    fate = trainer.state.fates[good.key]
    assert (fate.state, fate.late, fate.late_reason) == ("trained", 1, "correction_quarantined")
    assert {trainer.state.fates[item.key].state for item in more} == {"trained"}


def test_a_device_that_is_broken_blames_nobody(world: World) -> None:
    trainer = world.start()
    model_of(trainer.learner).model.register_forward_pre_hook(lambda *_: (_ for _ in ()).throw(RowError("no device")))
    with pytest.raises(StepsBroken, match="no device"):
        learn(world, trainer, *innocents(8))
    assert trainer.state.fates == {}


def test_a_corpus_of_culprits_stops_the_trainer_before_all_of_it_is_quarantined(world: World) -> None:
    random = np.random.default_rng(0)
    trainer = world.start()
    with pytest.raises(StepsBroken, match="samples in a row"):
        learn(world, trainer, *[answer(random, token=RAISES) for _ in range(200)])
    assert len(trainer.state.fates) < 30


def test_what_is_nobodys_fault_is_not_bisected(world: World) -> None:
    trainer = world.start()

    def away(*_: Any) -> None:
        raise Unavailable("the store is away")

    hook = model_of(trainer.learner).model.register_forward_pre_hook(away)
    with pytest.raises(Unavailable):
        learn(world, trainer, *innocents(8))
    assert trainer.state.fates == {}
    assert not (world.settings.home / "attempt.json").exists()
    hook.remove()
    for _ in range(2):
        trainer.turn()
    assert {fate.state for fate in trainer.state.fates.values()} == {"trained"}


def test_a_spike_of_one_sample_costs_that_one(world: World) -> None:
    world.make_model = tiny_model
    trainer, good = world.start(), innocents(7)
    bad = answer(np.random.default_rng(4), token=RAISES)

    def amplify(_module: Any, arguments: tuple[Any, ...], scores: TokenScores) -> TokenScores:
        rows = (arguments[2] == RAISES)[:, None]
        held = scores.log_probs_BT
        return replace(scores, log_probs_BT=torch.where(rows, held.detach() + 1e8 * (held - held.detach()), held))

    model_of(trainer.learner).model.register_forward_hook(amplify)
    remembering(trainer.learner, [(25.0, 5.0)] * 20)
    assert learn(world, trainer, *good, bad) == {
        **{item.key: ("trained", "") for item in good},
        bad.key: ("quarantined", "gradient_spike"),
    }


def test_a_forged_log_prob_in_a_long_answer_is_found_in_its_step_and_the_others_are_trained(world: World) -> None:
    world.make_model = tiny_model
    world.training = world.training.model_copy(update={"guard_spread": 100.0})
    trainer, good = world.start(), innocents(7)
    bad = experience(segment([1, 2], [3] * 40, [*[-3.0] * 39, -60.0]))
    remembering(trainer.learner, ratio_spike=[2.0] * 20)
    assert learn(world, trainer, *good, bad) == {
        **{item.key: ("trained", "") for item in good},
        bad.key: ("quarantined", "ratio_spike"),
    }


# Memory.


@pytest.mark.parametrize("capacity", [40, 80, 150])
@pytest.mark.slow
def test_memory_that_runs_out_makes_the_pieces_smaller_and_the_step_is_the_same(capacity: int) -> None:
    settings = TrainingSettings(
        learning_rate=1e-2, max_tokens=1024, mismatch_samples=0, divergence_bound=math.inf, step_bound=math.inf
    )
    items = innocents(12)
    small, large = a_learner(breaking_model(capacity), settings), a_learner(tiny_model(), settings)
    for learner in (small, large):
        learner.step(items, [1.0] * len(items), {})
    assert small.budget.current <= capacity
    expected = captured(large).weights
    for name, value in captured(small).weights.items():
        torch.testing.assert_close(value, expected[name], atol=1e-4, rtol=1e-3)


@pytest.mark.slow
def test_a_row_that_does_not_fit_alone_is_named_and_the_others_keep_their_budget(world: World) -> None:
    world.make_model = lambda: breaking_model(20)
    random = np.random.default_rng(0)
    small = [item for item in (answer(random) for _ in range(40)) if len(item.segments[0].loss_mask) <= 10][:7]
    large = next(item for item in (answer(random) for _ in range(40)) if len(item.segments[0].loss_mask) > 20)
    trainer = world.start()
    found = learn(world, trainer, *small, large)
    assert found == {**{item.key: ("trained", "") for item in small}, large.key: ("quarantined", "step_error")}
    assert 10 <= trainer.learner.budget.current <= 8192


def test_a_reduced_budget_comes_back_slowly() -> None:
    budget = TokenBudget(64)
    assert budget.shrink(num_rows=8, longest=8)
    assert budget.current == 32
    assert not budget.shrink(num_rows=1, longest=16)
    for _ in range(RECOVERY_STEPS - 1):
        budget.fitted()
    assert budget.current == 32
    for _ in range(1 + 3 * RECOVERY_STEPS):
        budget.fitted()
    assert budget.current == 64


# All or nothing.


def test_a_step_that_fails_before_the_optimizer_changes_nothing() -> None:
    learner = a_learner(
        tiny_model(), TrainingSettings(learning_rate=1e-2, divergence_bound=math.inf, step_bound=math.inf)
    )
    items = innocents(6)
    learner.step(items, [1.0] * 6, {})
    before = captured(learner)
    # The last sample's baseline key is of a type that no dictionary takes: the others were told before.
    with pytest.raises(TypeError):
        learner.step([*items[:-1], answer(np.random.default_rng(8), baseline_key=[])], [1.0] * 6, {})
    same(before, captured(learner))
    assert all(parameter.grad is None for parameter in model_of(learner).model.parameters())


def test_an_optimizer_that_fails_half_way_ends_the_process_and_nobody_uses_its_weights() -> None:
    learner = a_learner(
        tiny_model(), TrainingSettings(learning_rate=1e-2, divergence_bound=math.inf, step_bound=math.inf)
    )
    items = innocents(6)
    learner.step(items, [1.0] * 6, {})
    before = captured(learner)
    failing = model_of(learner).optimizer.register_step_post_hook(lambda *_: (_ for _ in ()).throw(RowError))
    with pytest.raises(StepsBroken, match="half-way"):
        learner.step(items, [1.0] * 6, {})
    failing.remove()
    for use in (lambda: learner.step(items, [1.0] * 6, {}), lambda: captured(learner)):
        with pytest.raises(StepsBroken):
            use()
    learner.restore(before)
    same(before, captured(learner))


def same(before: Checkpoint, after: Checkpoint) -> None:
    assert after.state.tracker == before.state.tracker
    for one, other in ((before.weights, after.weights), (before.optimizer, after.optimizer)):
        assert one.keys() == other.keys()
        assert all(torch.equal(value, other[name]) for name, value in one.items())


# Halving.


@given(st.sets(st.integers(0, 63), min_size=1), st.integers(1, 64))
def test_halving_finds_every_culprit_and_nobody_else(culprits: set[int], count: int) -> None:
    culprits = {number for number in culprits if number < count}
    asked = 0

    def fails(items: Any) -> Failure | None:
        nonlocal asked
        asked += 1
        return Failure(str(sorted(culprits.intersection(items)))) if culprits.intersection(items) else None

    if culprits:
        found = find_culprits(range(count), Failure("all"), fails)
        assert [item for item, _ in found] == sorted(culprits)
        assert asked <= 2 * len(culprits) * max(count - 1, 1).bit_length() + 2


def test_halving_ends_where_there_are_more_culprits_than_are_asked_for() -> None:
    asked = []

    def fails(items: Any) -> Failure | None:
        asked.append(items)
        return Failure("spike")

    assert len(find_culprits(range(64), Failure("all"), fails, 16)) == 17
    assert len(asked) < 2 * 17 + 6
    assert len(find_culprits(range(16), Failure("all"), fails, 16)) == 16


def test_what_fails_only_together_has_no_culprit() -> None:
    assert find_culprits(range(8), Failure("all"), lambda items: Failure("x") if len(items) == 8 else None) == []
