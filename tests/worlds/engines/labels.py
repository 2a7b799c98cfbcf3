"""Checks that a token was made by the version in its label: log-probs are computed again under that version. Pure.

When weights change during an answer, it continues with the keys and values of its earlier tokens. So it is computed again in
the same pieces: each piece with the weights of its version, on the cache that the pieces before it filled.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import torch
from transformers import DynamicCache

from contracts.sampling import Span

TOLERANCE = 5e-5
"""Of a log-prob: the engine adds up in another order. Without any swap 5 of 13,124 tokens differed by more, at most 1.4e-4."""


class LabelledAnswer(NamedTuple):
    """One complete answer, with what the engine says of it."""

    prompt: list[int]
    token_ids: list[int]
    logprobs: list[float]
    spans: list[Span]


class VersionLabels(NamedTuple):
    """Counts of tokens."""

    checked: int
    told_apart: int
    """Of them, those to which a neighbouring version gives another log-prob: only these can be found mislabelled."""
    mislabelled: int
    """They fit a neighbouring version, and not their own."""
    unexplained: int
    """They fit neither."""
    largest_error: float
    """Of a log-prob, under the version of the label."""


def check_labels(
    answers: Iterable[LabelledAnswer], model_of: Callable[[int], Any], neighbours: Callable[[int], Sequence[int]]
) -> VersionLabels:
    """Judge every token of some answers.

    Args:
        answers: sampled at temperature 1, with all tokens allowed.
        model_of: a version's model in the engine's dtype; asked again and again.
        neighbours: versions that could have made a token labelled with a version, had the label been wrong.
    """
    counts = VersionLabels(0, 0, 0, 0, 0.0)
    for answer in answers:
        for logged, own, others in _worked_out(answer, model_of, neighbours):
            error = abs(logged - own)
            nearest_other = min((abs(logged - other) for other in others), default=float("inf"))
            is_wrong = error > TOLERANCE
            is_other = is_wrong and nearest_other < error
            counts = VersionLabels(
                counts.checked + 1,
                counts.told_apart + all(abs(own - other) > 2 * TOLERANCE for other in others),
                counts.mislabelled + is_other,
                counts.unexplained + (is_wrong and not is_other),
                max(counts.largest_error, error),
            )
    return counts


def pieces(spans: Sequence[Span], num_tokens: int) -> list[tuple[int, int, int]]:
    """(first token, end, version) of each span."""
    ends = [*(span.start for span in spans[1:]), num_tokens]
    return [(span.start, end, span.version) for span, end in zip(spans, ends, strict=True)]


def _worked_out(
    answer: LabelledAnswer, model_of: Callable[[int], Any], neighbours: Callable[[int], Sequence[int]]
) -> Iterable[tuple[float, float, list[float]]]:
    """Per token its log-prob as logged, under its version, and under each neighbour of that."""
    tokens, num_before, cache = answer.prompt + answer.token_ids, 0, DynamicCache()
    for first, end, version in pieces(answer.spans, len(answer.token_ids)):
        fed = tokens[num_before : len(answer.prompt) + end - 1]
        sampled = answer.token_ids[first:end]
        others = [_logprobs(model_of(other), fed, sampled, copy.deepcopy(cache)) for other in neighbours(version)]
        own = _logprobs(model_of(version), fed, sampled, cache)
        num_before += len(fed)
        yield from zip(answer.logprobs[first:end], own, [list(each) for each in zip(*others, strict=True)], strict=True)


@torch.inference_mode()
def _logprobs(model: Any, fed: list[int], sampled: list[int], cache: DynamicCache) -> list[float]:
    """Log-probs of the last tokens [T] that `fed` predicts; the cache grows by what was fed."""
    logits = model(torch.tensor([fed], device=model.device), past_key_values=cache).logits[0, -len(sampled) :]
    chosen = logits.float().cpu().log_softmax(-1).gather(1, torch.tensor(sampled)[:, None])
    return [float(value) for value in chosen[:, 0]]
