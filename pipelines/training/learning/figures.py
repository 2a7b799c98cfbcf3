"""What a step did, and its figures besides its loss: no tensors."""

from __future__ import annotations

import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pipelines.training.known.experiences import num_tokens, single_version
from pipelines.training.learning.loss import LossSums, clamped_log_ratio
from pipelines.training.learning.trainee import PublishedBits, Trainee

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from contracts.records import Experience
    from pipelines.training.known.batches import Lesson
    from weights.tensors import Tensors

MEASURED_VERSIONS = 64
"""Versions whose mismatch is remembered. An older one that comes back is measured again."""


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


def reward_figures(experiences: Sequence[Experience]) -> dict[str, float | None]:
    """Mean reward of the samples, and of each graded component."""
    rewards = [item.reward for item in experiences if item.reward is not None]
    parts: dict[str, list[float]] = {}
    for item in experiences:
        for score in item.scores:
            if score.value is not None:
                parts.setdefault(f"reward/{score.name}", []).append(score.value)
    means = {name: sum(values) / len(values) for name, values in parts.items()}
    mean = sum(rewards) / len(rewards) if rewards else None
    return {"num_samples": len(rewards), "reward_mean": mean, **means}


def correction_figures(corrections: Sequence[Lesson]) -> dict[str, float | None]:
    """The number of corrections, and their mean difference."""
    num, total = len(corrections), sum(item.difference for item in corrections)
    return {"num_corrections": num, "correction_mean": total / num if num else None}


def sample_rows(
    experiences: Sequence[Experience],
    advantages: Sequence[float],
    weights: Sequence[float],
    current_N: Sequence[float],
    denominators: Sequence[float],
) -> list[dict[str, Any]]:
    """One row of figures per sample, for a bundle: no content."""
    return [
        {
            "key": item.key,
            "revision": item.revision,
            "reward": item.reward,
            "advantage": advantage,
            "weight": weight,
            "num_tokens": num_tokens([item]),
            "log_prob_sum": current,
            "denominator": denominator,
        }
        for item, advantage, weight, current, denominator in zip(
            experiences, advantages, weights, current_N, denominators, strict=True
        )
    ]


class Mismatch:
    """k1 and k3 in nats per token between logged log-probs and a recompute under the same published bits.

    A version is measured once, on its first samples: engine and bits stay the same. Each step reports the newest version measured so far.
    """

    def __init__(self, num_samples: int) -> None:
        """`num_samples`: on how many samples a version is measured."""
        self._num_samples = num_samples
        self._measured: dict[int, tuple[int, LossSums]] = {}

    def measure(self, trainee: Trainee, experiences: Sequence[Experience], published: Mapping[int, Tensors]) -> None:
        """Measure on samples whose tokens are all of one version in `published`."""
        of_version: dict[int, list[Experience]] = {}
        for item in experiences if self._num_samples else ():
            version = single_version(item)
            if version is not None and version in published:
                of_version.setdefault(version, []).append(item)
        for version, all_items in of_version.items():
            count, total = self._measured.pop(version, (0, LossSums()))
            if items := all_items[: self._num_samples - count]:
                found = trainee.log_probs(items, PublishedBits(version, published[version]))
                log_ratio_S = clamped_log_ratio(found.found_S, found.logged_S)
                total.add(
                    LossSums(
                        num_tokens=log_ratio_S.numel(),
                        ratio=float(log_ratio_S.exp().sum()),
                        log_ratio=float(log_ratio_S.sum()),
                    )
                )
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


class Stages:
    """Seconds of a step by stage: data, forward, backward, optimizer. On an accelerator: until the host may go on."""

    def __init__(self) -> None:
        self._seconds: dict[str, float] = {}

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """What runs inside belongs to this stage."""
        started = time.monotonic()
        try:
            yield
        finally:
            self._seconds[name] = self._seconds.get(name, 0.0) + time.monotonic() - started

    def take(self) -> dict[str, float]:
        """The figures since the last call."""
        seconds, self._seconds = self._seconds, {}
        return {f"seconds_{name}": value for name, value in seconds.items()}


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

    def figures(self, experiences: Sequence[Experience], started: float) -> dict[str, float | None]:
        """Figures of a step that began at `started`, monotonic seconds, and ends now."""
        ended = time.monotonic()
        busy = ended - started
        wall = ended - (self._last_ended or started)
        self._last_ended = ended
        lengths = [len(segment.token_ids) // 4 for item in experiences for segment in item.segments]
        flops = sum(length * self._flops_per_token(self._config, length) for length in lengths) if self._peak else 0
        return {
            "step_seconds": busy,
            "tokens_per_second_forward_backward": sum(lengths) / busy,
            "tokens_per_second_wall_clock": sum(lengths) / wall,
            "mfu_forward_backward": flops / busy / self._peak if self._peak else None,
            "mfu_wall_clock": flops / wall / self._peak if self._peak else None,
        }
