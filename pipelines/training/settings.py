"""How the trainer learns: the section [training] of a home's settings."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Literal, Self

from pydantic import Field

from contracts.errors import InvalidSettings
from runtime.lease import LIFETIME_SECONDS
from runtime.settings import Section

if TYPE_CHECKING:
    from contracts.tasks import Task


class TrainingSettings(Section):
    """Defaults suit the demo: a policy under a million parameters on two shared cores."""

    learning_rate: float = Field(default=1e-4, ge=0)
    """AdamW's, constant. The smaller it is, the fewer bits of the published weights change."""
    weight_decay: float = Field(default=0.0, ge=0)
    """AdamW's. The pull towards the anchor is the regulariser here."""
    max_gradient_norm: float = Field(default=1.0, gt=0)
    """Gradients are scaled down to this norm; the guard lets anything below it pass."""
    kl_coefficient: float = Field(default=0.02, ge=0)
    """Weight of the KL to the base policy; 0 saves a forward pass."""
    ratio_bound: float = Field(default=3.0, gt=0)
    """Importance weights are truncated above it, for either sign of the advantage."""
    baseline: Literal["beta", "moving_average"] = "beta"
    """What tracks the expected reward of a baseline key. `beta` wants rewards within the range below."""
    reward_low: float | None = None
    """Lowest reward a task gives; by default the lowest of the task files."""
    reward_high: float | None = None
    """Highest reward a task gives; by default the highest of the task files."""
    whiten: bool = True
    """Advantages of a batch are brought to mean 0 and deviation 1."""
    normalise: Literal["total", "components"] = "total"
    """What is whitened: the reward, or each component of it before they are summed by their weights."""
    batch_size: int = Field(default=64, ge=1)
    """Samples of one optimizer step."""
    min_batch_size: int = Field(default=1, ge=1)
    """Fewer than `batch_size` are taken only from this number on, once the oldest has waited long enough."""
    max_wait_seconds: float = Field(default=15.0, ge=0)
    """How long the oldest sample waits for a full batch. This also drains what is left when users stop."""
    max_tokens: int = Field(default=8192, ge=1)
    """Padded tokens of one forward pass."""
    max_version_lag: int = Field(default=8, ge=0)
    """Versions between a sample's oldest token and the current weights; beyond it the sample is `stale`."""
    max_age_seconds: float = Field(default=7 * 24 * 3600.0, gt=0)
    """Seconds since generation, reward delay included; beyond it the sample is `stale`."""
    staleness_half_life: float = Field(default=8.0, gt=0)
    """Versions of lag that halve a sample's weight."""
    age_half_life_seconds: float = Field(default=24 * 3600.0, gt=0)
    """Seconds since generation, reward delay included, that halve a sample's weight too."""
    publish_samples: int = Field(default=256, ge=1)
    """A version is cut after this many trained samples ..."""
    publish_seconds: float = Field(default=20.0, ge=0)
    """... or after this long with at least one step, whichever is first."""
    checkpoint_seconds: float = Field(default=5.0, ge=0)
    """Between versions, decisions become durable (and known to the ledger) at least this often."""
    checkpoint_keep: int = Field(default=8, ge=1)
    """Checkpoints kept, and as many of versions that can be rolled back to; those in use stay anyway."""
    keep_anchors: int = Field(default=2, ge=1)
    """Full copies that stay in the weight store for newcomers; what is older goes, unless an arm or a replica needs it."""
    guard_spread: float = Field(default=15.0, gt=0)
    """A gradient norm this many median deviations above the median skips the step."""
    mismatch_samples: int = Field(default=8, ge=0)
    """Samples of a batch that are scored again under the published bits that made them."""
    peak_flops: float | None = Field(default=None, gt=0)
    """Of the device at the precision used; without it utilisation is not reported."""
    num_threads: int = Field(default=1, ge=1)
    """CPU threads of the trainer."""
    lease_seconds: float = Field(default=LIFETIME_SECONDS, ge=1)
    """A trainer that says nothing for so long is gone, and another may take its place. One that died on this machine is
    noticed at once."""

    @property
    def reward_range(self) -> tuple[float, float]:
        """Lowest and highest reward; 0 and 1 where neither settings nor tasks say."""
        return (
            0.0 if self.reward_low is None else self.reward_low,
            1.0 if self.reward_high is None else self.reward_high,
        )

    def for_tasks(self, tasks: Iterable[Task]) -> Self:
        """With the range of these tasks' rewards where the settings leave it open.

        Raises:
            InvalidSettings: the range is empty.
        """
        rules = [task.reward for task in tasks]
        low = min((rule.low for rule in rules), default=0.0) if self.reward_low is None else self.reward_low
        high = max((rule.high for rule in rules), default=1.0) if self.reward_high is None else self.reward_high
        if high <= low:
            raise InvalidSettings(
                f"[training] reward_high: rewards lie between {low:g} and {high:g}, which is no range; leave reward_low "
                "and reward_high out to take them from the task files"
            )
        return self.model_copy(update={"reward_low": low, "reward_high": high})
