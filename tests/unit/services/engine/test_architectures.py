"""Each architecture, on the runner that it needs: log-probs equal a plain forward without a cache, in mixed batches."""

from __future__ import annotations

import pytest

from contracts.errors import InvalidSettings
from policy.weights import copy_tensors, tensors_of
from services.engine.runners import RunnerKind, runner_for
from services.engine.settings import EngineSettings
from tests.each_case import each_case
from tests.models import KINDS
from tests.worlds.engines.hybrid_models import HYBRIDS, any_model
from tests.worlds.engines.memory_store import StoreInMemory
from tests.worlds.engines.policies import TOKENIZER, check_mixed_batch
from tests.worlds.engines.tiny import make_engine

STEPPED = ("lfm2", "mamba2", *HYBRIDS)


@each_case("kind", [*KINDS, *HYBRIDS])
def test_a_model_gets_the_runner_that_can_hold_its_cache(kind: str) -> None:
    expected: RunnerKind = "stepped" if kind in STEPPED else "paged"
    assert runner_for(any_model(kind)) == expected


def test_a_model_without_a_known_cache_is_refused_by_name() -> None:
    model = any_model("mamba")
    model.forward = lambda input_ids: input_ids
    with pytest.raises(InvalidSettings, match="MambaForCausalLM cannot be served"):
        runner_for(model)


@pytest.mark.parametrize("kind", [*KINDS, *(pytest.param(kind, marks=pytest.mark.slow) for kind in HYBRIDS)])
async def test_log_probs_equal_a_plain_forward_in_a_mixed_batch(kind: str) -> None:
    model = any_model(kind)
    store = StoreInMemory()
    store.add(1, tensors_of(model), parent=None)
    copy_tensors(model, store.weights[1])  # what is served is rounded to bfloat16
    settings = EngineSettings(max_batch_tokens=128, cache_tokens=512, page_size=16)
    engine = make_engine(store, make_model=lambda: any_model(kind), settings=settings, tokenizer=TOKENIZER)
    engine.update("live", 1)
    await check_mixed_batch(engine, model)
    engine.close()
