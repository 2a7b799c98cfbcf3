"""Arms whose versions are adapters over one base."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from contracts.assignments import SLOTS
from contracts.errors import NotFound, Unavailable, WeightsRefused
from contracts.sampling import Span
from policy.weights import tensors_of
from services.engine.active_requests import ActiveRequest
from services.engine.engine import Engine
from services.engine.local_copy import LocalCopy
from services.engine.repository import SwapRecord
from services.engine.settings import EngineSettings
from services.engine.staging import VersionSource
from tests.models import KINDS
from tests.worlds.engines.adapters import RUN, Adapted
from tests.worlds.engines.memory_store import POLICY
from tests.worlds.engines.policies import TOKENIZER, check, request, sharp_model
from tests.worlds.engines.tiny import ask, complete, logprobs_of, make_engine, rounding, tiny_model, until
from weights.adapters import CONFIG
from weights.tensors import Tensors, root_of

PROMPT = [5, 9, 33, 12]
LIVE, CANDIDATE = "live", "candidate"


def base_model() -> Any:
    return tiny_model(1)


@pytest.fixture(scope="module")
def five(tmp_path_factory: pytest.TempPathFactory) -> Adapted:
    return Adapted(tmp_path_factory.mktemp("weights"), base_model, 5)


@pytest.fixture
def published(five: Adapted) -> Adapted:
    """Version 0 and adapters 1 to 5."""
    five.store.error = None
    return five


@pytest.fixture
def open_engine(published: Adapted) -> Iterator[Callable[..., Engine]]:
    """Opens engines over the published versions, which are closed at the end."""
    opened: list[Engine] = []

    def open_(store: VersionSource | None = None, **named: Any) -> Engine:
        settings = EngineSettings(slots=SLOTS, max_batch_tokens=64, cache_tokens=1024)
        named = {"make_model": base_model, "settings": settings, "run": RUN, **named}
        opened.append(make_engine(store or published.store, **named))
        return opened[-1]

    yield open_
    for engine in opened:
        engine.close()


async def check_serves(engine: Engine, published: Adapted, arm: str, version: int) -> None:
    """The answers of an arm have the log-probs of a plain forward with the adapter merged."""
    active = await engine.arms[arm].open(ask(PROMPT, max_tokens=12))
    answer = await anext(aiter(active.chunks()))
    assert answer.spans == [Span(0, version)]
    expected = logprobs_of(published.merged(version), PROMPT, answer.token_ids)
    assert answer.logprobs == pytest.approx(expected, abs=4 * rounding())


async def more_tokens(active: ActiveRequest) -> None:
    count = len(active.token_times) + 5
    await until(lambda: len(active.token_times) > count)


@pytest.mark.parametrize(
    "kind", [kind if kind in {"gemma3", "mamba2"} else pytest.param(kind, marks=pytest.mark.slow) for kind in KINDS]
)
async def test_both_runners_compute_with_the_adapter(tmp_path: Path, kind: str) -> None:
    published = Adapted(tmp_path, lambda: sharp_model(kind), 1)
    settings = EngineSettings(max_batch_tokens=128, cache_tokens=512, page_size=16)
    engine = make_engine(published.store, make_model=lambda: sharp_model(kind), settings=settings, tokenizer=TOKENIZER)
    for version in (0, 1):
        engine.update(LIVE, version)
        asked = [request([2, 40, 41], seed=3, max_tokens=9), request([9, 9, 300, 42, 11], seed=4, max_tokens=5)]
        for one, answer in zip(asked, await asyncio.gather(*(complete(engine, one) for one in asked)), strict=True):
            check(published.merged(version), one, {}, answer)
    engine.close()


async def test_an_answer_goes_on_over_swaps_and_the_way_back_needs_no_store(
    open_engine: Callable[..., Engine], published: Adapted
) -> None:
    engine = open_engine()
    engine.update(LIVE, 0)
    active = engine.resolve(POLICY).submit(ask(PROMPT, max_tokens=400))
    records: list[SwapRecord] = []
    for version in (1, 2, 3, 0, 3, 2, 0):
        await more_tokens(active)
        if records and records[-1].version == 3:
            published.store.error = Unavailable("away")  # 0, the switch back to 3, and 2 before it are at hand
        await asyncio.to_thread(engine.pause)  # so that the answer does not end while a slow machine stages
        record = await asyncio.to_thread(engine.update, LIVE, version)
        await asyncio.to_thread(engine.resume)
        assert record is not None
        records.append(record)
    chunk = await anext(aiter(active.chunks()))
    assert [span.version for span in chunk.spans] == [0, 1, 2, 3, 0, 3, 2, 0]
    assert [bool(record.payload_bytes) for record in records] == [True, True, True, False, False, False, False]
    assert records[2].density < 0.05, "by places"
    assert [record.num_changed for record in records[3:]] == [0, 0, records[2].num_changed, 0], "the base is untouched"
    # The first token after a boundary sees only keys and values of the version before; one alone may be equal by chance.
    end = chunk.spans[1].start
    expected = logprobs_of(published.merged(0), PROMPT, chunk.token_ids)
    assert chunk.logprobs[:end] == pytest.approx(expected[:end], abs=rounding())
    assert chunk.logprobs[end : end + 5] != pytest.approx(expected[end : end + 5], abs=1e-3)
    await check_serves(engine, published, LIVE, 0)


async def test_an_older_adapter_is_made_from_its_nearest_full_copy(
    open_engine: Callable[..., Engine], published: Adapted
) -> None:
    engine = open_engine()
    for version in (0, 4, 5):
        engine.update(LIVE, version)
    engine.update(LIVE, 2)
    assert published.store.routes[-1] == [None, 1], "not from the base"
    await check_serves(engine, published, LIVE, 2)


async def test_five_arms_share_one_base(open_engine: Callable[..., Engine], published: Adapted) -> None:
    made: list[Any] = []

    def make() -> Any:
        made.append(base_model())
        return made[-1]

    engine = open_engine(make_model=make)
    held = {"live": 4, "candidate": 5, "learning": 3, "canary": 2, "holdout": 0}
    engine.update("live", 0)
    for arm, version in [*held.items()][1:]:
        engine.update(arm, version)
    engine.update("live", 4)
    assert len(made) == 1
    bases = [[weight.data_ptr() for weight in engine.arms[arm].model.parameters()] for arm in held]
    assert all(base == bases[0] for base in bases)
    for arm, version in held.items():
        await check_serves(engine, published, arm, version)
        assert root_of(tensors_of(engine.arms[arm].model)) == published.config.base_root
    adapter = sum(each.data.size for name, each in published.versions[4].items() if name != CONFIG)
    assert engine.swaps[-1].num_changed * 2 <= adapter, "another arm's version was at hand: only what differs"


async def test_an_arm_that_loaded_the_base_for_itself_gives_it_up(
    open_engine: Callable[..., Engine], published: Adapted
) -> None:
    """Before the first adapter nothing says that a run will have any."""
    engine = open_engine()
    for arm in ("live", "holdout", "canary"):
        engine.update(arm, 0)
    places = [weight.data_ptr() for weight in engine.arms["live"].model.parameters()]
    active = engine.arms["holdout"].submit(ask(PROMPT, max_tokens=200))
    await more_tokens(active)
    await asyncio.to_thread(engine.update, "live", 1)
    for arm in ("live", "holdout", "canary"):
        assert [weight.data_ptr() for weight in engine.arms[arm].model.parameters()] == places, "nothing is copied"
    chunk = await anext(aiter(active.chunks()))
    assert chunk.spans == [Span(0, 0)]
    assert chunk.logprobs == pytest.approx(logprobs_of(published.merged(0), PROMPT, chunk.token_ids), abs=rounding())
    published.store.error = Unavailable("away")
    for arm, version in (("live", 1), ("holdout", 0), ("canary", 0)):
        assert engine.update(arm, version) is None
        await check_serves(engine, published, arm, version)
    published.store.error = None
    for version in (2, 0):
        engine.update("holdout", version)
        await check_serves(engine, published, "holdout", version)


@pytest.mark.parametrize("model", [base_model, tiny_model])
async def test_a_restart_at_an_adapter_takes_the_base_from_where_it_is(
    open_engine: Callable[..., Engine], tmp_path: Path, model: Callable[[], Any]
) -> None:
    """`base_model` is the base in float32, of which version 0 is the rounding; `tiny_model` is another."""
    published = Adapted(tmp_path / "weights", base_model, 5)
    if model is base_model:
        published.forget_base()
    engine = open_engine(published.store, make_model=model)
    engine.update(LIVE, 5)
    engine.update(CANDIDATE, 4)
    await check_serves(engine, published, LIVE, 5)
    engine.update("holdout", 0)
    published.store.error = Unavailable("away")
    engine.update(LIVE, 0)
    for arm, version in ((LIVE, 0), (CANDIDATE, 4), ("holdout", 0)):
        await check_serves(engine, published, arm, version)


def test_a_base_that_is_nowhere_is_refused(
    open_engine: Callable[..., Engine], published: Adapted, tmp_path: Path
) -> None:
    other = Adapted(tmp_path, tiny_model)
    other.publish(published.versions[1])
    engine = open_engine(other.store, make_model=lambda: tiny_model(2))
    with pytest.raises(WeightsRefused) as caught:
        engine.update(LIVE, 1)
    assert caught.value.code == "wrong_base"
    assert engine.versions() == {}


@pytest.mark.parametrize(
    ("code", "changes"),
    [
        ("other_adapter", {"rank": 2}),
        ("other_adapter", {"alpha": 5.0}),
        ("wrong_base", {"base_root": "0" * 64}),
        ("shared_base", None),
    ],
)
async def test_what_an_arm_cannot_have_is_refused_and_the_old_version_serves_on(
    open_engine: Callable[..., Engine], tmp_path: Path, code: str, changes: dict[str, Any] | None
) -> None:
    published = Adapted(tmp_path, base_model, 1)
    if changes is None:
        wanted: Tensors = tensors_of(tiny_model(2))
    else:
        wanted = published.adapter(2, msgspec.structs.replace(published.config, **changes))
    published.publish(wanted)
    engine = open_engine(published.store)
    engine.update(LIVE, 1)
    with pytest.raises(WeightsRefused) as caught:
        engine.update(LIVE, 2)
    assert caught.value.code == code
    await check_serves(engine, published, LIVE, 1)


async def test_a_target_that_no_layer_has_is_refused(open_engine: Callable[..., Engine], tmp_path: Path) -> None:
    published = Adapted(tmp_path, base_model)
    config = msgspec.structs.replace(published.config, targets=("fused_proj",))
    published.publish({**published.adapter(1), CONFIG: config.tensor()})
    engine = open_engine(published.store)
    engine.update(LIVE, 0)
    with pytest.raises(WeightsRefused) as caught:
        engine.update(LIVE, 1)
    assert caught.value.code == "unknown_target"
    assert "fused_proj" in caught.value.message
    await check_serves(engine, published, LIVE, 0)


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("DefaultCPUAllocator: can't allocate memory")])
async def test_memory_that_runs_out_is_named_and_the_old_version_serves_on(
    open_engine: Callable[..., Engine], published: Adapted, error: Exception
) -> None:
    engine = open_engine()
    engine.update(LIVE, 1)
    published.store.error = error
    with pytest.raises(WeightsRefused) as caught:
        engine.update(LIVE, 2)
    assert caught.value.code == "out_of_memory"
    await check_serves(engine, published, LIVE, 1)


async def test_a_copy_on_disk_serves_an_adapter_after_a_restart(
    open_engine: Callable[..., Engine], tmp_path: Path
) -> None:
    published = Adapted(tmp_path / "weights", base_model, 2)
    folder = tmp_path / "replica"
    folder.mkdir()
    copy = LocalCopy(folder, published.store, POLICY, RUN)
    engine = open_engine(copy, on_swap=lambda record: copy.keep(record.version))
    for version in (0, 1, 2):
        engine.update(LIVE, version)
    copy.close()
    shutil.rmtree(tmp_path / "weights" / POLICY)
    again = LocalCopy(folder, published.store, POLICY, RUN)
    engine = open_engine(again)
    engine.update(LIVE, 2)
    await check_serves(engine, published, LIVE, 2)
    with pytest.raises(NotFound):
        engine.update(LIVE, 1)
    again.close()
