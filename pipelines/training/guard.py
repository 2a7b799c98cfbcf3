"""When to skip a step. Pure decisions, and the bundle that explains a skipped step.

A bad step is skipped, never repaired: its samples are quarantined by name, and the weights do not change.
"""

from __future__ import annotations

import json
import math
import statistics
from typing import TYPE_CHECKING, Any, NamedTuple

from weights.files import make_folder_durably, write_durably

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

SPIKE = "gradient_spike"
HISTORY = 64
WARM_UP = 16
# As a share of the median. With less spread, after a calm stretch ordinary batches would look like spikes.
MIN_SPREAD = 0.2


class Norms(NamedTuple):
    """A gradient norm under two assumptions: tokens pull independently (`noise`), or all in one direction (`direction`).

    Expected norm: a healthy batch's gradient norm is proportional to it. The gradient is a sum over tokens of
    pull x d log p / d weights, where `pull` is everything that multiplies a token's log-probability: advantage, sample weight,
    importance weight, leash, one over the batch's tokens. By the chain rule each term is pull x (onehot - softmax) /
    temperature x (Jacobian of the logits), and the middle factor has length (1 - p) / temperature, within sqrt(2). Scores of
    tokens have mean 0 given the tokens before them, so as noise their squares add up (cf. the gradient noise scale,
    arXiv 1812.06162); if all samples teach the same, their lengths add up:

        noise     = sqrt(sum over tokens of (pull x (1 - p) / temperature)^2)
        direction =      sum over tokens of |pull| x (1 - p) / temperature

    Comparable norm: a batch's norm divided by both. Only the size of the Jacobian is left: it does not depend on the number
    of samples or tokens, on whitening, or on how sure the policy is.
    """

    noise: float
    direction: float

    def comparable(self, gradient_norm: float) -> Norms | None:
        """A norm in units of the expected norm; None if both are 0."""
        if self.noise > 0:
            return Norms(gradient_norm / self.noise, gradient_norm / self.direction)
        return None if gradient_norm <= 0 else Norms(math.inf, math.inf)


def why_skip(history: Sequence[Norms], *, loss: float, gradient_norm: float, expected: Norms, spread: float) -> str:
    """The reason to skip a step, or empty. A spike must be a spike under both assumptions of `Norms`.

    Args:
        history: comparable norms of the last steps, skipped ones included: if the norm moves for good, so does the median.
        loss: of the whole batch, unfiltered.
        gradient_norm: before clipping.
        expected: the batch's expected norm.
        spread: a norm may lie this many median absolute deviations above the median.
    """
    if not math.isfinite(loss):
        return "non_finite_loss"
    if not (math.isfinite(gradient_norm) and all(map(math.isfinite, expected))):
        return "non_finite_gradient"
    comparable = expected.comparable(gradient_norm)
    if len(history) < WARM_UP or comparable is None:
        return ""
    passes = any(
        norm <= _limit(past, spread) for norm, past in zip(comparable, zip(*history, strict=True), strict=True)
    )
    return "" if passes else SPIKE


def _limit(history: Sequence[float], spread: float) -> float:
    median = statistics.median(history)
    deviation = statistics.median(abs(norm - median) for norm in history)
    return median + spread * max(deviation, MIN_SPREAD * median)


def remember(history: Sequence[Norms], gradient_norm: float, expected: Norms) -> list[Norms]:
    """The history after a step. It holds finite norms only."""
    comparable = expected.comparable(gradient_norm)
    if comparable is None or not all(map(math.isfinite, comparable)):
        return list(history)
    return [*history, comparable][-HISTORY:]


def write_bundle(folder: Path, name: str, bundle: dict[str, Any]) -> Path:
    """Write `folder`/`name`.json for whoever investigates: keys and figures, no content. Durable when this returns."""
    make_folder_durably(folder)
    path = folder / f"{name}.json"
    # JSON has no NaN, and bundles are often about NaN: non-finite numbers become text.
    write_durably(path, [json.dumps(_finite(bundle), indent=1, allow_nan=False).encode()])
    return path


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value
