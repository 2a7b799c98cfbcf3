"""Whether samples carry the experts that the published bits choose: the engine records its choices, the trainer requires and replays them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from contracts.packing import experts_of
from contracts.records import Experience, decode, unpack_ids
from contracts.segments import whole
from contracts.topics import EXPERIENCES
from policy.load import load_model
from policy.routing import ExpertRecorder, routing_of
from policy.weights import copy_tensors
from runtime.log.answers import with_answers
from tests.fakes import everything
from tests.worlds.policies.loop import Loop
from weights.stores.opening import open_weight_store

NUM_COMPARED = 8


def check_experts(loop: Loop, base: Path) -> None:
    """The records of the first scored samples are what the published bits choose."""
    log, database = loop.home.settings.event_log(), loop.home.settings.database()
    records = with_answers(log, database, everything(log, EXPERIENCES))
    found = [whole(decode(Experience, record.value), record.answer) for record in records]
    database.close()
    log.close()
    scored = [item for item in found if item.reward is not None]
    assert len(scored) >= NUM_COMPARED
    for item in scored[:NUM_COMPARED]:
        _check_record(loop, base, item)


def _check_record(loop: Loop, base: Path, item: Experience) -> None:
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
