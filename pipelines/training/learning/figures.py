"""Figures of a step besides its loss."""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from pipelines.training.learning.batch import num_tokens

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from contracts.records import Experience
    from pipelines.training.samples.lessons import Lesson


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

    def take(self) -> dict[str, float | None]:
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
