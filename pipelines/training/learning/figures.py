"""What a step did, and its figures besides its loss: no tensors."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pipelines.training.known.experiences import row_lengths, single_version
from pipelines.training.learning.loss import LossSums, clamped_log_ratio

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from contracts.records import Experience
    from pipelines.training.known.batches import Lesson
    from pipelines.training.known.experiences import Segmented
    from pipelines.training.learning.trainee import Published, Trainee
    from pipelines.training.text.losses import TextLosses
    from pipelines.training.text.samples import TextSample

MEASURED_VERSIONS = 64
"""Versions whose mismatch is remembered. An older one that comes back is measured again."""


@dataclass(frozen=True)
class StepResult:
    """What a step did."""

    skipped: str
    """The guard's reason; empty: the step was taken."""
    metrics: dict[str, float | None]
    samples: list[dict[str, Any]]
    """One row of figures per experience, for a bundle."""
    pulls: Mapping[str, float] = field(default_factory=dict)
    """Sample key to the factor from one unit of its reward, at full weight, to the pull on each of its tokens."""
    zeros: Mapping[str, float] = field(default_factory=dict)
    """Sample key to the reward with advantage 0: the baseline plus the mean that whitening subtracted."""
    left: Sequence[str] = ()
    """Keys of samples and corrections that left the batch before the step: today's policy has left them."""
    log_ratios: Mapping[str, float] = field(default_factory=dict)
    """Key to the mean log(today's / logged probability) per token, for those that left too."""
    signs: Mapping[str, float] = field(default_factory=dict)
    """What the guard compares with its history: see `guard.signs_of`, and the gradient's norm by `guard.Norms`."""
    step_scale: float = 1.0
    """What the learning rate of this step is multiplied by."""


def batch_figures(experiences: Sequence[Experience], corrections: Sequence[Lesson]) -> dict[str, float | None]:
    """Number of the samples, mean of this policy's rewards and of each graded component, number and mean difference of the corrections."""
    own = [item for item in experiences if not item.origin]
    parts: dict[str, list[float]] = {"reward_mean": [item.reward for item in own if item.reward is not None]}
    for score in (score for item in own for score in item.scores if score.value is not None):
        parts.setdefault(f"reward/{score.name}", []).append(score.value or 0.0)
    parts["correction_mean"] = [item.difference for item in corrections]
    means = {name: sum(values) / len(values) if values else None for name, values in parts.items()}
    return {"num_samples": len(experiences), "num_corrections": len(corrections), **means}


def text_figures(texts: Sequence[TextSample], losses: TextLosses) -> dict[str, float | None]:
    """Of each kind of text in the step: number, loss, and how far pairs and thumbs moved from the anchor. Nothing without text."""
    counts = Counter(item.kind for item in texts)
    return {
        **{f"text/{kind}_samples": num for kind, num in sorted(counts.items())},
        **{f"text/{kind}_loss": value for kind, value in losses.values.items()},
        **{f"text/{name}_margin": value for name, value in losses.margins.items()},
    }


def sample_rows(experiences: Sequence[Experience], **columns: Sequence[float]) -> list[dict[str, Any]]:
    """One row of figures per sample, for a bundle: no content. `columns`: one figure of each sample."""
    return [
        {"key": item.key, "revision": item.revision, "reward": item.reward, **dict(zip(columns, values, strict=True))}
        for item, values in zip(experiences, zip(*columns.values(), strict=True), strict=True)
    ]


class Mismatch:
    """k1 and k3 in nats per token between logged log-probs and a recompute under the same published bits.

    A version is measured once, on its first samples: engine and bits stay the same. Each step reports the newest version measured so far.
    """

    def __init__(self, num_samples: int) -> None:
        self._num_samples = num_samples
        self._measured: dict[int, tuple[int, LossSums]] = {}

    def measure(self, trainee: Trainee, experiences: Sequence[Experience], published: Published) -> None:
        """Measure on samples whose tokens are all of one version in `published`."""
        of_version: dict[int, list[Experience]] = {}
        for item in experiences if self._num_samples else ():
            version = single_version(item)
            if version is not None and version in published:
                of_version.setdefault(version, []).append(item)
        for version, all_items in of_version.items():
            count, total = self._measured.pop(version, (0, LossSums()))
            if items := all_items[: self._num_samples - count]:
                found = trainee.log_probs_under(published[version], items)
                log_ratio_S = clamped_log_ratio(*found)
                ratio, log_ratio = float(log_ratio_S.exp().sum()), float(log_ratio_S.sum())
                total.add(LossSums(num_tokens=log_ratio_S.numel(), ratio=ratio, log_ratio=log_ratio))
            self._measured[version] = count + len(items), total
        while len(self._measured) > MEASURED_VERSIONS:
            del self._measured[min(self._measured)]

    def figures(self) -> dict[str, float | None]:
        """Of the newest version."""
        version = max(self._measured, default=None)
        total = LossSums() if version is None else self._measured[version][1]
        found = total.metrics() if total.num_tokens else {}
        return {
            "mismatch_k1": found.get("k1"),
            "mismatch_k3": found.get("k3"),
            "mismatch_tokens": total.num_tokens,
            "mismatch_version": version,
        }


class Speed:
    """Tokens per second and utilisation, over forward and backward alone and over all time since the last step."""

    def __init__(self, config: Any, peak_flops: float | None) -> None:
        """`config` is the model's. Utilisation is unknown without `peak_flops`, and for models whose layers are not all attention."""
        self._config = config
        # trl's formula counts attention and dense layers; state spaces and convolutions have other costs.
        has_attention = hasattr(config, "num_attention_heads")
        is_attention = {"full_attention", "sliding_attention"}.issuperset(getattr(config, "layer_types", None) or ())
        self._peak = peak_flops if has_attention and is_attention else None
        if self._peak:
            # It loads pandas and datasets too, which a trainer on a CPU starts sooner without.
            from trl.trainer.utils import compute_flops_per_token  # noqa: PLC0415

            self._flops_per_token = compute_flops_per_token
        self._last_ended: float | None = None

    def figures(self, experiences: Sequence[Segmented], started: float) -> dict[str, float | None]:
        """Figures of a step that began at `started`, monotonic seconds, and ends now."""
        ended = time.monotonic()
        busy = ended - started
        wall = ended - (self._last_ended or started)
        self._last_ended = ended
        lengths = row_lengths(experiences)
        flops = sum(length * self._flops_per_token(self._config, length) for length in lengths) if self._peak else 0
        found: dict[str, float | None] = {"step_seconds": busy}
        for name, seconds in (("forward_backward", busy), ("wall_clock", wall)):
            found[f"tokens_per_second_{name}"] = sum(lengths) / seconds
            found[f"mfu_{name}"] = flops / seconds / self._peak if self._peak else None
        return found
