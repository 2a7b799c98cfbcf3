from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from transformers import DynamicCache

from benchmarks.swap.world import way
from contracts.sampling import Span
from tests.worlds.engines.labels import LabelledAnswer, VersionLabels, check_labels, pieces
from tests.worlds.engines.tiny import rounding, tiny_model
from tests.worlds.versions import moved
from weights.tensors import Tensor

PROMPT = [5, 9, 33, 12]
MODELS = {number: tiny_model(number) for number in range(3)}


def test_the_way_goes_forth_and_back_by_single_steps() -> None:
    versions = way(12)
    assert versions == [1, 2, 3, 4, 3, 4, 5, 6, 7, 6, 7, 8]
    assert all(abs(after - before) == 1 for before, after in itertools.pairwise([0, *versions]))


def test_a_step_moves_the_share_by_one_unit() -> None:
    words = np.random.default_rng(0).normal(size=20_000).astype(np.float32).view(np.uint32) >> 16
    base = {"w": Tensor("BF16", (words.size,), words.astype(np.uint16).view(np.uint8))}
    before = base["w"].data.view("<u2").astype(np.int64)
    after = moved(base, 0.01, seed=1)["w"].data.view("<u2").astype(np.int64)
    distances = after - before
    assert set(distances) == {-1, 0, 1}
    assert 150 < np.count_nonzero(distances) < 250
    assert np.array_equal(moved(base, 0.01, seed=1)["w"].data.view("<u2"), after)
    assert not np.array_equal(moved(base, 0.01, seed=2)["w"].data.view("<u2"), after)


def test_steps_never_leave_the_numbers() -> None:
    largest = np.full(100, 0x7F7F, dtype=np.uint16)
    base = {"w": Tensor("BF16", (100,), largest.view(np.uint8)), "zero": Tensor("BF16", (50,), np.zeros(100, np.uint8))}
    for tensor in moved(base, 1.0, seed=0).values():
        assert np.all((tensor.data.view("<u2") & 0x7F80) != 0x7F80)


def test_pieces_are_the_spans() -> None:
    assert pieces([Span(0, 4), Span(3, 5)], 10) == [(0, 3, 4), (3, 10, 5)]


def made(versions: list[int]) -> LabelledAnswer:
    """An answer whose tokens were made by these versions, one after the other, on one cache."""
    draw, cache, fed = torch.Generator().manual_seed(0), DynamicCache(), list(PROMPT)
    token_ids: list[int] = []
    logprobs: list[float] = []
    for version in versions:
        with torch.inference_mode():
            logits = MODELS[version](torch.tensor([fed]), past_key_values=cache).logits[0, -1]
        token = int(torch.multinomial(logits.softmax(-1), 1, generator=draw))
        token_ids.append(token)
        logprobs.append(float(logits.log_softmax(-1)[token]))
        fed = [token]
    starts = [place for place, version in enumerate(versions) if not place or version != versions[place - 1]]
    return LabelledAnswer(PROMPT, token_ids, logprobs, [Span(start, versions[start]) for start in starts])


def judged(answer: LabelledAnswer) -> VersionLabels:
    def model_of(version: int) -> Any:
        return MODELS[version]

    return check_labels([answer], model_of, lambda version: [other for other in MODELS if other != version])


def test_true_labels_are_confirmed() -> None:
    labels = judged(made([0] * 5 + [1] * 4 + [2] * 6))
    assert (labels.checked, labels.mislabelled, labels.unexplained) == (15, 0, 0)
    assert labels.told_apart == 15
    assert labels.largest_error < rounding()


@pytest.mark.parametrize("boundary", [4, 6])
def test_a_label_off_by_one_is_found(boundary: int) -> None:
    answer = made([0] * 5 + [1] * 5)
    assert judged(answer._replace(spans=[Span(0, 0), Span(boundary, 1)])).mislabelled >= 1


def test_a_log_prob_of_nobody_is_found() -> None:
    answer = made([1] * 6)
    answer.logprobs[2] -= 0.25
    found = judged(answer)
    assert found.mislabelled + found.unexplained == 1
