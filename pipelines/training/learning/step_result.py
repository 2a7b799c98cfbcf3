"""What a step did: figures and decisions, no tensors. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


@dataclass(frozen=True)
class StepResult:
    """What a step did. `skipped` is the guard's reason, or empty if the step was taken.

    `samples` has one row of figures per experience, for a bundle.
    """

    skipped: str
    metrics: dict[str, float | None]
    samples: list[dict[str, Any]]
    pulls: Mapping[str, float] = field(default_factory=dict)
    """Sample key to the factor from one unit of its reward, at full weight, to the pull on each of its tokens."""
    zeros: Mapping[str, float] = field(default_factory=dict)
    """Sample key to the reward with advantage 0: the baseline plus the mean that whitening subtracted."""
    left: Sequence[str] = ()
    """Keys of samples and corrections that left the batch before the step: today's policy has left them. See `divergence`."""
    log_ratios: Mapping[str, float] = field(default_factory=dict)
    """Key to the mean log(today's / logged probability) per token, for those that left too."""
    signs: Mapping[str, float] = field(default_factory=dict)
    """What the guard compares with its history: see `guard.signs_of`, and the gradient's norm by `guard.Norms`."""
    step_scale: float = 1.0
    """What the learning rate of this step is multiplied by."""
