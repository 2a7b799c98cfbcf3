"""How the trainer learns: the section [training] of a home's settings."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Literal, Self

from pydantic import Field, model_validator

from contracts.errors import InvalidSettings
from runtime.lease import LIFETIME_SECONDS
from runtime.settings import Section

if TYPE_CHECKING:
    from contracts.tasks import Task


CORRECTION_SECONDS = 7 * 24 * 3600.0
"""How long after the longest window corrections are still learned, if the settings name no horizon."""
REMOVED = {
    "max_version_lag": (
        8,
        "lag alone makes no sample stale any more: `old_versions` bounds how many samples with a large lag a batch holds",
    ),
    "max_age_seconds": (
        604800.0,
        "age alone makes no sample stale any more: `horizon_seconds` is how long samples are known",
    ),
    "staleness_half_life": (8.0, "lag does not lower a weight any more: importance weights do, see `ratio_bound`"),
    "age_half_life_seconds": (
        86400.0,
        "age does not lower a weight any more: importance weights do, see `ratio_bound`",
    ),
}
"""Settings of earlier versions: the default that `millrace init` wrote into every home, and what replaces them."""


class TrainingSettings(Section):
    """Defaults suit the demo: a policy under a million parameters on two shared cores."""

    learning_rate: float = Field(default=1e-4, ge=0)
    """AdamW's, constant. With a smaller rate, fewer bits of the published weights change."""
    weight_decay: float = Field(default=0.0, ge=0)
    """AdamW's. The pull towards the anchor is the regulariser here."""
    max_gradient_norm: float = Field(default=1.0, gt=0)
    """Gradients are scaled down to this norm; the guard lets anything below it pass."""
    kl_coefficient: float = Field(default=0.02, ge=0)
    """Weight of the KL to the base policy; 0 saves a forward pass."""
    ratio_bound: float = Field(default=2.0, gt=0)
    """Importance weights are truncated at this value, for either sign of the advantage."""
    divergence_bound: float = Field(default=2.0, gt=1)
    """A sample leaves its batch as `stale(divergence)` if today's policy gives its tokens more than this times the logged probability, or
    less than one over this, in the geometric mean. `inf`: never."""
    step_bound: float = Field(default=1.5e-5, gt=0)
    """A step may move the policy by this many nats per token for each of its samples; a longer one is shortened. It makes a learning rate
    harmless that is much too large. `inf`: steps are not measured, which saves two forward passes over 16 samples."""
    loss: str = "vcpo"
    """The policy gradient's loss: a name in `OBJECTIVES` of pipelines/training/learning/objectives/__init__.py."""
    baseline: Literal["beta", "moving_average"] = "beta"
    """The tracker of the expected reward per baseline key. `beta` needs rewards within the range below."""
    reward_low: float | None = None
    """Lowest reward a task gives; by default the lowest of the task files."""
    reward_high: float | None = None
    """Highest reward a task gives; by default the highest of the task files."""
    whiten: bool = True
    """Scale the advantages of a batch to mean 0 and deviation 1."""
    normalise: Literal["total", "components"] = "total"
    """Whiten the total reward, or each of its components before they are summed by weight."""
    batch_size: int = Field(default=64, ge=1)
    """Samples of one optimizer step."""
    min_batch_size: int = Field(default=1, ge=1)
    """The fewest samples of a smaller batch, taken once the oldest sample has waited long enough."""
    max_wait_seconds: float = Field(default=15.0, ge=0)
    """How long the oldest sample waits for a full batch. Then a smaller batch is taken, so none waits forever."""
    max_tokens: int = Field(default=8192, ge=1)
    """Tokens of one forward pass; padding counts, and a shared prompt counts once."""
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    """What forward and backward passes compute with: by default bfloat16 on a GPU, float32 on a CPU. Weights, moments, log-probs and
    loss are float32 in any case."""
    recompute: Literal["auto", "always", "never"] = "auto"
    """Compute the layers again in the backward pass, to hold fewer activations: by default for a row longer than the token budget, and
    for all once a row did not fit into memory."""
    old_versions: int = Field(default=8, ge=0)
    """Versions between a sample's oldest token and the current weights, above which it is old. No sample is refused for that; at most a
    quarter of a full batch is old."""
    horizon_seconds: float | None = Field(default=None, gt=0)
    """How long the trainer knows which samples it decided, since their generation. By default the longest window of the task files plus
    seven days for corrections. An older sample is `stale`, never new."""
    publish_samples: int = Field(default=256, ge=1)
    """A version is cut after this many trained samples ..."""
    publish_seconds: float = Field(default=20.0, ge=0)
    """... or after this long with at least one step, whichever is first."""
    checkpoint_seconds: float = Field(default=5.0, ge=0)
    """Between versions, decisions become durable (and known to the ledger) at least this often. Weights are saved with every version, and
    when a restart would need more than 5 s to take the journal's steps again; less often, if that would cost more than 2% of the trainer's time."""
    checkpoint_keep: int = Field(default=8, ge=1)
    """Checkpoints kept, and the same number of versions to roll back to; versions in use always stay."""
    keep_anchors: int = Field(default=2, ge=1)
    """Full copies kept in the weight store for new replicas. Older ones go, unless an arm or a replica needs them."""
    guard_spread: float = Field(default=15.0, gt=0)
    """The guard skips a step whose gradient norm is this many median deviations above the median."""
    guard_hold_seconds: float = Field(default=7200.0, ge=0)
    """How long the samples of a task whose rewards jumped are quarantined. If they stay at the new level, they are believed then. 0: at
    once, so that nothing is quarantined for it."""
    mismatch_samples: int = Field(default=8, ge=0)
    """Samples of each version that are scored again under the published bits that generated them, to measure the mismatch."""
    replay_experts: Literal["recorded", "off", "required"] = "recorded"
    """Of a mixture of experts: compute through the experts that the engine recorded, if it did; never; or always, so that a sample
    without recorded experts is `off_support`."""
    peak_flops: float | None = Field(default=None, gt=0)
    """FLOP/s of the device at the precision used; without it, utilisation is not reported."""
    num_threads: int = Field(default=1, ge=1)
    """CPU threads of the trainer."""
    lease_seconds: float = Field(default=LIFETIME_SECONDS, ge=1)
    """A trainer that does not renew its lease for this long counts as dead, and another may replace it. A dead trainer on the
    same machine is noticed at once."""

    @model_validator(mode="before")
    @classmethod
    def _without_removed(cls, values: dict[str, Any]) -> dict[str, Any]:
        """A removed setting is ignored at its old default, which nobody chose, and refused otherwise."""
        for name, (default, replaced_by) in REMOVED.items():
            if values.get(name, default) != default:
                raise ValueError(f"{name} was removed: {replaced_by}; remove the line")
        return {name: value for name, value in values.items() if name not in REMOVED}

    @property
    def reward_range(self) -> tuple[float, float]:
        """Lowest and highest reward; 0 and 1 if neither settings nor tasks define them."""
        return (
            0.0 if self.reward_low is None else self.reward_low,
            1.0 if self.reward_high is None else self.reward_high,
        )

    def for_tasks(self, tasks: Iterable[Task]) -> Self:
        """These settings, with the reward range and the horizon of the tasks filled in where they are not set.

        Raises:
            InvalidSettings: the range is empty, or a task's window is longer than the horizon.
        """
        tasks = list(tasks)
        rules = [task.reward for task in tasks]
        low = min((rule.low for rule in rules), default=0.0) if self.reward_low is None else self.reward_low
        high = max((rule.high for rule in rules), default=1.0) if self.reward_high is None else self.reward_high
        if high <= low:
            raise InvalidSettings(
                f"[training] reward_high: rewards lie between {low:g} and {high:g}, which is an empty range; remove "
                "reward_low and reward_high to take them from the task files"
            )
        windows = [window or 0.0 for task in tasks for window in (task.window_seconds, *_signal_windows(task))]
        longest = max(windows, default=0.0)
        if self.horizon_seconds is not None and self.horizon_seconds < longest:
            raise InvalidSettings(
                f"[training] horizon_seconds: {self.horizon_seconds:g} is shorter than the longest window of a task, {longest:g}: "
                "rewards that come within their window would be dropped; raise it, or remove it to take the windows' length"
            )
        horizon = self.horizon_seconds or longest + CORRECTION_SECONDS
        return self.model_copy(update={"reward_low": low, "reward_high": high, "horizon_seconds": horizon})


def _signal_windows(task: Task) -> list[float | None]:
    return [signal.window_seconds for signal in task.signals.values()]
