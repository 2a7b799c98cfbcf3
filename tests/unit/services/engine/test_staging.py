"""From which weights a version is made, and what is fetched from the store."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from contracts.errors import NotFound, WeightsRefused
from policy.weights import tensors_of
from services.engine.held import StagedUpdate
from services.engine.staging import Stager, target_names
from tests.worlds.engines.memory_store import POLICY, StoreInMemory
from tests.worlds.engines.tiny import moved, tiny_model
from weights.codec.delta import Staged, TensorChange
from weights.reader import Hop
from weights.tensors import root_of

LIVE, CANDIDATE = "live", "candidate"


@pytest.fixture(scope="module")
def published() -> StoreInMemory:
    """1 - 2 - 4 - 5 - 6, and 3 from 1."""
    store = StoreInMemory()
    store.add(1, tensors_of(tiny_model(1)))
    for version, parent in ((2, 1), (3, 1), (4, 2), (5, 4), (6, 5)):
        store.add(version, moved(store.weights[parent], version), parent)
    return store


@pytest.fixture
def store(published: StoreInMemory) -> StoreInMemory:
    published.staged.clear()
    return published


class Arms:
    """Two models, brought along as the engine does it."""

    def __init__(self, store: StoreInMemory) -> None:
        self.store = store
        self.stager = Stager(POLICY, store, tiny_model)
        self.models: dict[str, Any] = {}

    def bring(self, arm: str, version: int) -> StagedUpdate:
        step = self.stager.stage(arm, version)
        step.apply()
        self.stager.loaded(arm, step.arm)
        self.models[arm] = step.arm.model
        assert self.root(arm) == root_of(self.store.weights[version]) == step.after.root
        return step

    def root(self, arm: str) -> str:
        return root_of(tensors_of(self.models[arm]))

    def decay(self, arm: str) -> None:
        """A bit flips in memory."""
        with torch.no_grad():
            self.models[arm].model.norm.weight[3] *= -1


@pytest.fixture
def arms(store: StoreInMemory) -> Arms:
    return Arms(store)


def test_a_step_changes_what_it_names_and_nothing_else(arms: Arms) -> None:
    arms.bring(LIVE, 1)
    step = arms.bring(LIVE, 2)
    assert arms.store.staged == [(1, None), (2, 1)]
    assert 0.01 < step.patches.num_changed / step.patches.num_weights < 0.03
    assert step.payload_bytes == arms.store.manifest(POLICY, 2).payload_bytes


def test_the_way_back_and_forth_needs_no_store(arms: Arms) -> None:
    arms.bring(LIVE, 1)
    forth = arms.bring(LIVE, 2)
    arms.store.staged.clear()
    back = arms.bring(LIVE, 1)
    again = arms.bring(LIVE, 2)
    assert arms.store.staged == []
    assert back.payload_bytes == again.payload_bytes == 0
    assert back.patches.num_changed == again.patches.num_changed == forth.patches.num_changed
    arms.bring(LIVE, 4)  # coded with the history of 2
    assert arms.store.staged == [(4, 2)]


def test_several_steps_are_one_change(arms: Arms) -> None:
    arms.bring(LIVE, 1)
    step = arms.bring(LIVE, 6)
    assert arms.store.staged[-1] == (6, 1)
    assert step.patches.num_changed < 0.09 * step.patches.num_weights
    arms.bring(LIVE, 1)
    assert arms.store.staged[-1] == (6, 1), "one undo step takes all of them back"


def test_a_candidate_starts_from_what_is_live(arms: Arms) -> None:
    arms.bring(LIVE, 1)
    arms.bring(CANDIDATE, 2)
    arms.bring(CANDIDATE, 3)  # 2 was rejected; 3 comes from 1, which is live
    assert arms.store.staged == [(1, None), (2, 1), (3, 1)]


def test_what_another_arm_holds_needs_no_store(arms: Arms) -> None:
    arms.bring(LIVE, 1)
    arms.bring(CANDIDATE, 2)
    arms.store.staged.clear()
    step = arms.bring(LIVE, 2)
    assert arms.store.staged == []
    assert step.payload_bytes == 0
    assert step.patches.num_changed < 0.03 * step.patches.num_weights
    arms.bring(LIVE, 4)
    assert arms.store.staged == [(4, 2)], "with the other's history"


def test_what_was_held_before_is_a_base_too(arms: Arms) -> None:
    arms.bring(LIVE, 1)
    arms.bring(LIVE, 2)
    arms.bring(LIVE, 3)
    assert arms.store.staged == [(1, None), (2, 1), (3, 1)]


def test_an_older_version_that_nobody_holds_is_loaded_whole(arms: Arms) -> None:
    for version in (1, 2, 4):
        arms.bring(LIVE, version)
    step = arms.bring(LIVE, 1)
    assert step.patches.num_changed == step.patches.num_weights
    assert arms.bring(LIVE, 4).payload_bytes == 0, "and back"


def test_decayed_weights_are_no_base_and_no_way_back(arms: Arms) -> None:
    arms.bring(LIVE, 1)
    arms.decay(LIVE)
    step = arms.bring(LIVE, 2)
    assert arms.store.staged == [(1, None), (2, 1), (2, None)]
    assert step.payload_bytes is None
    assert step.before is None
    arms.bring(LIVE, 4)
    assert arms.store.staged[-1] == (4, 2)


def test_decayed_weights_of_another_arm_are_not_copied(arms: Arms) -> None:
    arms.bring(LIVE, 1)
    arms.bring(CANDIDATE, 2)
    arms.decay(CANDIDATE)
    arms.bring(LIVE, 2)
    assert arms.store.staged[-1] == (2, 1)


def test_a_damaged_payload_is_no_reason_for_a_full_copy(arms: Arms) -> None:
    store = StoreInMemory()
    store.add(1, arms.store.weights[1])
    store.add(2, arms.store.weights[2], parent=1)
    store.damage(2)
    arms = Arms(store)
    arms.bring(LIVE, 1)
    with pytest.raises(WeightsRefused) as caught:
        arms.bring(LIVE, 2)
    assert caught.value.code == "payload_hash"
    assert store.staged == [(1, None), (2, 1)]
    assert arms.root(LIVE) == root_of(store.weights[1])


@pytest.mark.parametrize("change", ["removed", "added"])
def test_a_version_of_another_architecture_is_refused(arms: Arms, change: str) -> None:
    store = StoreInMemory()
    store.add(1, arms.store.weights[1])
    other = dict(store.weights[1])
    norm = other["model.norm.weight"]
    if change == "removed":
        del other["model.norm.weight"]
    else:
        other["model.other.weight"] = norm
    store.add(2, other, parent=1)
    arms = Arms(store)
    arms.bring(LIVE, 1)
    with pytest.raises(WeightsRefused) as caught:
        arms.bring(LIVE, 2)
    assert caught.value.code == {"removed": "missing_tensor", "added": "unknown_tensor"}[change]
    assert arms.root(LIVE) == root_of(store.weights[1])


def test_a_version_that_does_not_exist_changes_nothing(arms: Arms) -> None:
    arms.bring(LIVE, 1)
    arms.bring(CANDIDATE, 2)
    with pytest.raises(NotFound):
        arms.bring(CANDIDATE, 9)
    assert arms.root(CANDIDATE) == root_of(arms.store.weights[2])


def hop(manifest: Any, removed: tuple[str, ...], *changed: str) -> Hop:
    word = np.zeros(1, dtype=np.uint16)
    changes = {name: TensorChange("BF16", (1,), None, word) for name in changed}
    return Hop(manifest, Staged(changes, removed, {}, ""))


def test_names_follow_what_hops_add_remove_and_replace(store: StoreInMemory) -> None:
    full, step = store.manifest(POLICY, 1), store.manifest(POLICY, 2)
    assert target_names({"a", "b"}, [hop(step, ("a",), "c")]) == {"b", "c"}
    assert target_names({"a", "b"}, [hop(step, ("a",)), hop(step, (), "a")]) == {"a", "b"}
    assert target_names({"a", "b"}, [hop(full, (), "c"), hop(step, (), "d")]) == {"c", "d"}
