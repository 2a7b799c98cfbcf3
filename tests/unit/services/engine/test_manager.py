"""A filter is skipped only in steps in which no request needs it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import TopKLogitsWarper
from transformers.generation.continuous_batching.cb_logits_processors import ContinuousBatchingTopKLogitsWarper

from services.engine.manager import IdleFilter

VOCABULARY = 8


def request(**values: Any) -> Any:
    return SimpleNamespace(state=SimpleNamespace(logit_processor_kwargs=values))


@pytest.mark.parametrize("top_k", [(8, 8), (1, 8), (8, 2), (8, None)])
def test_a_step_is_filtered_as_without_the_shortcut(top_k: tuple[int | None, ...]) -> None:
    wrapped = ContinuousBatchingTopKLogitsWarper(TopKLogitsWarper(top_k=3))
    idle = IdleFilter(wrapped, {"temperature": 1.0, "top_k": VOCABULARY, "top_p": 1.0})
    requests = [request() if value is None else request(top_k=value) for value in top_k]
    scores = torch.randn(2, VOCABULARY, generator=torch.Generator().manual_seed(0))
    arguments = idle.prepare_tensor_args(requests)
    found = idle(scores, arguments)
    assert torch.equal(found, wrapped(scores, arguments))
    assert (found is scores) == (top_k == (VOCABULARY, VOCABULARY))


def test_a_limited_request_after_free_ones_is_filtered() -> None:
    wrapped = ContinuousBatchingTopKLogitsWarper(TopKLogitsWarper(top_k=3))
    idle = IdleFilter(wrapped, {"top_k": VOCABULARY})
    scores = torch.arange(VOCABULARY, dtype=torch.float32)[None]
    assert idle(scores, idle.prepare_tensor_args([request(top_k=VOCABULARY)])) is scores
    found = idle(scores, idle.prepare_tensor_args([request(top_k=1)]))
    assert int(found.isfinite().sum()) == 1
