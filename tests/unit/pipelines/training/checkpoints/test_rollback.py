"""The effects of a rollback on samples, with the real trainer: poison, evidence, mixtures, an expired log, crashes."""

import json
import shutil
import sqlite3
from collections import Counter
from pathlib import Path

import msgspec
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import select

from contracts.assignments import CANDIDATE, LIVE, TRAINING
from contracts.errors import WeightsRefused
from contracts.records import Experience
from contracts.revocations import Treatment
from contracts.sampling import Span
from contracts.tables import training_step
from contracts.topics import EXPERIENCES
from pipelines.training.checkpoints.recovery import inherited
from pipelines.training.known.experiences import version_lag
from pipelines.training.known.known_samples import KnownSamples
from pipelines.training.state import FOUND, Correction, Fate, TrainerState, Undone, finish_learning_again, roll_back
from pipelines.training.worker import Trainer
from tests.unit.pipelines.training.builders import whole
from tests.unit.pipelines.training.learning.test_corrections import later
from tests.unit.pipelines.training.world import (
    CrashAt,
    World,
    a_home,
    first_and_last,
    named,
    some,
    states,
    survive,
    weights_of,
)

pytestmark = pytest.mark.slow
TASKS = ("booking", "math", "code", "tool_call", "judged", "signals_only")


HOME = {"checkpoint_keep": 12}


def say(world: World, version: int, count: int, seed: int) -> list[Experience]:
    """Samples of a version, of several tasks."""
    said = []
    for number in range(count):
        task = TASKS[number % len(TASKS)]
        said += world.add_random(1, seed=1000 * seed + number, spans=(Span(0, version),), task=task, baseline_key=task)
    return said


def live_through(world: World, trainer: Trainer, num_versions: int) -> dict[int, set[str]]:
    """Cut each version from eight samples of the one before; returns the keys by the version that trained them."""
    learned = {}
    for version in range(1, num_versions + 1):
        learned[version] = {item.key for item in say(world, version - 1, 8, seed=version)}
        world.turns(trainer, 4)
        assert world.arm(LIVE) == version
    return learned


def keys_of(world: World, state: str) -> set[str]:
    """The samples in the ledger with this state."""
    return {key for key, fate in world.ledger().items() if fate[0] == state}


def obey(trainer: Trainer) -> None:
    """Only roll back: no turn."""
    trainer.begin()
    trainer.obey_rollback(trainer.around.arms()[TRAINING])


def drain(world: World, trainer: Trainer) -> None:
    for _ in range(2):
        world.turns(trainer, 15)
        world.now += 60.0
    trainer.checkpoint()


# Poison.


@a_home(checkpoint_keep=12, max_wait_seconds=60.0)
def test_poison_is_quarantined_whether_it_was_learned_or_waits_or_comes_later(world: World) -> None:
    trainer = world.start()
    learned = live_through(world, trainer, 5)
    at_version_2 = trainer.recovery.checkpoints.load_version(2).weights
    waiting = say(world, 5, 2, seed=50)
    innocent = say(world, 2, 1, seed=51)
    trainer.turn()
    assert len(trainer.intake) == 3, "a batch is four"

    world.revoke_down_to(2, "poison")
    trainer.turn()
    assert trainer.state.lineage == [2, 1, 0]
    assert all(torch.equal(value, at_version_2[name]) for name, value in weights_of(trainer).items())
    assert [item.experience.key for item in trainer.intake.waiting] == [innocent[0].key]
    late = say(world, 4, 3, seed=52)
    mixed = world.add_random(1, seed=53, spans=(Span(0, 2), Span(1, 3)))
    drain(world, trainer)
    poisoned = learned[3] | learned[4] | learned[5] | {item.key for item in (*waiting, *late, *mixed)}
    assert keys_of(world, "quarantined") == poisoned
    assert keys_of(world, "trained") == learned[1] | learned[2] | {innocent[0].key}

    fresh = say(world, 2, 7, seed=54)
    drain(world, trainer)
    assert {item.key for item in fresh} <= keys_of(world, "trained")
    assert states(world) == {("trained", ""): 24, ("quarantined", "rollback"): 30}


def test_poison_stays_poison_after_a_restart(world: World) -> None:
    live_through(world, world.start(), 2)
    world.revoke_down_to(1, "poison")
    world.start().turn()
    restarted = world.start()
    say(world, 2, 4, seed=60)
    drain(world, restarted)
    assert states(world) == {("trained", ""): 8, ("quarantined", "rollback"): 12}


# Evidence.


def test_evidence_is_pending_and_learned_again_once(world: World) -> None:
    trainer = world.start()
    learned = live_through(world, trainer, 5)
    say(world, 5, 4, seed=50)
    world.turns(trainer, 1)
    waiting = {item.key for item in say(world, 5, 2, seed=51)}
    unpublished = {key for key, fate in trainer.state.fates.items() if fate.version is None}
    undone = learned[3] | learned[4] | learned[5] | unpublished
    assert len(undone) == 28

    world.revoke_down_to(2, "evidence")
    obey(trainer)
    assert world.ledger().keys() == learned[1] | learned[2]
    assert trainer.state.undone.keys() == undone
    drain(world, trainer)
    say(world, 2, 2, seed=52)
    drain(world, trainer)
    told = world.ledger()
    assert states(world) == {("trained", ""): 16 + 28 + 2 + 2}
    assert undone | waiting <= told.keys()
    assert min(told[key][2] or 0 for key in undone) == 6
    assert trainer.state.learn_again_until == {}
    assert trainer.state.lineage[-3:] == [2, 1, 0]


@a_home(checkpoint_keep=12, max_wait_seconds=60.0)
def test_what_waits_and_was_said_by_revoked_versions_is_kept_and_never_fresh(world: World) -> None:
    trainer = world.start()
    live_through(world, trainer, 5)
    far, near = say(world, 5, 2, seed=50), say(world, 2, 1, seed=51)
    trainer.turn()
    world.revoke_down_to(2, "evidence")
    obey(trainer)
    assert {item.experience.key for item in trainer.intake.waiting} == {item.key for item in (*far, *near)}
    tree = trainer.recovery.branches.tree()
    assert [version_lag(item, tree) for item in (*far, *near)] == [3, 3, 0]
    world.now += 60.0
    before = trainer.state.step
    trainer.turn()
    assert trainer.state.step > before
    with world.database.snapshot() as connection:
        rows = connection.execute(select(training_step.c.metrics).where(training_step.c.step > before)).scalars()
        assert max(row["lag_max"] for row in rows) == 3
    drain(world, trainer)
    assert {trainer.state.fates[item.key].state for item in (*far, *near)} == {"trained"}


@a_home(publish_samples=4)
def test_a_correction_that_waits_becomes_the_sample_and_one_that_was_learned_is_undone(world: World) -> None:
    trainer = world.start()
    (kept, *_) = world.add_random(4, reward=1.0)
    world.turns(trainer, 3)
    (undone, *_) = world.add_random(4, seed=1, reward=1.0)
    world.turns(trainer, 3)
    world.add(later(kept, 0.5), *world.add_random(3, seed=2))
    world.turns(trainer, 3)
    world.add(later(undone, 0.25))
    trainer.turn()
    world.revoke_down_to(1, "evidence")
    drain(world, trainer)
    say(world, 1, 4 - len(trainer.intake) % 4, seed=3)
    drain(world, trainer)
    assert trainer.state.fates[kept.key].applied_now == 1.0
    assert trainer.state.fates[kept.key].late_reason == "correction_rolled_back"
    assert trainer.state.fates[undone.key].applied_now == 0.25
    assert trainer.state.fates[undone.key].corrections == ()


# Mixtures: each version by its own treatment.


def test_of_a_mixture_each_version_goes_its_own_way(world: World) -> None:
    trainer = world.start()
    learned = live_through(world, trainer, 5)
    world.revoke_down_to(2, "poison", revoke={5})
    drain(world, trainer)
    assert keys_of(world, "quarantined") == learned[5]
    assert keys_of(world, "trained") == learned[1] | learned[2] | learned[3] | learned[4]
    say(world, 5, 1, seed=70)
    say(world, 4, 4, seed=71)
    drain(world, trainer)
    assert states(world) == {("trained", ""): 36, ("quarantined", "rollback"): 9}


def test_two_rollbacks_of_two_treatments(world: World) -> None:
    trainer = world.start()
    learned = live_through(world, trainer, 5)
    world.revoke_down_to(4, "evidence")
    trainer.turn()
    world.revoke_down_to(2, "poison")
    drain(world, trainer)
    told = world.ledger()
    assert keys_of(world, "quarantined") == learned[3] | learned[4] | learned[5] - keys_of(world, "trained")
    assert learned[5] <= told.keys() | {waiting.experience.key for waiting in trainer.intake.waiting}


# The log has lost records.


def test_what_expired_from_the_log_is_named(world: World) -> None:
    trainer = world.start()
    learned = live_through(world, trainer, 4)
    forget_up_to(world, learned[3])
    world.revoke_down_to(2, "evidence")
    drain(world, trainer)
    assert states(world)["quarantined", "rollback"] == len(learned[3])
    assert keys_of(world, "quarantined") == learned[3]
    assert keys_of(world, "trained") == learned[1] | learned[2] | learned[4]


def test_of_an_empty_log_everything_is_named_at_once(world: World) -> None:
    trainer = world.start()
    learned = live_through(world, trainer, 3)
    forget_up_to(world, set().union(*learned.values()))
    world.revoke_down_to(1, "evidence")
    trainer.turn()
    trainer.checkpoint()
    assert states(world) == {("trained", ""): 8, ("quarantined", "rollback"): 16}


def test_what_was_read_without_a_reward_meanwhile_has_a_name_already() -> None:
    revisions = {"a": 1, "b": 2, "c": 0, "d": 0}
    state = TrainerState(learn_again=revisions, unrewarded={"a": 2}, fates={"c": Fate(0, "stale")})
    assert finish_learning_again(state, {"d"}) == ["b"]
    assert state.fates["b"] == Fate(2, "quarantined", "rollback")


def forget_up_to(world: World, keys: set[str]) -> None:
    """Delete records as retention does: from the start of each partition up to the last of these."""
    with sqlite3.connect(world.settings.home / "log" / f"{EXPERIENCES}.db") as connection:
        places = connection.execute("SELECT partition, offset, key FROM record").fetchall()
        for partition, offset, key in places:
            if key in keys:
                connection.execute("DELETE FROM record WHERE partition = ? AND offset <= ?", (partition, offset))
    connection.close()


# Crashes, and starts on a revoked version.


@pytest.mark.parametrize("treatment", ["poison", "evidence"])
def test_a_crash_anywhere_in_a_rollback_changes_nothing(tmp_path: Path, treatment: Treatment) -> None:
    template = World.new(tmp_path / "template")
    live_through(template, template.start(), 3)
    template.close()

    def play(number: int) -> tuple[dict[str, tuple[str, str]], CrashAt]:
        world = World(shutil.copytree(tmp_path / "template", tmp_path / f"{treatment}-{number}"))
        fault = CrashAt(number)
        world.start().turn()
        world.revoke_down_to(1, treatment)

        def run(trainer: Trainer) -> None:
            world.turns(trainer, 8)
            trainer.checkpoint()

        trainer = survive(world, run, fault)
        assert trainer.state.lineage[-2:] == [1, 0]
        assert not {2, 3} & set(trainer.state.lineage)
        found = {key: fate[:2] for key, fate in world.ledger().items()}
        world.close()
        return found, fault

    expected, counter = play(10**9)
    assert Counter(expected.values()) == (
        {("trained", ""): 24} if treatment == "evidence" else {("trained", ""): 8, ("quarantined", "rollback"): 16}
    )
    for number in some(first_and_last(counter.places)):
        with named((number, counter.places[number - 1])):
            assert play(number)[0] == expected


def test_who_starts_on_a_revoked_version_obeys_before_anything_else(world: World) -> None:
    trainer = world.start()
    live_through(world, trainer, 3)
    trainer.checkpoint()
    say(world, 3, 4, seed=80)
    world.revoke_down_to(1, "poison")
    steps: list[str] = []
    restarted = world.start(steps.append)
    assert restarted.state.version == 3, "dead between the moves and its obeying"
    step = restarted.state.step
    restarted.turn()
    assert restarted.state.lineage == [1, 0]
    assert restarted.state.step == step, "nothing was learned on it"
    assert "training: candidate assigned" not in steps
    world.turns(restarted, 4)
    assert (world.arm(LIVE), world.arm(CANDIDATE)) == (1, None)


def test_nothing_goes_on_from_a_revoked_version(world: World) -> None:
    trainer = world.start()
    live_through(world, trainer, 3)
    world.revoke_down_to(1, "evidence")
    trainer.recovery.read_revocations()
    assert trainer.recovery.revoked.keys() == {2, 3}
    with pytest.raises(WeightsRefused, match="version 2 is revoked"):
        trainer.recovery.load(2)


def test_who_stands_on_a_revoked_version_and_cannot_have_the_wanted_one_takes_an_ancestor(world: World) -> None:
    trainer = world.start()
    live_through(world, trainer, 3)
    world.revoke_down_to(2, "poison")
    for folder in world.settings.checkpoints.glob("checkpoint-*"):
        if json.loads((folder / "MANIFEST.json").read_text())["version"] == 2:
            (folder / "weights.safetensors").write_bytes(b"")
    shutil.rmtree(world.settings.weights / "tiny" / "v000002")
    trainer.turn()
    assert trainer.state.lineage == [1, 0]


# The pure part.


def test_checkpoints_of_before_are_read() -> None:
    old = msgspec.json.encode({"epoch": 3, "lineage": [1, 0], "fates": {"a": {"revision": 0, "state": "trained"}}})
    state = msgspec.json.decode(old, type=TrainerState)
    assert (state.undone, state.learn_again_until, state.lineage) == ({}, {}, [1, 0])
    assert msgspec.json.decode(msgspec.json.encode(state, enc_hook=whole), type=TrainerState) == state


def test_what_a_checkpoint_of_before_would_learn_again_is_learned_again() -> None:
    old = msgspec.json.encode({"lineage": [1, 0], "learn_again": {"a": 1, "b": 2}, "second_chance": ["b", "c"]})
    state = msgspec.json.decode(old, type=TrainerState)
    assert state.undone == {"a": Undone(1), "b": Undone(2, is_second=True), "c": Undone(FOUND, is_second=True)}
    samples = KnownSamples()
    state.use(samples)
    assert len(state.undone) == 3, "nor are they lost with the samples of a file"
    assert b'"learn_again":{}' in state.to_json()
    assert finish_learning_again(state, {"a"}) == ["b"]
    assert state.fates.keys() == {"b"}, "what was found before is not searched"


def test_what_no_treatment_is_known_of_is_learned_again_once() -> None:
    state = TrainerState(lineage=[2, 1, 0], fates={"a": Fate(0, "trained", version=2), "b": Fate(0, "trained")})
    roll_back(state, TrainerState(lineage=[1, 0]), {}, 0.0)
    assert state.undone == {"a": Undone(0, is_second=True), "b": Undone(0, is_second=True)}
    finish_learning_again(state, {"a", "b"})
    state.fates["a"] = Fate(1, "trained", version=3)
    state.lineage = [3, 1, 0]
    roll_back(state, TrainerState(lineage=[1, 0]), {}, 0.0)
    assert state.fates == {"a": Fate(1, "quarantined", "rollback")}
    assert state.undone["b"].is_second, "it still waits for its second"


def test_an_operator_who_calls_it_evidence_is_taken_at_her_word_each_time() -> None:
    state = TrainerState(lineage=[2, 1, 0], fates={"a": Fate(0, "trained", version=2)}, second_chance={"a"})
    roll_back(state, TrainerState(lineage=[1, 0]), {2: "evidence"}, 0.0)
    assert (state.fates, state.undone) == ({}, {"a": Undone(0, is_second=True)})


@given(
    st.dictionaries(
        st.text(min_size=1, max_size=3),
        st.tuples(st.sampled_from([None, 1, 2, 3, 4]), st.sampled_from(["trained", "stale", "quarantined"])),
    ),
    st.dictionaries(st.sampled_from([3, 4]), st.sampled_from(["poison", "evidence"])),
)
def test_every_sample_is_kept_undone_or_put_aside(
    drawn: dict[str, tuple[int | None, str]], treatments: dict[int, Treatment]
) -> None:
    fates = {
        key: Fate(0, state, version=version if state == "trained" else None)  # type: ignore[arg-type] # drawn
        for key, (version, state) in drawn.items()
    }
    state = TrainerState(lineage=[4, 3, 2, 1, 0], fates=dict(fates))
    roll_back(state, TrainerState(lineage=[2, 1, 0]), treatments, 0.0)
    assert state.fates.keys() | state.undone.keys() == fates.keys()
    assert not state.fates.keys() & state.undone.keys()
    for key, fate in fates.items():
        version = fate.version or 4
        if fate.state != "trained" or fate.version in {1, 2}:
            assert state.fates[key] == fate
        elif treatments.get(version) == "poison":
            assert state.fates[key] == Fate(0, "quarantined", "rollback")
        else:
            assert key in state.undone


def test_corrections_are_undone_and_the_sample_stays() -> None:
    fate = Fate(0, "trained", version=1, applied=1.0, late=2, late_reason="corrected").corrected(2, 0.0)
    state = TrainerState(lineage=[2, 1, 0], fates={"a": fate})
    roll_back(state, TrainerState(lineage=[1, 0]), {2: "evidence"}, 0.0)
    assert state.fates["a"].corrections == ()
    assert state.fates["a"].late_reason == "correction_rolled_back"
    assert Correction(0.0) in fate.corrections


def test_what_descends_from_a_revoked_version_goes_with_it() -> None:
    assert inherited([6, 5, 3, 2, 0], {3: "poison", 6: "evidence"}) == {3: "poison", 5: "poison", 6: "evidence"}
    assert inherited([2, 1, 0], {3: "poison"}) == {}
