"""An engine holds the arms that its slots name, and says so."""

from __future__ import annotations

import pytest

from contracts.errors import InvalidRequest, VersionNotResident
from services.engine.follower import AssignedVersion, Follower
from services.engine.settings import EngineSettings
from tests.unit.services.engine.memory_store import POLICY
from tests.unit.services.engine.world import ask, complete, make_engine, make_store


def small(*slots: str) -> EngineSettings:
    return EngineSettings.model_validate({"slots": slots, "max_batch_tokens": 64, "cache_tokens": 1024})


async def test_an_engine_for_live_alone_loads_no_candidate() -> None:
    engine = make_engine(make_store(2), settings=small("live"))
    follower = Follower(
        engine, lambda: {"live": AssignedVersion(1), "candidate": AssignedVersion(2)}, on_exit=lambda: None
    )
    follower.step(0.0)
    assert engine.versions() == {"live": 1}
    assert engine.health()[1]["versions"] == {"live": 1}
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
