"""When not to take a step. Pure decisions, and the bundle that explains a skipped one.

A step is skipped, never repaired: its samples are quarantined by name and the weights stay as they were.
"""

from __future__ import annotations

import json
import math
import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from weights.files import make_folder_durably, write_durably

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

SPIKE = "gradient_spike"
HISTORY = 64
WARM_UP = 16
# Below this share of the median the spread of a calm stretch would make ordinary batches look like spikes.
MIN_SPREAD = 0.2


@dataclass(frozen=True)
class Verdict:
    """Whether the step may be taken. `reason` is empty or the outcome's reason."""

    reason: str = ""

    @property
    def accepted(self) -> bool:
        """True if the step may be taken."""
        return not self.reason


class Norms(NamedTuple):
    """A norm seen two ways: as that of a sum of independent tokens, and as that of a sum in one direction.

    Expected: what a batch's gradient norm is proportional to, if nothing is wrong with it. The gradient is a sum over tokens
    of pull x d log p / d weights, where `pull` is all that multiplies a token's log-probability: advantage, sample weight,
    importance weight, leash, one over the batch's tokens. By the chain rule each term is pull x (onehot - softmax) /
    temperature x (Jacobian of the logits), and the middle factor is (1 - p) / temperature long, within sqrt(2). Scores of
    tokens have mean 0 given what stands before, so as noise their squares add up (cf. the gradient noise scale,
    arXiv 1812.06162); where all samples teach the same, their lengths do:

        noise     = sqrt(sum over tokens of (pull x (1 - p) / temperature)^2)
        direction =      sum over tokens of |pull| x (1 - p) / temperature

    Comparable: a batch's norm divided by both. What is left is the Jacobian's size, whatever the number of samples and
    tokens, whitened or not, and however sure the policy is.
    """

    noise: float
    direction: float

    def comparable(self, gradient_norm: float) -> Norms | None:
        """A norm in units of what was expected; None if nothing was expected and nothing came."""
        if self.noise > 0:
            return Norms(gradient_norm / self.noise, gradient_norm / self.direction)
        return None if gradient_norm <= 0 else Norms(math.inf, math.inf)


def judge(history: Sequence[Norms], *, loss: float, gradient_norm: float, expected: Norms, spread: float) -> Verdict:
    """Decide on one step: it is a spike if it is one both ways, however tokens add up.

    Args:
        history: comparable norms of the last steps, skipped ones too: if the norm moved for good, so does the median.
        loss: of the whole batch, not filtered.
        gradient_norm: before clipping.
        expected: of the batch.
        spread: how many median absolute deviations above the median still pass.
    """
    if not math.isfinite(loss):
        return Verdict("non_finite_loss")
    if not (math.isfinite(gradient_norm) and all(map(math.isfinite, expected))):
        return Verdict("non_finite_gradient")
    comparable = expected.comparable(gradient_norm)
    if len(history) < WARM_UP or comparable is None:
        return Verdict()
    passes = any(
        norm <= _limit(past, spread) for norm, past in zip(comparable, zip(*history, strict=True), strict=True)
    )
    return Verdict("" if passes else SPIKE)


def _limit(history: Sequence[float], spread: float) -> float:
    median = statistics.median(history)
    deviation = statistics.median(abs(norm - median) for norm in history)
    return median + spread * max(deviation, MIN_SPREAD * median)


def remember(history: Sequence[Norms], gradient_norm: float, expected: Norms) -> list[Norms]:
    """The history after a step, finite norms only."""
    comparable = expected.comparable(gradient_norm)
    if comparable is None or not all(map(math.isfinite, comparable)):
        return list(history)
    return [*history, comparable][-HISTORY:]


def write_bundle(folder: Path, name: str, bundle: dict[str, Any]) -> Path:
    """Leave `folder`/`name`.json for whoever asks why: keys and figures, no content. Durable when this returns."""
    make_folder_durably(folder)
    path = folder / f"{name}.json"
    # NaN is what a bundle is often about; JSON has no word for it, so non-finite numbers become text.
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
