"""A mixture of experts through every process: the engine records its choices, the trainer requires and replays them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from contracts.experts import experts_of
from contracts.records import Experience, decode, unpack_ids
from contracts.segments import whole
from contracts.topics import EXPERIENCES
from policy.load import load_model
from policy.routing import ExpertRecorder, routing_of
from policy.weights import copy_tensors
from runtime.log.answers import with_answers
from tests.end_to_end.models.loop import Loop, run_loop
from tests.fakes import everything
from tests.models import build_model
from weights.stores.opening import open_weight_store

pytestmark = pytest.mark.slow

NUM_COMPARED = 8


def test_versions_are_trained_on_samples_with_recorded_experts_alone(tmp_path: Path) -> None:
    """A sample without a record is `off_support`, so a version can only come from samples that carried theirs."""
    base = build_model("qwen3_moe", tmp_path / "base")
    with run_loop(tmp_path, base, replay_experts="required") as loop:
        loop.work_until(lambda: loop.live >= 2, "version 2")
        log, database = loop.home.settings.event_log(), loop.home.settings.database()
        records = with_answers(log, database, everything(log, EXPERIENCES))
        found = [whole(decode(Experience, record.value), record.answer) for record in records]
        scored = [item for item in found if item.reward is not None]
        assert len(scored) >= NUM_COMPARED
        for item in scored[:NUM_COMPARED]:
            check_record(loop, base, item)


def check_record(loop: Loop, base: Path, item: Experience) -> None:
    """The record is what the published bits choose in one plain forward."""
    [segment] = item.segments
    assert segment.expert_shape is not None
    model = load_model(str(base), device="cpu", dtype=torch.float32)
    routing = routing_of(model)
    recorded = routing.choices(experts_of(segment.experts, segment.expert_shape))
    assert recorded is not None
    versions = {span.version for span in segment.spans}
    if len(versions) > 1:
        return
    copy_tensors(model, open_weight_store(loop.home.settings).load(item.policy, versions.pop()))
    recorder = ExpertRecorder(model)
    model(torch.tensor([unpack_ids(segment.token_ids)[:-1]]))
    chosen = recorder.take()
    assert chosen is not None
    # Both are float32, so only a near tie could differ: one token in hundreds.
    assert (np.sort(recorded) == np.sort(chosen.numpy())).mean() > 0.99
