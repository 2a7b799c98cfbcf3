import json
import threading
from collections import Counter
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch
from sqlalchemy import select

from contracts.assignments import CANDIDATE
from contracts.errors import TooManyDeadLetters
from contracts.event_log import LogRecord, Message
from contracts.records import Experience
from contracts.rollback import roll_back
from contracts.sampling import Span
from contracts.tables import dead_letter, training_step
from contracts.topics import EXPERIENCES
from pipelines.training.__main__ import main
from pipelines.training.settings import TrainingSettings
from pipelines.training.state import Fate
from runtime.settings import write_settings
from tests.unit.pipelines.training.builders import (
    bits_now,
    captured,
    experience,
    newest_in,
    random_experience,
    remembering,
    segment,
    tiny_model,
)
from tests.unit.pipelines.training.world import World, a_home, states, weights_of


def num_learned(world: World) -> int:
    with world.database.snapshot() as connection:
        return sum(row.metrics["num_samples"] for row in connection.execute(select(training_step)))


def test_every_sample_gets_one_named_outcome(world: World) -> None:
    trainer = world.start()
    world.add_random(8)
    greedy = segment([1, 2], [3], [0.0], temperature=0.0)
    world.add(
        experience(greedy),
        experience(segment([1, 2], [3], [-1.0]), generated_at=-1e9),
        experience(segment([1, 2], [3], [-1.0]), engine=""),
        experience(segment([1, 2], [3], [-1.0]), purpose="sentinel"),
        experience(segment([1, 2], [3], [-1.0]), reward=None, status="unlabelled"),
    )
    world.turns(trainer, 6)
    trainer.checkpoint()
    assert states(world) == {
        ("trained", ""): 8,
        ("off_support", "greedy"): 1,
        ("stale", "expired"): 1,
        ("filtered", "no_provenance"): 1,
    }


def test_outcomes_wait_for_their_checkpoint(world: World) -> None:
    trainer = world.start()
    world.add_random(4)
    world.turns(trainer, 2)
    assert trainer.state.step == 1
    assert world.ledger() == {}
    world.now += 1e9
    world.turns(trainer, 1)
    assert states(world) == {("trained", ""): 4}


def test_nothing_is_told_that_the_newest_checkpoint_does_not_hold(world: World) -> None:
    seen = set()

    def look(place: str) -> None:
        if place == "training: outcomes told":
            checkpoint = newest_in(world.settings.checkpoints)
            held = {(key, fate.state) for key, fate in checkpoint.state.fates.items()}
            newest = max(outcome.epoch for outcome in world.outcomes())
            told = {(item.key, item.state) for item in world.outcomes() if item.epoch == newest and item.key}
            assert told <= held
            assert newest <= checkpoint.state.epoch
            assert max(item.sequence for item in world.outcomes()) <= checkpoint.state.sequence
            seen.update(told)

    trainer = world.start(look)
    world.add_random(20)
    world.turns(trainer, 8)
    world.revoke_down_to(1)
    world.turns(trainer, 1)
    assert {state for _, state in seen} == {"trained", "quarantined"}


def test_the_next_version_waits_for_the_verdict_on_the_last(world: World) -> None:
    trainer = world.start()
    world.add_random(24)
    for _ in range(6):
        trainer.turn()
    assert (world.arm(CANDIDATE), world.store.versions("tiny"), trainer.state.step) == (1, [0, 1], 6)
    world.accept()
    trainer.turn()
    assert (world.arm(CANDIDATE), world.store.versions("tiny")) == (2, [0, 1, 2])
    assert Counter(version for _, _, version in world.ledger().values()) == {1: 8, 2: 16}


@a_home(publish_seconds=10.0)
def test_time_alone_cuts_a_version_of_what_was_learned(world: World) -> None:
    trainer = world.start()
    world.add_random(4)
    world.turns(trainer, 2)
    assert world.store.versions("tiny") == [0]
    world.now += 10.0
    world.turns(trainer, 2)
    assert world.store.versions("tiny") == [0, 1]
    world.now += 100.0
    world.turns(trainer, 2)
    assert world.store.versions("tiny") == [0, 1], "nothing was learned since"


@a_home(max_wait_seconds=15.0, publish_samples=1)
def test_a_lone_last_sample_is_drained(world: World) -> None:
    trainer = world.start()
    world.add_random(1)
    world.turns(trainer, 2)
    assert trainer.state.step == 0
    before = {name: tensor.clone() for name, tensor in weights_of(trainer).items()}
    world.now += 15.0
    world.turns(trainer, 2)
    assert states(world) == {("trained", ""): 1}
    assert any(not torch.equal(value, before[name]) for name, value in weights_of(trainer).items())
    assert all(torch.isfinite(value).all() for value in weights_of(trainer).values())


def test_the_store_holds_what_the_trainer_has(world: World) -> None:
    trainer = world.start()
    world.add_random(8)
    world.turns(trainer, 3)
    published, mine = world.store.load("tiny", 1), bits_now(trainer.learner)
    assert published.keys() == mine.keys()
    assert all(np.array_equal(published[name].data, mine[name].data) for name in mine)
    manifest = world.store.manifest("tiny", 1)
    assert (manifest.parent, manifest.kind, manifest.step, manifest.num_samples) == (0, "step", 2, 8)


def test_duplicates_and_revisions(world: World) -> None:
    trainer = world.start()
    first, *others = world.add_random(4)
    world.add(first, *others)
    world.turns(trainer, 3)
    world.add(msgspec.structs.replace(first, revision=1), msgspec.structs.replace(first, revision=1))
    world.turns(trainer, 3)
    trainer.checkpoint()
    assert num_learned(world) == 4
    assert states(world) == {("trained", ""): 4}
    late = [outcome for outcome in world.outcomes() if outcome.state == "late"]
    assert [(outcome.key, outcome.revision) for outcome in late] == [(first.key, 1)]
    world.start()
    assert [o.key for o in world.outcomes() if o.state == "late" and o.epoch == 2] == [first.key]


def test_every_start_begins_an_epoch_and_repeats_nothing_that_was_told(world: World) -> None:
    trainer = world.start()
    world.add_random(8)
    world.turns(trainer, 3)
    ledger = world.ledger()
    trainer.checkpoint()
    num_told = len(told(world))
    world.start()
    restarted = world.start()
    assert restarted.state.epoch == 3
    assert world.ledger() == ledger
    assert len(told(world)) == num_told == 8
    started = {item.epoch: (item.previous, item.kept_sequence) for item in world.outcomes() if not item.key}
    assert started == {1: (None, -1), 2: (1, 8), 3: (2, 8)}


def told(world: World) -> list[str]:
    return [outcome.key for outcome in world.outcomes() if outcome.key]


def test_a_rollback_restores_the_version_and_quarantines_the_poison_that_came_after(world: World) -> None:
    trainer = world.start()
    samples = world.add_random(20)
    world.turns(trainer, 2)
    at_version_1, tracker = weights_of(trainer), trainer.learner.tracker.to_json()
    world.turns(trainer, 6)
    assert Counter(fate.version for fate in trainer.state.fates.values()) == {1: 8, 2: 8, None: 4}
    world.revoke_down_to(1)
    trainer.turn()

    assert all(torch.equal(value, at_version_1[name]) for name, value in weights_of(trainer).items())
    assert trainer.learner.tracker.to_json() == tracker
    assert states(world) == {("trained", ""): 8, ("quarantined", "rollback"): 12}
    assert trainer.state.epoch == 2

    world.add(*samples)
    world.add_random(8, seed=9, spans=(Span(0, 1),))
    restarted = world.start()
    world.turns(restarted, 8)
    assert states(world) == {("trained", ""): 16, ("quarantined", "rollback"): 12}
    assert (restarted.state.lineage, restarted.state.epoch) == ([3, 1, 0], 3)
    assert world.store.manifest("tiny", 3).parent == 1
    assert world.arm("live") == 3


@pytest.mark.slow
def test_what_was_cut_while_an_operator_rolled_back_is_never_offered(world: World) -> None:
    published = 0

    def roll_back_at_the_second_version(place: str) -> None:
        nonlocal published
        published += place == "training: bytes published"
        if published == 2 and place == "training: bytes published":
            with world.database.transaction() as connection:
                roll_back(connection, policy="tiny", writer="ann", reason="complaints", treatment="poison")

    trainer = world.start(roll_back_at_the_second_version)
    world.add_random(16)
    world.turns(trainer, 8)
    assert published == 2
    assert world.store.versions("tiny") == [0, 1, 2]
    assert (world.arm("live"), world.arm(CANDIDATE)) == (0, None)
    assert trainer.state.lineage == [0]
    assert states(world) == {("quarantined", "rollback"): 16}


@pytest.mark.slow
def test_a_version_whose_checkpoint_was_forgotten_is_taken_from_the_store(world: World) -> None:
    trainer = world.start()
    samples = world.add_random(8)
    world.turns(trainer, 2)
    at_version_1 = bits_now(trainer.learner)
    world.add_random(8 * 5, seed=1)
    world.turns(trainer, 11)
    assert trainer.state.lineage == [6, 5, 4, 3, 2, 1, 0]
    assert 1 not in trainer.recovery.checkpoints.versions()
    world.revoke_down_to(1)
    trainer.turn()

    mine = bits_now(trainer.learner)
    assert all(np.array_equal(mine[name].data, at_version_1[name].data) for name in mine)
    assert not any(moment.any() for moment in captured(trainer.learner, trainer.state).optimizer.values())
    assert trainer.state.lineage == [1, 0]
    assert {key for key, told in world.ledger().items() if told[0] == "trained"} == {item.key for item in samples}
    world.add_random(8, seed=2)
    world.turns(world.start(), 4)
    assert world.store.manifest("tiny", 7).parent == 1


def test_a_rollback_to_a_version_that_never_was_is_refused_and_learning_goes_on(world: World) -> None:
    trainer = world.start()
    world.add_random(8)
    world.roll_back_to(7)
    world.turns(trainer, 4)
    assert trainer.state.epoch == 1
    assert states(world) == {("trained", ""): 8}


@a_home(max_gradient_norm=1e-3, publish_samples=4, horizon_seconds=1e9)
def test_neither_lag_nor_age_takes_weight_or_a_place_from_a_sample(world: World) -> None:
    trainer = world.start()
    world.add_random(4)
    world.turns(trainer, 2)
    assert trainer.state.version == 1
    remembering(trainer.learner, [(1e-9, 1e-9)] * 20)
    world.add_random(2, seed=1, generated_at=world.now, spans=(Span(0, 1),))
    world.add_random(2, seed=2, generated_at=world.now - 1e7, spans=(Span(0, 0),))
    world.turns(trainer, 2)
    bundle = min((world.settings.home / "bundles").glob("step-*/bundle.json"))
    assert [row["weight"] for row in json.loads(bundle.read_text())["looks"][0]["samples"]] == [1.0] * 4


@pytest.mark.slow
@a_home(batch_size=8, max_wait_seconds=60.0, old_versions=0, publish_samples=1, horizon_seconds=1e9)
def test_a_quarter_of_a_full_batch_is_old_and_the_others_wait_and_are_learned(world: World) -> None:
    trainer = world.start()
    world.add_random(8)
    world.turns(trainer, 2)
    assert (trainer.state.step, trainer.state.version) == (1, 1)
    world.accept()
    late = world.add_random(10, seed=1, spans=(Span(0, 0),))
    world.add_random(5, seed=2, spans=(Span(0, 1),))
    world.turns(trainer, 2)
    assert trainer.state.step == 1, "two old ones and five fresh ones are no full batch"
    world.add_random(1, seed=3, spans=(Span(0, 1),))
    world.turns(trainer, 2)
    assert trainer.state.step == 2
    assert len({item.key for item in late} - trainer.state.fates.keys()) == 8
    for _ in range(4):
        world.now += 60.0
        world.turns(trainer, 2)
    assert {trainer.state.fates[item.key].state for item in late} == {"trained"}


@a_home(max_gradient_norm=1e-3)
def test_a_spike_that_nobody_is_to_blame_for_costs_nobody_and_becomes_ordinary_if_it_stays(world: World) -> None:
    trainer = world.start()
    remembering(trainer.learner, [(1e-9, 1e-9)] * 64)
    before = {name: tensor.clone() for name, tensor in weights_of(trainer).items()}
    keys = {item.key for item in world.add_random(4)}
    world.turns(trainer, 1)
    assert {item.experience.key for item in trainer.intake.waiting} == keys, "queued again"
    assert all(before[name].equal(tensor) for name, tensor in weights_of(trainer).items())
    (bundle,) = (world.settings.home / "bundles").glob("step-*/bundle.json")
    content = json.loads(bundle.read_text())
    look = content["looks"][0]
    assert {row["key"] for row in look["samples"]} == keys
    assert look["figures"]["gradient_norm"] > 0
    assert (content["reason"], look["reason"], content["learned"]) == ("gradient_spike", "gradient_spike", 0)
    assert content["culprits"] == []
    assert trainer.state.unpublished_samples == 0
    world.turns(trainer, 6)
    trainer.checkpoint()
    assert states(world) == {("trained", ""): 4}
    assert len(list((world.settings.home / "bundles").iterdir())) <= 5


@pytest.mark.slow
@a_home(batch_size=64, guard_hold_seconds=100.0)
def test_a_task_whose_rewards_turn_is_quarantined_and_the_others_are_trained(world: World) -> None:
    trainer = world.start()
    world.add_random(64, reward=1.0)
    world.turns(trainer, 2)
    assert trainer.state.step == 1
    trainer.checkpoint()
    trainer = world.start()
    turned = world.add_random(40, seed=1, reward=0.0)
    others = world.add_random(24, seed=2, reward=0.0, task="another")
    world.turns(trainer, 2)
    trainer.checkpoint()
    assert {trainer.state.fates[item.key].reason for item in turned} == {"reward_spike"}
    assert {trainer.state.fates[item.key].state for item in others} == {"trained"}
    (bundle,) = (world.settings.home / "bundles").glob("rewards-*/bundle.json")
    content = json.loads(bundle.read_text())
    assert {row["key"] for row in content["samples"]} == {item.key for item in turned}
    assert (content["tasks"][0]["task"], content["tasks"][0]["num_samples"]) == ("task@hash", 40)
    world.now += 100.0
    stayed = world.add_random(64, seed=3, reward=0.0)
    world.turns(trainer, 2)
    assert {trainer.state.fates[item.key].state for item in stayed} == {"trained"}, "believed after the hold"


@a_home(max_wait_seconds=15.0)
def test_figures_of_each_step_are_kept(world: World) -> None:
    trainer = world.start()
    world.add(*[random_experience(np.random.default_rng(100 + n), reward=None, status="unlabelled") for n in range(4)])
    world.turns(trainer, 4)
    world.add_random(4)
    world.turns(trainer, 1)
    with world.database.snapshot() as connection:
        (row,) = connection.execute(select(training_step)).all()
    assert (row.epoch, row.step) == (1, 1)
    assert row.metrics["null_mass"] == 0.5
    assert row.metrics["num_samples"] == 4
    wanted = {"ess", "ratio_mean", "ratio_max", "k1", "k3", "chi2", "clip_fraction", "entropy", "gradient_norm"}
    assert wanted <= row.metrics.keys()
    assert all(np.isfinite(row.metrics[name]) for name in wanted)


def test_unreadable_records_are_buried_up_to_a_limit(world: World) -> None:
    trainer = world.start()
    world.log.append([Message(EXPERIENCES, 0, "", b"\xc1")])
    world.add_random(4)
    world.turns(trainer, 3)
    trainer.checkpoint()
    assert states(world) == {("trained", ""): 4}
    with world.database.snapshot() as connection:
        assert connection.execute(select(dead_letter.c.consumer_group)).scalars().all() == ["training"]
    world.log.append([Message(EXPERIENCES, 0, "", b"\xc1")] * 100)
    with pytest.raises(TooManyDeadLetters):
        world.turns(trainer, 100)


def test_the_process_starts_from_a_home_and_stops(tmp_path: Path) -> None:
    world = World.new(tmp_path / "home")
    base = tmp_path / "base"
    tiny_model().save_pretrained(base)
    task = tmp_path / "task.toml"
    task.write_text(
        'name = "thumbs"\n[reward]\nlow = -1.0\n[signals.thumbs]\ntype = "bool"\nlabels = { true = 1.0, false = -1.0 }\n'
    )
    write_settings(
        world.settings.model_copy(update={"base": str(base), "weights_unsigned": True, "tasks": (task,)}),
        {"training": TrainingSettings(learning_rate=0.25)},
    )
    stop = threading.Event()
    stop.set()
    main(world.settings.home, stop)
    assert [outcome.state for outcome in world.outcomes()] == ["epoch_started"]
    checkpoint = newest_in(world.settings.checkpoints)
    tracker = checkpoint.state.tracker
    assert (tracker["low"], tracker["high"]) == (-1.0, 1.0), "the range of rewards is that of the task files"
    world.close()


def test_what_the_intake_cannot_hear_is_buried_with_its_traceback_and_the_rest_is_trained(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = world.start()
    hear, heard = trainer.intake.offer, []

    def offer(record: LogRecord, experience: Experience, now: float) -> Fate | None:
        heard.append(record)
        if len(heard) == 2:
            raise ZeroDivisionError("a fault of the intake")
        return hear(record, experience, now)

    monkeypatch.setattr(trainer.intake, "offer", offer)
    world.add_random(5)
    world.turns(trainer, 3)
    trainer.checkpoint()
    assert states(world)["trained", ""] + len(trainer.intake) == 4
    assert states(world)["trained", ""] >= 3
    with world.database.snapshot() as connection:
        row = connection.execute(select(dead_letter)).one()
    assert (row.consumer_group, row.reason) == ("training", "ZeroDivisionError: a fault of the intake")
    assert "in offer" in row.traceback
    world.close()
