from __future__ import annotations

import asyncio

import numpy as np
import pytest

from contracts.errors import NotFound, Unavailable, WeightsRefused
from contracts.sampling import Span
from policy.weights import tensors_of
from services.engine.active_requests import ActiveRequest
from services.engine.engine import Engine
from services.engine.repository import SwapRecord, added_gap
from tests.worlds.engines.memory_store import POLICY, StoreInMemory
from tests.worlds.engines.tiny import (
    ask,
    complete,
    logprobs_of,
    make_engine,
    make_store,
    reference,
    rounding,
    until,
)
from weights.tensors import root_of

PROMPT = [5, 9, 33, 12]


async def first_tokens(active: ActiveRequest, count: int) -> None:
    await until(lambda: len(active.token_times) >= count)


async def test_tokens_name_the_version_that_made_them(store: StoreInMemory) -> None:
    told: list[SwapRecord] = []
    engine = make_engine(store, on_swap=told.append)
    engine.update("live", 1)
    active_requests = [engine.resolve(POLICY).submit(ask([number, 7], max_tokens=300)) for number in range(1, 5)]
    await first_tokens(active_requests[-1], 20)
    record = await asyncio.to_thread(engine.update, "live", 2)
    after = await complete(engine, ask(PROMPT, max_tokens=30))
    old, new = reference(store.weights[1]), reference(store.weights[2])
    for number, active in enumerate(active_requests, start=1):
        chunk = await anext(aiter(active.chunks()))
        assert [span.version for span in chunk.spans] == [1, 2]
        boundary = chunk.spans[1].start
        assert 20 <= boundary < 300
        expected = logprobs_of(old, [number, 7], chunk.token_ids)
        assert chunk.logprobs[:boundary] == pytest.approx(expected[:boundary], abs=rounding())
        early, there = chunk.logprobs[boundary : boundary + 5], expected[boundary : boundary + 5]
        assert early != pytest.approx(there, abs=1e-3), (
            "the boundary is too early; one token alone may be equal by chance"
        )
        assert len(chunk.token_ids) == 300
    assert after.spans == [Span(0, 2)]
    assert after.logprobs == pytest.approx(logprobs_of(new, PROMPT, after.token_ids), abs=rounding())
    assert record is not None
    assert told == [record] == list(engine.swaps)
    assert record.gap_seconds is not None
    assert 0 < record.pause_seconds < 30
    assert record.density > 0.99, "random weights have nothing in common, apart from norms"
    assert record.payload_bytes == store.manifest(POLICY, 2).payload_bytes
    assert store.staged[-2:] == [(1, None), (2, 1)]
    engine.close()


async def test_live_goes_back_and_a_candidate_is_apart(engine: Engine, store: StoreInMemory) -> None:
    engine.update("candidate", 3)
    engine.update("live", 2)
    record = engine.update("live", 1)
    assert record is not None
    assert record.gap_seconds is None, "nothing was in flight"
    assert engine.versions() == {"live": 1, "candidate": 3}
    for name, version in (("live", 1), ("candidate", 3)):
        assert root_of(tensors_of(engine.arms[name].model)) == root_of(store.weights[version])
    assert engine.update("live", 1) is None
    assert (record.payload_bytes, record.num_changed) == (0, engine.swaps[-2].num_changed), "out of the undo log"


@pytest.mark.slow
async def test_the_way_back_needs_no_store_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """In flight: the answer goes over the way back, labelled; whatever is asked of the store fails."""
    store = make_store(2)
    engine = make_engine(store)
    engine.update("live", 1)
    engine.update("live", 2)

    def away(*_arguments: object, **_named: object) -> None:
        raise Unavailable("the store is away")

    for asked in (
        "versions",
        "manifest",
        "edges",
        "chunk",
        "payload",
        "load_state",
        "stage_onto",
        "read_small",
        "run_of",
    ):
        monkeypatch.setattr(store, asked, away)
    active = engine.resolve(POLICY).submit(ask(PROMPT, max_tokens=200))
    await first_tokens(active, 5)
    record = await asyncio.to_thread(engine.update, "live", 1)
    chunk = await anext(aiter(active.chunks()))
    assert [span.version for span in chunk.spans] == [2, 1]
    assert record is not None
    assert record.payload_bytes == 0
    assert root_of(tensors_of(engine.arms["live"].model)) == root_of(store.weights[1])
    with pytest.raises(Unavailable):
        engine.update("live", 3)
    engine.close()


@pytest.mark.slow
async def test_pause_keeps_requests_in_flight(engine: Engine) -> None:
    active = engine.resolve(POLICY).submit(ask(PROMPT, max_tokens=200))
    await first_tokens(active, 5)
    await asyncio.to_thread(engine.pause)
    engine.pause()  # a second time changes nothing
    assert engine.is_paused
    count = len(active.token_times)
    late = asyncio.create_task(complete(engine, ask(PROMPT)))
    await asyncio.sleep(0.1)
    assert len(active.token_times) == count
    assert not late.done()
    record = await asyncio.to_thread(engine.update, "live", 2)
    assert record is not None
    assert record.gap_seconds is None, "the pause around it is not the swap's"
    await asyncio.to_thread(engine.resume)
    chunk = await anext(aiter(active.chunks()))
    assert len(chunk.token_ids) == 200
    assert chunk.spans == [Span(0, 1), Span(count, 2)]
    assert (await late).spans == [Span(0, 2)]
    assert not engine.is_paused


async def test_a_version_that_cannot_be_had_changes_nothing() -> None:
    store = make_store(2)
    engine = make_engine(store)
    engine.update("live", 1)
    with pytest.raises(NotFound):
        engine.update("live", 7)
    broken = dict(store.weights[2])
    name = next(iter(broken))
    broken[name] = broken[name]._replace(data=np.full_like(broken[name].data, 0xFF))  # NaN
    store.add(3, broken, parent=2)
    with pytest.raises(WeightsRefused) as caught:
        engine.update("live", 3)
    assert caught.value.code == "not_finite"
    answer = await complete(engine, ask(PROMPT))
    assert answer.spans == [Span(0, 1)]
    assert answer.logprobs == pytest.approx(
        logprobs_of(reference(store.weights[1]), PROMPT, answer.token_ids), abs=rounding()
    )
    engine.close()


def test_the_added_gap_is_the_worst_gap_that_holds_the_swap_minus_the_median() -> None:
    steady, hit = [0.0, 1.0, 2.0, 3.0], [0.0, 1.0, 5.0, 6.0]
    assert added_gap([steady, hit], swapped_at=1.5) == 3.0
    assert added_gap([], swapped_at=1.5) is None
    assert added_gap([[0.0, 1.0]], swapped_at=4.0) is None, "ended before the swap"
    assert added_gap([[1.0, 2.0]], swapped_at=1.5) is None, "nothing to compare with"
    assert added_gap([[1.0, 2.0]], swapped_at=1.5, recent_gaps=[0.2, 0.25, 9.0]) == 0.75
