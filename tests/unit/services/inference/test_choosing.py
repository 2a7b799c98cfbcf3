"""The slot of a replica that answers a request."""

from __future__ import annotations

import pytest

from contracts.engines import EngineReplica
from contracts.sampling import Sampling
from engines.wire import EngineRequest
from services.inference.engine.choosing import ServingSlot, slot_of

ROW = EngineReplica("one", "demo", "http://h:1", "millrace", "eu", "serving", {}, frozenset(), "i", "e", "d", 0.0)


def slot(arm: str, model: str, *, any_version: bool = True, **slots: int | None) -> ServingSlot | None:
    sampling = Sampling(temperature=1.0, max_tokens=4)
    request = EngineRequest(model, [1], sampling, "r", arm=arm, any_version=any_version)
    return slot_of(ROW._replace(slots=slots), request)


def test_a_version_is_found_in_any_slot() -> None:
    for arm in ("canary", "learning", "holdout", "candidate", "pinned"):
        assert slot(arm, "demo@v5", live=5, canary=None) == ServingSlot(5, "demo@v5")
    assert slot("live", "demo", live=3, canary=5) == ServingSlot(3, "demo")
    assert slot("live", "demo", live=None, canary=5) is None


@pytest.mark.parametrize("arm", ["canary", "holdout"])
def test_no_other_version_answers_for_an_arm_that_is_judged(arm: str) -> None:
    held: dict[str, int | None] = {"live": 3, arm: 4}
    assert slot(arm, "demo@v5", any_version=True, **held) is None


def test_the_learning_arm_goes_on_with_the_version_that_its_slot_has() -> None:
    assert slot("learning", "demo@v5", live=3, learning=4) == ServingSlot(4, "demo@v4")
    assert slot("learning", "demo@v5", live=3, learning=4, any_version=False) is None, "the request named it"
