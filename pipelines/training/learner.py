"""Model, optimizer and one step.

In: experiences that may be trained. Out: changed weights and figures, or a verdict that says why nothing changed. Waits:
for the device.

Weights are float32 masters; what is published is their bfloat16 rounding. The model stays in eval mode: behaviour
log-probs were made without dropout, and ratios against them must not be noise.
"""

from __future__ import annotations

import base64
import copy
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from accelerate import Accelerator
from trl.trainer.utils import compute_flops_per_token

from pipelines.training.advantage import (
    Advantages,
    BetaTracker,
    MovingAverageTracker,
    Part,
    Scored,
    Tracker,
    advantages,
    component_advantages,
    component_of,
    tracker_from_json,
)
from pipelines.training.batch import MicroBatch, micro_batches, num_tokens, prompt_of, single_version
from pipelines.training.checkpoint import Checkpoint
from pipelines.training.components import parts_of
from pipelines.training.guard import Verdict, judge, remember
from pipelines.training.loss import LossSums, Objective, policy_loss
from policy.logprobs import TokenScorer
from policy.weights import copy_tensors, tensors_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from contracts.records import Experience
    from contracts.weights.format import Tensors
    from pipelines.training.lessons import Lesson
    from pipelines.training.settings import TrainingSettings
    from pipelines.training.state import TrainerState

MOMENTS = ("exp_avg", "exp_avg_sq", "step")


@dataclass(frozen=True)
class StepResult:
    """What a step did. `samples` has one row of figures per experience, for a bundle; `scale`: see `Advantages`."""

    verdict: Verdict
    metrics: dict[str, float | None]
    samples: list[dict[str, Any]]
    scale: float = 1.0


class Learner:
    """One policy being trained on one device."""

    def __init__(self, model: Any, settings: TrainingSettings, device: str = "cpu") -> None:
        """`model` is the base policy in float32; it becomes the trained one."""
        self._settings = settings
        self._accelerator = Accelerator(cpu=device == "cpu")
        self.base = tensors_of(model)
        self._frozen = FrozenPolicy(copy.deepcopy(model).to(self._accelerator.device))
        self._model = model.requires_grad_(requires_grad=True).eval()
        optimizer = torch.optim.AdamW(model.parameters(), lr=settings.learning_rate, weight_decay=settings.weight_decay)
        wrapped, self._optimizer = self._accelerator.prepare(model, optimizer)
        self._scorer = TokenScorer(self._model, module=wrapped)
        self._objective = Objective(ratio_bound=settings.ratio_bound, kl_coefficient=settings.kl_coefficient)
        self.tracker: Tracker = (
            BetaTracker(*settings.reward_range)
            if settings.baseline == "beta"
            else MovingAverageTracker(initial=sum(settings.reward_range) / 2)
        )
        self._gradient_norms: list[float] = []
        self._last_step_ended: float | None = None

    @property
    def max_length(self) -> int:
        """The model's context in tokens."""
        return int(self._model.config.max_position_embeddings)

    @property
    def vocabulary_size(self) -> int:
        """Token ids are below it."""
        return int(self._model.config.vocab_size)

    def step(
        self,
        experiences: Sequence[Experience],
        weights: Sequence[float],
        published: Mapping[int, Tensors],
        corrections: Sequence[Lesson] = (),
    ) -> StepResult:
        """Learn from a batch once, or skip it whole.

        Args:
            experiences: scored, with rewards, none that `batch.refuse` names.
            weights: of each sample, staleness included.
            published: bits of versions still held, to measure the mismatch on.
            corrections: further rows of the batch that no baseline and no other sample's advantage hears of.
        """
        started = time.monotonic()
        again = [item.experience for item in corrections]
        baselined = self._baselined(experiences)
        found = self._advantages(experiences)
        values = [*found.values.tolist(), *(item.difference for item in corrections)]
        pulls = [*weights, *(item.scale for item in corrections)]
        sums, drift, current_N = self._gradient(experiences, again, [v * w for v, w in zip(values, pulls, strict=True)])
        norm = float(self._accelerator.clip_grad_norm_(self._model.parameters(), self._settings.max_gradient_norm))
        everything = [*experiences, *again]
        verdict = judge(
            self._gradient_norms,
            loss=sums.loss,
            gradient_norm=norm,
            num_samples=len(everything),
            spread=self._settings.guard_spread,
            harmless=self._settings.max_gradient_norm,
        )
        metrics: dict[str, float | None] = {**sums.metrics(), "gradient_norm": norm, "num_tokens": sums.num_tokens}
        self._gradient_norms = remember(self._gradient_norms, norm, len(everything))
        if verdict.accepted:
            self._optimizer.step()
            for item in baselined:
                self.tracker.update(item.baseline_key, item.reward, drift, item.weight)
        self._optimizer.zero_grad()
        metrics |= self._speed(everything, started)
        metrics |= self._mismatch(experiences, published)
        metrics |= _reward_metrics(experiences) | _correction_metrics(corrections)
        return StepResult(verdict, metrics, _sample_rows(everything, values, pulls, current_N), found.scale)

    def tensors(self) -> Tensors:
        """What would be published now: bfloat16 bits."""
        return tensors_of(self._model)

    def random_state(self) -> dict[str, str]:
        """Device to its generator's state in base64."""
        states = {"cpu": _to_base64(torch.get_rng_state())}
        if self._accelerator.device.type == "cuda":
            states["cuda"] = _to_base64(torch.cuda.get_rng_state())
        return states

    def capture(self, state: TrainerState, version: int | None) -> Checkpoint:
        """Everything a restart needs. Trackers, guard and generators are written into `state`; tensors are copies."""
        state.tracker = self.tracker.to_json()
        state.gradient_norms = list(self._gradient_norms)
        state.random_state = self.random_state()
        parameters = dict(self._model.named_parameters())
        weights = {name: _copy(parameter) for name, parameter in parameters.items()}
        moments = {
            f"{moment}/{name}": _copy(self._optimizer.state[parameter][moment])
            for name, parameter in parameters.items()
            if parameter in self._optimizer.state
            for moment in MOMENTS
        }
        return Checkpoint(state, weights, moments, version)

    @torch.no_grad()
    def restore(self, checkpoint: Checkpoint) -> None:
        """Become what `capture` saw."""
        state, moments = checkpoint.state, checkpoint.optimizer
        self.tracker = self._in_range(tracker_from_json(state.tracker))
        self._gradient_norms = list(state.gradient_norms)
        torch.set_rng_state(_from_base64(state.random_state["cpu"]))
        if self._accelerator.device.type == "cuda" and "cuda" in state.random_state:
            torch.cuda.set_rng_state(_from_base64(state.random_state["cuda"]))
        self._optimizer.state.clear()
        for name, parameter in self._model.named_parameters():
            parameter.copy_(checkpoint.weights[name])
            if f"step/{name}" in moments:
                # AdamW counts steps on the CPU, wherever the parameter is.
                self._optimizer.state[parameter] = {
                    moment: moments[f"{moment}/{name}"].to("cpu" if moment == "step" else parameter.device, copy=True)
                    for moment in MOMENTS
                }

    def _in_range(self, tracker: Tracker) -> Tracker:
        """The tracker on the scale that rewards have now: task files may have changed since it was kept."""
        if not isinstance(tracker, BetaTracker) or (tracker.low, tracker.high) == self._settings.reward_range:
            return tracker
        return tracker.rescaled(*self._settings.reward_range)

    def restart(self, tensors: Tensors) -> None:
        """Go on from published bits; the optimizer's moments were of other weights and are forgotten."""
        copy_tensors(self._model, tensors)
        self._optimizer.state.clear()

    def _micro_batches(self, experiences: Sequence[Experience]) -> list[MicroBatch]:
        return micro_batches(experiences, max_tokens=self._settings.max_tokens, device=self._accelerator.device)

    def _scored(self, experiences: Sequence[Experience]) -> list[Scored]:
        return [Scored(_reward(item), item.baseline_key, prompt_of(item), item.weight) for item in experiences]

    def _parts(self, experiences: Sequence[Experience]) -> list[dict[str, Part]]:
        return [parts_of(item, *self._settings.reward_range) for item in experiences]

    def _advantages(self, experiences: Sequence[Experience]) -> Advantages:
        scored = self._scored(experiences)
        if self._settings.normalise == "components":
            return component_advantages(scored, self._parts(experiences), self.tracker)
        return advantages(scored, self.tracker, whiten=self._settings.whiten)

    def _baselined(self, experiences: Sequence[Experience]) -> list[Scored]:
        """What the trackers learn from a batch."""
        scored = self._scored(experiences)
        if self._settings.normalise == "total":
            return scored
        return [
            component_of(sample, name, part)
            for sample, parts in zip(scored, self._parts(experiences), strict=True)
            for name, part in parts.items()
        ]

    def _gradient(
        self, experiences: Sequence[Experience], again: Sequence[Experience], advantages: Sequence[float]
    ) -> tuple[LossSums, float, torch.Tensor]:
        """Accumulate the gradient of samples, then of corrections.

        Returns the sums of both, the drift that samples alone show, and the summed current log-prob of each. The age of
        what is corrected is no drift of the others.
        """
        advantage_N = torch.tensor(advantages, dtype=torch.float32, device=self._accelerator.device)
        count = num_tokens([*experiences, *again])
        sums, current_N = self._backward(experiences, advantage_N[: len(experiences)], count)
        drift = sums.metrics()["k3"]
        corrected, corrected_N = self._backward(again, advantage_N[len(experiences) :], count)
        sums.add(corrected)
        return sums, drift, torch.cat([current_N, corrected_N])

    def _backward(
        self, experiences: Sequence[Experience], advantage_N: torch.Tensor, count: int
    ) -> tuple[LossSums, torch.Tensor]:
        """Accumulate gradients; returns the sums and the summed current log-prob of each sample."""
        total, current_N = LossSums(), torch.zeros_like(advantage_N)
        for batch in self._micro_batches(experiences):
            scores = self._scorer(batch.input_ids_BL, batch.attention_mask_BL, batch.mask_BT, batch.temperature)
            anchor_BT = None
            if self._settings.kl_coefficient > 0:
                anchor_BT = self._frozen.log_probs(0, self.base, batch)
            loss, sums = policy_loss(
                scores,
                batch.behaviour_BT,
                anchor_BT,
                advantage_N[batch.sample_B],
                batch.mask_BT,
                num_tokens=count,
                objective=self._objective,
            )
            self._accelerator.backward(loss)
            current_N.index_add_(0, batch.sample_B, scores.log_probs_BT.detach().sum(-1))
            total.add(sums)
        return total, current_N

    def _mismatch(self, experiences: Sequence[Experience], published: Mapping[int, Tensors]) -> dict[str, float | None]:
        """k1 and k3 in nats per token between logged log-probs and a recompute under the same published bits."""
        of_version: dict[int, list[Experience]] = {}
        for item in experiences:
            version = single_version(item)
            if (
                version is not None
                and version in published
                and sum(map(len, of_version.values())) < self._settings.mismatch_samples
            ):
                of_version.setdefault(version, []).append(item)
        total = LossSums()
        for version, items in of_version.items():
            for batch in self._micro_batches(items):
                log_probs_BT = self._frozen.log_probs(version, published[version], batch)
                log_ratio = (log_probs_BT - batch.behaviour_BT)[batch.mask_BT].double()
                total.add(
                    LossSums(
                        num_tokens=log_ratio.numel(),
                        ratio=float(log_ratio.exp().sum()),
                        log_ratio=float(log_ratio.sum()),
                    )
                )
        figures = total.metrics() if total.num_tokens else {}
        return {
            "mismatch_k1": figures.get("k1"),
            "mismatch_k3": figures.get("k3"),
            "mismatch_tokens": total.num_tokens,
        }

    def _speed(self, experiences: Sequence[Experience], started: float) -> dict[str, float | None]:
        """Tokens per second and utilisation, over forward and backward alone and over all time since the last step."""
        ended = time.monotonic()
        busy = ended - started
        wall = ended - (self._last_step_ended or started)
        self._last_step_ended = ended
        lengths = [len(segment.token_ids) // 4 for item in experiences for segment in item.segments]
        flops = sum(length * compute_flops_per_token(self._model.config, length) for length in lengths)
        peak = self._settings.peak_flops
        return {
            "step_seconds": busy,
            "tokens_per_second_forward_backward": sum(lengths) / busy,
            "tokens_per_second_wall_clock": sum(lengths) / wall,
            "mfu_forward_backward": flops / busy / peak if peak else None,
            "mfu_wall_clock": flops / wall / peak if peak else None,
        }


class FrozenPolicy:
    """A second copy of the model that never learns: it takes on whichever published bits are to be asked."""

    def __init__(self, model: Any) -> None:
        self._model = model.requires_grad_(requires_grad=False).eval()
        self._scorer = TokenScorer(self._model)
        self._version: int | None = None

    @torch.no_grad()
    def log_probs(self, version: int, tensors: Tensors, batch: MicroBatch) -> torch.Tensor:
        """Log-probs [B, T] of a batch under the bits of a version."""
        if version != self._version:
            copy_tensors(self._model, tensors)
            self._version = version
        return self._scorer(batch.input_ids_BL, batch.attention_mask_BL, batch.mask_BT, batch.temperature).log_probs_BT


def _reward(experience: Experience) -> float:
    if experience.reward is None:
        raise ValueError(f"{experience.key} has no reward")
    return experience.reward


def _reward_metrics(experiences: Sequence[Experience]) -> dict[str, float | None]:
    rewards = [_reward(item) for item in experiences]
    parts: dict[str, list[float]] = {}
    for item in experiences:
        for score in item.scores:
            if score.value is not None:
                parts.setdefault(f"reward/{score.name}", []).append(score.value)
    means = {name: sum(values) / len(values) for name, values in parts.items()}
    mean = sum(rewards) / len(rewards) if rewards else None
    return {"num_samples": len(rewards), "reward_mean": mean, **means}


def _correction_metrics(corrections: Sequence[Lesson]) -> dict[str, float | None]:
    num, total = len(corrections), sum(item.difference for item in corrections)
    return {"num_corrections": num, "correction_mean": total / num if num else None}


def _sample_rows(
    experiences: Sequence[Experience], raw_N: Sequence[float], weights: Sequence[float], current_N: torch.Tensor
) -> list[dict[str, Any]]:
    return [
        {
            "key": item.key,
            "revision": item.revision,
            "reward": item.reward,
            "advantage": advantage,
            "weight": weight,
            "num_tokens": num_tokens([item]),
            "log_prob_sum": current,
        }
        for item, advantage, weight, current in zip(experiences, raw_N, weights, current_N.tolist(), strict=True)
    ]


def _copy(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().to("cpu", copy=True).contiguous()


def _to_base64(generator_state: torch.Tensor) -> str:
    return base64.b64encode(generator_state.numpy().tobytes()).decode()


def _from_base64(text: str) -> torch.Tensor:
    return torch.frombuffer(bytearray(base64.b64decode(text)), dtype=torch.uint8)
