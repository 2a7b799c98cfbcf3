"""How the trainer learns: the section [training] of a home's settings."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Literal, Self

from pydantic import Field, model_validator

from contracts.errors import InvalidSettings
from contracts.memory.training import MAX_TOKENS, MOST_RANK, RANK
from runtime.lease import LIFETIME_SECONDS
from runtime.settings import Section

if TYPE_CHECKING:
    from contracts.tasks import Task


CORRECTION_SECONDS = 7 * 24 * 3600.0
"""How long after the longest window corrections are still learned, if the settings name no horizon."""
_NOT_LOWERED = "neither lag nor age lowers a weight any more: importance weights do, see `ratio_bound`"
REMOVED = {
    "max_version_lag": (
        8,
        "lag alone makes no sample stale any more: `old_versions` bounds how many samples with a large lag a batch holds",
    ),
    "max_age_seconds": (
        604800.0,
        "age alone makes no sample stale any more: `horizon_seconds` is how long samples are known",
    ),
    "staleness_half_life": (8.0, _NOT_LOWERED),
    "age_half_life_seconds": (86400.0, _NOT_LOWERED),
}
"""Settings of earlier versions: the default that `millrace init` wrote into every home, and what replaces them."""


class AdapterSettings(Section):
    """A LoRA adapter instead of the whole model: see docs/training.md."""

    rank: int = Field(default=RANK, ge=1, le=MOST_RANK)
    """Columns of A and B. 8 suits rewards, which say about a bit per answer; 32 suits many edits."""
    alpha: float = Field(default=32.0, gt=0)
    """The adapter's product is scaled by alpha / rank, so that the best learning rate hardly depends on the rank."""
    targets: tuple[str, ...] = ()
    """The last names of the linear layers that have it, such as `q_proj`. Empty: all but the head."""


class TrainingSettings(Section):
    """Defaults suit the demo: a policy under a million parameters on two shared cores."""

    learning_rate: float = Field(default=1e-4, ge=0)
    """Learning rate of AdamW, constant. The smaller it is, the fewer bits of the published weights change."""
    adapter: AdapterSettings | None = None
    """Train a LoRA adapter, such as `{ rank = 8 }`, not all weights, at about ten times the rate; the same for a run."""
    weight_decay: float = Field(default=0.0, ge=0)
    """Weight decay of AdamW. The KL to the anchor is the regulariser here."""
    max_gradient_norm: float = Field(default=1.0, gt=0)
    """Gradients are scaled down to this norm; the guard accepts anything below it."""
    kl_coefficient: float = Field(default=0.02, ge=0)
    """Weight of the KL to the base policy; 0 saves a forward pass."""
    ratio_bound: float = Field(default=2.0, gt=0)
    """Importance weights are truncated above it, for either sign of the advantage."""
    divergence_bound: float = Field(default=2.0, gt=1)
    """A sample leaves its batch as `stale(divergence)` if today's policy gives its tokens more than this times the logged
    probability, or less than one over this, in the geometric mean; with a negative advantage already at e^-0.5. `inf`: never."""
    step_bound: float = Field(default=1.5e-5, gt=0)
    """A step may move the policy by this many nats per token for each of its samples; a longer one is shortened. `inf`, or where no
    task learns from rewards: steps are not measured."""
    loss: str = "vcpo"
    """Loss of the policy gradient: `truncated`, `dppo`, `ppo`, `gspo`, `cispo`, `m2po` or `vcpo`."""
    baseline: Literal["beta", "moving_average"] = "beta"
    """Estimator of the expected reward of a baseline key. `beta` needs rewards within the range below."""
    reward_low: float | None = None
    """Lowest reward a task gives; by default the lowest of the task files."""
    reward_high: float | None = None
    """Highest reward a task gives; by default the highest of the task files."""
    whiten: bool = True
    """Advantages of a batch are scaled to mean 0 and deviation 1."""
    normalise: Literal["total", "components"] = "total"
    """What is whitened: the total reward, or each of its components before the weighted sum."""
    batch_size: int = Field(default=64, ge=1)
    """Samples of one optimizer step."""
    min_batch_size: int = Field(default=1, ge=1)
    """Smallest batch that is taken instead of `batch_size`, once the oldest sample has waited `max_wait_seconds`."""
    max_wait_seconds: float = Field(default=15.0, ge=0)
    """How long the oldest sample waits for a full batch. It also drains the rest when users stop."""
    max_tokens: int = Field(default=MAX_TOKENS, ge=1)
    """Tokens of one forward pass. Padding counts, and a shared prompt counts once."""
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    """What forward and backward passes compute with: by default bfloat16 on a GPU or with `masters = "host"`, else float32. Masters,
    moments, log-probs and loss are float32 in any case."""
    masters: Literal["auto", "device", "host"] = "auto"
    """Where float32 masters and moments are: on the device (18 bytes per parameter with bfloat16), or in host memory (12, and 4 to 6 on
    the device); by default where they fit."""
    recompute: Literal["auto", "always", "never"] = "auto"
    """Compute layers again in the backward pass, to hold less: by default for a row longer than the token budget, and for all once one
    did not fit."""
    deterministic: bool = True
    """On a GPU, sum in a fixed order where torch can: not in flash attention's backward pass. `false` saves about 3% of a step."""
    compile_layers: bool = False
    """Compile the layers on a GPU; not measured yet."""
    old_versions: int = Field(default=8, ge=0)
    """Versions between a sample's oldest token and the current weights, above which it is old. At most a quarter of a full batch is
    old; the others wait for the next one. No sample is refused for its lag."""
    horizon_seconds: float | None = Field(default=None, gt=0)
    """How long the trainer knows which samples it decided, since their generation. An older sample is `stale(expired)`, never new.
    Without it the longest window of the task files plus 7 days for corrections; it may not be shorter than that window."""
    publish_samples: int = Field(default=256, ge=1)
    """A version is cut after this many trained samples ..."""
    publish_seconds: float = Field(default=20.0, ge=0)
    """... or after this time with at least one step, whichever comes first; later, if saving would cost more than 2% of the
    trainer's time."""
    checkpoint_seconds: float = Field(default=5.0, ge=0)
    """Between versions, decisions become durable (and known to the ledger) this often. Weights are saved with every version, and
    when a restart would need more than 5 s to take the journal's steps again; less often, if that would cost more than 2% of the
    trainer's time."""
    checkpoint_keep: int = Field(default=8, ge=1)
    """Checkpoints kept, and the same number of versions that can be rolled back to. Those in use stay anyway."""
    keep_anchors: int = Field(default=2, ge=1)
    """Full copies that stay in the weight store for newcomers. Older ones go once no arm and no replica needs them."""
    guard_spread: float = Field(default=15.0, gt=0)
    """A figure of a step this many median deviations above its median is a spike: noise scale, ESS, KL, largest ratio, entropy. The
    samples to blame are quarantined."""
    guard_hold_seconds: float = Field(default=7200.0, ge=0)
    """How long the samples of a task whose rewards jumped are quarantined as `reward_spike`. Rewards that stay at the new level are
    believed then. 0: at once."""
    mismatch_samples: int = Field(default=8, ge=0)
    """Samples of each version that are scored again with the published weights that generated them."""
    replay_experts: Literal["recorded", "off", "required"] = "recorded"
    """Of a mixture of experts: compute through the experts that the engine recorded, if it did; `off`: never; `required`: a sample
    without them is `off_support`."""
    peak_flops: float | None = Field(default=None, gt=0)
    """Peak of the device at the precision in use; without it utilisation is not reported."""
    num_threads: int = Field(default=1, ge=1)
    """CPU threads of the trainer."""
    lease_seconds: float = Field(default=LIFETIME_SECONDS, ge=1)
    """Seconds without a heartbeat until another trainer may take over."""

    group_seconds: float = Field(default=120.0, ge=1)
    """Of several processes: seconds of silence of one until all start again."""

    @model_validator(mode="before")
    @classmethod
    def _without_removed(cls, values: dict[str, Any]) -> dict[str, Any]:
        """A removed setting is ignored at its old default, which nobody chose, and refused otherwise."""
        for name, (default, replaced_by) in REMOVED.items():
            if values.get(name, default) != default:
                raise ValueError(f"{name} was removed: {replaced_by}; remove the line")
        return {name: value for name, value in values.items() if name not in REMOVED}

    @model_validator(mode="after")
    def _masters_of_an_adapter(self) -> Self:
        if self.adapter is not None and self.masters == "host":
            raise ValueError('masters = "host" is for whole weights: those of an adapter are small; remove the line')
        return self

    @property
    def reward_range(self) -> tuple[float, float]:
        """Lowest and highest reward; 0 and 1 if neither settings nor tasks define them."""
        return (
            0.0 if self.reward_low is None else self.reward_low,
            1.0 if self.reward_high is None else self.reward_high,
        )

    def for_tasks(self, tasks: Iterable[Task]) -> Self:
        """With the reward range and the horizon of the tasks where they are not set. Raises InvalidSettings: they clash.

        Where no task learns from rewards, no ratio is used, and no step is too long for one: `step_bound` is infinite.
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
        compares = next((task.name for task in tasks if task.learning.pair or task.learning.thumb), None)
        if compares is not None and not self.kl_coefficient and not self.mismatch_samples:
            raise InvalidSettings(
                f"[training] kl_coefficient: it is 0, as is mismatch_samples, so no base policy is held that [learning] of the task {compares!r} "
                "could compare pairs and thumbs with; raise one of them"
            )
        windows = [window or 0.0 for task in tasks for window in (task.window_seconds, *_signal_windows(task))]
        longest = max(windows, default=0.0)
        if self.horizon_seconds is not None and self.horizon_seconds < longest:
            raise InvalidSettings(
                f"[training] horizon_seconds: {self.horizon_seconds:g} is shorter than the longest window of a task, {longest:g}: "
                "rewards that come within their window would be dropped; raise it, or remove it to take the windows' length"
            )
        horizon = self.horizon_seconds or longest + CORRECTION_SECONDS
        uses_ratios = not tasks or any(task.learning.rl for task in tasks)
        bound = self.step_bound if uses_ratios else math.inf
        found = {"reward_low": low, "reward_high": high, "horizon_seconds": horizon, "step_bound": bound}
        return self.model_copy(update=found)


def _signal_windows(task: Task) -> list[float | None]:
    return [signal.window_seconds for signal in task.signals.values()]
