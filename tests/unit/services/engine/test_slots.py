"""An engine holds the arms that its slots name, and says so."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from contracts.assignments import SLOTS
from contracts.errors import InvalidRequest, VersionNotResident
from services.engine.announcing import describe
from services.engine.follower import Follower
from services.engine.settings import EngineSettings
from tests.worlds.engines.memory_store import POLICY
from tests.worlds.engines.tiny import ask, assigned, complete, make_engine, make_store, tiny_model


def small(*slots: str) -> EngineSettings:
    return EngineSettings.model_validate({"slots": slots, "max_batch_tokens": 64, "cache_tokens": 1024})


async def test_an_engine_for_live_alone_loads_no_candidate() -> None:
    engine = make_engine(make_store(2), settings=small("live"))
    follower = Follower(engine, lambda: {"live": assigned(1), "candidate": assigned(2)}, on_exit=lambda: None)
    follower.step(0.0)
    assert engine.versions() == {"live": 1}
    assert describe(engine, name="one", url="http://h:1", region="eu").slots == {"live": 1}
    with pytest.raises(InvalidRequest) as caught:
        engine.update("candidate", 2)
    assert caught.value.param == "arm"
    assert len((await complete(engine, ask([5, 9]))).token_ids) == 8
    engine.close()


async def test_an_engine_for_the_candidate_alone_serves_it_by_version() -> None:
    engine = make_engine(make_store(2), settings=small("candidate"))
    assert engine.health()[0] == "starting"
    engine.update("candidate", 2)
    status, facts = engine.health()
    assert (status, facts["versions"], facts["dtype"]) == ("serving", {"candidate": 2}, "float32")
    assert len((await complete(engine, ask([5, 9], model=f"{POLICY}@v2"))).token_ids) == 8
    with pytest.raises(VersionNotResident):
        engine.resolve(POLICY)
    engine.close()


async def test_two_slots_may_hold_one_version_and_a_request_names_its_own() -> None:
    store = make_store(3)
    engine = make_engine(store, settings=small(*SLOTS))
    for arm, version in (("live", 1), ("learning", 2), ("canary", 2), ("holdout", 1)):
        engine.update(arm, version)
    assert engine.resolve(f"{POLICY}@v2", "canary") is engine.arms["canary"]
    assert engine.resolve(f"{POLICY}@v2", "learning") is engine.arms["learning"]
    assert engine.resolve(f"{POLICY}@v2", "candidate") is engine.arms["learning"], "any slot with the version"
    assert engine.resolve(f"{POLICY}@v1", "holdout") is engine.arms["holdout"]
    assert engine.resolve(POLICY, "canary") is engine.arms["live"]
    expected = await complete(engine, ask([5, 9], model=f"{POLICY}@v2", temperature=0.0))

    engine.update("learning", 3)
    again = await complete(engine, ask([5, 9], model=f"{POLICY}@v2", temperature=0.0))
    assert (again.token_ids, again.spans) == (expected.token_ids, expected.spans)
    assert engine.versions() == {"live": 1, "learning": 3, "canary": 2, "holdout": 1}
    engine.close()


def test_each_arm_computes_with_the_published_bits_of_a_checkpoint_that_is_more_precise() -> None:
    engine = make_engine(make_store(1), make_model=lambda: tiny_model(1))  # float32, of which version 1 is the rounding
    for arm in ("live", "candidate"):
        engine.update(arm, 1)
        assert all(weight.equal(weight.bfloat16().float()) for weight in engine.arms[arm].model.parameters())
    engine.close()


def test_a_slot_that_gave_up_says_that_it_holds_nothing() -> None:
    engine = make_engine(make_store(2), settings=small("live", "canary"))
    engine.update("live", 1)
    engine.update("canary", 2)
    engine.arms["canary"].stop()  # an arm that gave up has no runner
    engine.arms["canary"].gave_up = True
    row = describe(engine, name="one", url="http://h:1", region="eu")
    assert (row.status, row.slots) == ("serving", {"live": 1, "canary": None})
    assert engine.health()[1]["versions"] == {"live": 1, "canary": None}
    engine.update("canary", 1)
    assert engine.health()[1]["versions"] == {"live": 1, "canary": 1}
    engine.close()


@pytest.mark.parametrize(
    ("slots", "says"),
    [(["live", "live"], "names an arm twice"), (["live", "training"], "Input should be"), ([], "at least 1")],
)
def test_slots_that_make_no_sense_are_refused(slots: list[str], says: str) -> None:
    with pytest.raises(ValidationError, match=says):
        EngineSettings.model_validate({"slots": slots})
