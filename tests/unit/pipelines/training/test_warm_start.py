"""A warm start on a tiny policy: what is learned, what stops it, and what a crash leaves."""

from typing import Any

import numpy as np
import pytest
import torch

from contracts.assignments import CANDIDATE, LIVE
from contracts.errors import Conflict
from contracts.ids import new_completion_id, sample_key
from pipelines.training.text.samples import TextSample
from pipelines.training.warm_start import MOST_EPOCHS, Texts, epochs, loss_of, teach
from tests.unit.pipelines.training.builders import experience, remembering
from tests.unit.pipelines.training.text.test_golden_trl_text import random_text
from tests.unit.pipelines.training.world import CrashAt, CrashError, World, a_home, named, states, weights_of


def text(num: int, seed: int, **changes: Any) -> list[TextSample]:
    """Answers to random prompts that all say the same."""
    random = np.random.default_rng(seed)
    said = {"chosen_ids": (3, 4, 5, 1)} | changes
    return [random_text(random, "target", key=sample_key(new_completion_id(), 0), **said) for _ in range(num)]


TEXTS = Texts(text(8, seed=1), [*text(3, seed=2), *text(1, seed=2, chosen_ids=(7, 8, 9, 10))])
"""One of the held-out texts is never learned, so training ends early."""
quick = a_home(learning_rate=1e-2, batch_size=8, publish_samples=1)


@quick
def test_text_becomes_version_1_and_is_told_to_the_ledger(world: World) -> None:
    trainer = world.make()
    found = teach(trainer, TEXTS, records_fates=True)
    assert (found.version, found.num_samples, world.arm(CANDIDATE)) == (1, 8, 1)
    assert found.loss_after < found.loss_before
    assert loss_of(trainer.learner, TEXTS.held_out) == pytest.approx(found.loss_after)
    assert states(world) == {("trained", "text"): 8}
    assert {version for *_, version in world.ledger().values()} == {1}
    assert world.store.manifest("tiny", 1).num_samples == 8
    with pytest.raises(Conflict, match="was trained before"):
        teach(world.make(), TEXTS, records_fates=True)


@quick
def test_what_a_trainer_had_named_before_is_told_as_trained(world: World) -> None:
    trainer = world.start()
    said = [experience(key=sample.key, origin="openai") for sample in TEXTS.trained]
    world.add(*said)
    world.turns(trainer, 2)
    trainer.checkpoint()
    trainer.close()
    assert states(world) == {("off_support", "provider"): 8}
    teach(world.make(), TEXTS, records_fates=True)
    assert states(world) == {("trained", "text"): 8}


@quick
def test_a_sample_whose_step_is_skipped_is_not_told_as_trained(world: World) -> None:
    trainer = world.make()
    remembering(trainer.learner, [(1e-9, 1.0)] * 12)  # so that any step is a spike, until the guard is used to them
    found = teach(trainer, Texts(text(200, seed=1), []), records_fates=True)
    assert 0 < found.num_samples < 200
    assert states(world) == {("trained", "text"): found.num_samples}


@quick
def test_the_trainer_goes_on_from_it(world: World) -> None:
    teach(world.make(), Texts(TEXTS.trained, []), records_fates=False)
    world.accept()
    assert (world.arm(LIVE), states(world)) == (1, {})
    trainer = world.start()
    assert trainer.state.version == 1
    world.add_random(8)
    world.turns(trainer, 6)
    assert world.arm(LIVE) == 2


@quick
def test_training_ends_with_the_epoch_after_which_the_held_out_loss_rises(world: World) -> None:
    learner = world.make().learner
    contrary = Texts(TEXTS.trained, text(4, seed=1, chosen_ids=(7, 8, 9, 10)))
    start = weights_of(world.make())
    found = epochs(learner, contrary, loss_of(learner, contrary.held_out))
    assert (found.num_epochs, found.num_steps) == (0, 0)
    assert all(torch.equal(weight, start[name]) for name, weight in learner.trainee.masters()[0].items())


@quick
def test_training_ends_although_the_loss_of_right_answers_falls_by_a_share_in_every_epoch(world: World) -> None:
    learner = world.make().learner
    texts = Texts(text(8, seed=1), text(4, seed=2))
    found = epochs(learner, texts, loss_of(learner, texts.held_out))
    assert found.num_epochs < MOST_EPOCHS
    assert found.loss < 0.5


@quick
def test_what_does_not_help_is_not_published(world: World) -> None:
    with pytest.raises(Conflict, match="did not lower"):
        teach(world.make(), Texts(TEXTS.trained, text(4, seed=1, chosen_ids=(7, 8, 9, 10))), records_fates=True)
    assert (world.store.versions("tiny"), world.arm(CANDIDATE), world.outcomes()) == ([0], None, [])
    assert world.start().state.version == 0


@pytest.mark.slow
@quick
def test_whatever_crashes_there_is_no_version_or_the_whole_one(world: World, tmp_path: Any) -> None:
    watched, texts = CrashAt(10**6), Texts(TEXTS.trained, [])
    teach(world.make(watched), texts, records_fates=True)
    for number, place in enumerate(watched.places, 1):
        with named(place):
            other = World.new(tmp_path / f"crash-{number}", learning_rate=1e-2, batch_size=8, publish_samples=1)
            with pytest.raises(CrashError):
                teach(other.make(CrashAt(number)), texts, records_fates=True)
            trainer = other.start()
            if trainer.state.step == 0:  # the crash came before anything was durable
                trainer.close()
                teach(other.make(), texts, records_fates=True)
            else:
                other.turns(trainer, 3)
            newest = max(other.store.versions("tiny"))
            assert newest in {1, 2}  # a number that was claimed is not used again
            assert newest in {other.arm(LIVE), other.arm(CANDIDATE)}
            assert set(other.ledger().values()) == {("trained", "text", newest)}
            assert len(other.ledger()) == 8
            other.close()
