"""The losses of text: weighted cross-entropy, DPO and KTO, each a mean over its own count. Pure, without torch.

    target    sum of weight * -logp(chosen) / sum of token weights           SFT: a mean over tokens
    pair      mean of weight * -log sigmoid(BETA * (s(chosen) - s(rejected)))   DPO, arXiv 2305.18290
    thumb     mean of weight * (1 - sigmoid(+-BETA * (s - baseline)))           KTO, arXiv 2402.01306; - for a bad one

s = log-prob of the sequence today - under the anchor, summed over its tokens: no length enters, as by trl's defaults, which these equal.
A sample's own weight is in its value and not in the count: text that is trusted half teaches half, even if it is alone.

Every loss depends on a row through its log-prob alone. So its gradient is one factor per row, the same before and after the rows are split into
micro-batches.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from pipelines.training.text.samples import Kind, TextBatch, TextSample

BETA = 0.1
"""How far pairs and thumbs may move the policy from the anchor: trl's default of both."""


class TextLosses(NamedTuple):
    """Of all text of a step."""

    values: dict[Kind, float]
    """The loss of each kind that is there."""
    factors: list[float]
    """d loss / d log-prob of each row, in the order of `rows_of`."""
    margins: dict[str, float]
    """Mean BETA * (s(chosen) - s(rejected)) of the pairs; mean BETA * s of good and of bad thumbs."""


def needs_anchor(samples: Sequence[TextSample]) -> bool:
    """True if a loss compares today's policy with the anchor."""
    return any(item.kind != "target" for item in samples)


def text_losses(
    batch: TextBatch, current: Sequence[float], anchor: Sequence[float], baseline: float = 0.0
) -> TextLosses:
    """The losses and their slopes.

    Args:
        batch: all text of the step, or a part of it.
        current: today's log-prob of each row of `rows_of`, nats: the sum over its tokens, each times its weight.
        anchor: the same under the anchor; zeros if `needs_anchor` says no.
        baseline: of the thumbs, see `baseline_of`.
    """
    values, factors = {item.kind: 0.0 for item in batch.samples}, [0.0] * len(current)
    margins: dict[str, list[float]] = {}
    after = 0
    for item in batch.samples:
        at, after = after, after + (1 if item.rejected_ids is None else 2)
        share = item.weight / batch.counts[item.kind]
        if item.kind == "target":
            values["target"] -= share * current[at]
            factors[at] = -share
            continue
        moved = BETA * (current[at] - anchor[at])
        if item.kind == "pair":
            margin = moved - BETA * (current[at + 1] - anchor[at + 1])
            values["pair"] += share * _softplus(-margin)
            factors[at] = -share * BETA * _sigmoid(-margin)
            factors[at + 1] = -factors[at]
            margins.setdefault("pair", []).append(margin)
            continue
        sign = 1.0 if item.is_good else -1.0
        likely = _sigmoid(sign * (moved - BETA * baseline))
        values["thumb"] += share * (1.0 - likely)
        factors[at] = -sign * share * BETA * likely * (1.0 - likely)
        margins.setdefault("good" if item.is_good else "bad", []).append(moved)
    return TextLosses(values, factors, {name: sum(each) / len(each) for name, each in margins.items()})


def baseline_of(current: Sequence[float], anchor: Sequence[float]) -> float:
    """How far the policy has moved on answers to other prompts, nats, at least 0: what a thumb's answer is compared with.

    `current`, `anchor`: log-probs of the rows of `mismatched_rows`. It counts as a constant. 0 without rows.
    """
    moved = [now - then for now, then in zip(current, anchor, strict=True)]
    return max(0.0, sum(moved) / len(moved)) if moved else 0.0


def _sigmoid(value: float) -> float:
    return 1.0 / (1.0 + math.exp(-value)) if value >= 0 else math.exp(value) / (1.0 + math.exp(value))


def _softplus(value: float) -> float:
    """log(1 + e^value)."""
    return max(value, 0.0) + math.log1p(math.exp(-abs(value)))
