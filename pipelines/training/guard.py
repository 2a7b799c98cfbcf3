"""When not to take a step. Pure decisions, and the bundle that explains a skipped one.

A step is skipped, never repaired: its samples are quarantined by name and the weights stay as they were.
"""

from __future__ import annotations

import json
import math
import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from contracts.weights.files import make_folder_durably, write_durably

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

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


def comparable_norm(gradient_norm: float, num_samples: int) -> float:
    """The norm a batch of one would be expected to have: a mean over fewer samples is noisier by the square root."""
    return gradient_norm * math.sqrt(num_samples)


def judge(
    history: Sequence[float], *, loss: float, gradient_norm: float, num_samples: int, spread: float, harmless: float
) -> Verdict:
    """Decide on one step.

    Args:
        history: comparable norms of the last steps, skipped ones too: if the norm moved for good, so does the median.
        loss: of the whole batch, not filtered.
        gradient_norm: before clipping.
        num_samples: in the batch.
        spread: how many median absolute deviations above the median still pass.
        harmless: a norm up to this passes whatever the history: a policy that is nearly always right has had many
            batches with nothing to learn, and its rare mistakes must not look like accidents.
    """
    if not math.isfinite(loss):
        return Verdict("non_finite_loss")
    if not math.isfinite(gradient_norm):
        return Verdict("non_finite_gradient")
    if len(history) < WARM_UP or gradient_norm <= harmless:
        return Verdict()
    median = statistics.median(history)
    deviation = statistics.median(abs(norm - median) for norm in history)
    limit = median + spread * max(deviation, MIN_SPREAD * median)
    return Verdict("gradient_spike" if comparable_norm(gradient_norm, num_samples) > limit else "")


def remember(history: Sequence[float], gradient_norm: float, num_samples: int) -> list[float]:
    """The history after a step, finite norms only."""
    if not math.isfinite(gradient_norm):
        return list(history)
    return [*history, comparable_norm(gradient_norm, num_samples)][-HISTORY:]


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
