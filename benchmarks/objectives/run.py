"""One run of the bench: a policy learns from answers that are `lag` steps old, from noisy rewards.

The objective, the loss, advantages, trackers, and what leaves a batch or makes its step smaller are the trainer's own. Only the model,
the reading of rows and the guard against spikes are not: a step takes milliseconds, so that thousands of runs fit into an evening.
"""

from __future__ import annotations

import copy
import math
from collections import deque
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch

from benchmarks.objectives.model import TinyAnswers, TinyPolicy
from benchmarks.objectives.tasks import AnswerPool, Data, Noise
from pipelines.training.learning.advantages import Scored, advantages
from pipelines.training.learning.guard import has_left, step_scale
from pipelines.training.learning.loss import LossSums, policy_loss
from pipelines.training.learning.masters import MasterAdamW
from pipelines.training.learning.objectives import Objective
from pipelines.training.learning.step_bound import bounded_step, stride
from pipelines.training.learning.trackers import BetaTracker
from pipelines.training.settings import TrainingSettings
from policy.adapter import Adapter, all_linear
from policy.logprobs import TokenScores
from weights.adapters import AdapterConfig

DEFAULTS = TrainingSettings()
STEP_BOUND = DEFAULTS.step_bound
STEPS_PER_VERSION = 4
"""As by default: 256 samples."""
NUM_POINTS = 5
"""How often a run is measured."""
COLLAPSED = 0.25
"""A run that is below this share of its start at two points in a row ends there. Its row says so: `stopped` is the step."""


@dataclass(frozen=True)
class Cell:
    """What a run is about. `rate` is the learning rate itself."""

    task: str
    loss: str
    lag: int
    batch: int
    rate: float
    seed: int
    steps: int
    is_clean: bool = False
    """No reward is missing or wrong."""
    kl: float = 0.02
    bound: float = 2.0
    divergence: float = 2.0
    step_bound: float = STEP_BOUND
    """As the settings `kl_coefficient`, `ratio_bound`, `divergence_bound` and `step_bound`."""
    rank: int = 0
    """Of a LoRA adapter beside the policy; 0: all weights learn."""


class BenchSampled(NamedTuple):
    """Questions and answers that wait for their turn, the version that answered, and what users said: NaN where nothing."""

    rows: AnswerPool
    answers: TinyAnswers
    version: int
    rewards: torch.Tensor


def run(cell: Cell, base: TinyPolicy, data: Data, noise: Noise) -> dict[str, Any]:
    """Learn for `cell.steps` steps. Returns the share of right answers on held-out questions: at the start, on the way, at the end."""
    random = torch.Generator().manual_seed(cell.seed)
    policy = copy.deepcopy(base)
    trained: torch.nn.Module = policy
    if cell.rank:
        config = AdapterConfig(rank=cell.rank, alpha=32.0, targets=all_linear(policy), base_root="")
        trained = Adapter(policy.requires_grad_(requires_grad=False), config, dtype=torch.float32, seed=cell.seed)
        trained.requires_grad_(requires_grad=True)
    pairs = {name: (weight, weight) for name, weight in trained.named_parameters()}
    optimizer = MasterAdamW(pairs, lr=cell.rate, weight_decay=DEFAULTS.weight_decay)
    objective = Objective(cell.bound, cell.kl, cell.loss)
    trainer = _Trainer(policy, base, objective, optimizer, BetaTracker(), cell)
    noise = Noise(0.0, 0.0) if cell.is_clean else noise
    # Late answers come from versions, a batch of which is generated at once; without lag each step has its own.
    at_once = STEPS_PER_VERSION if cell.lag else 1
    waiting = deque(_sampled(base, 0, data, (cell.batch, cell.lag, noise), random) if cell.lag else ())
    curve = [policy.share_right(data.held_out.prompts, data.held_out.right)]
    ess, shares = 1.0, list[float]()
    step = 0
    for step in range(1, cell.steps + 1):
        if (step - 1) % at_once == 0:
            waiting.extend(_sampled(policy, step // STEPS_PER_VERSION, data, (cell.batch, at_once, noise), random))
        found = _learn(waiting.popleft(), trainer)
        ess, shares = min(ess, found.ess), [*shares, found.share]
        if step % max(cell.steps // NUM_POINTS, 1) == 0:
            right = policy.share_right(data.held_out.prompts, data.held_out.right)
            curve.append(right if math.isfinite(right) else 0.0)
            if max(curve[-2:]) < COLLAPSED * curve[0]:
                break
    # Two points: a single one is noisier.
    facts = {"start": curve[0], "end": sum(curve[-2:]) / 2, "lowest": min(curve), "ess": ess, "curve": curve}
    return facts | {"share": sum(shares) / len(shares)} | ({"stopped": step} if step < cell.steps else {})


def _sampled(
    policy: TinyPolicy, version: int, data: Data, sizes: tuple[int, int, Noise], random: torch.Generator
) -> list[BenchSampled]:
    """Some batches of one version. `sizes`: of a batch, how many, and what users do to rewards."""
    batch, count, noise = sizes
    size = batch * count
    rows = data.train.rows(torch.randint(len(data.train.prompts), (size,), generator=random))
    answers = policy.sample(rows.prompts, random)
    rewards = (answers.ids_BA == rows.right).all(1).float()
    chance = torch.rand(2, size, generator=random)
    rewards = torch.where(chance[0] < noise.wrong, 1 - rewards, rewards)
    rewards = rewards.masked_fill(chance[1] < noise.missing, math.nan)
    parts = zip(*(torch.split(each, batch) for each in (*rows, *answers, rewards)), strict=True)
    return [BenchSampled(AnswerPool(*part[:3]), TinyAnswers(*part[3:6]), version, part[6]) for part in parts]


class _Trainer(NamedTuple):
    """What a run changes, and what it is pulled towards."""

    policy: TinyPolicy
    base: TinyPolicy
    objective: Objective
    optimizer: MasterAdamW
    tracker: BetaTracker
    cell: Cell


class _Step(NamedTuple):
    """The effective share of tokens, and how much of the learning rate was used."""

    ess: float = 1.0
    share: float = 0.0


def _learn(found: BenchSampled, trainer: _Trainer) -> _Step:
    """One step as the trainer takes it, over the answers that have a reward."""
    spoken = (~found.rewards.isnan()).nonzero()[:, 0]
    if not len(spoken):
        return _Step()
    prompts, answers = found.rows.prompts[spoken], TinyAnswers(*(each[spoken] for each in found.answers))
    answers = TinyAnswers(*(each[:, : int(answers.mask_BA.sum(1).max())] for each in answers))
    # Questions that come twice in a batch are the same prompt, as in the trainer.
    samples = [
        Scored(reward, "task", prompt.numpy().tobytes(), found.version)
        for reward, prompt in zip(found.rewards[spoken].tolist(), prompts, strict=True)
    ]
    scores = trainer.policy.score(prompts, answers.ids_BA)
    values = advantages(samples, trainer.tracker, whiten=DEFAULTS.whiten).values
    kept = _kept(scores, answers, values, trainer.cell.divergence)
    if not len(kept):
        return _Step()
    if len(kept) < len(samples):
        samples = [samples[index] for index in kept]
        prompts, answers = prompts[kept], TinyAnswers(*(each[kept] for each in answers))
        scores = TokenScores(scores.log_probs_BT[kept], scores.entropy_BT[kept])
        values = advantages(samples, trainer.tracker, whiten=DEFAULTS.whiten).values
    anchor = None
    if trainer.objective.kl_coefficient:
        with torch.no_grad():
            anchor = trainer.base.score(prompts, answers.ids_BA).log_probs_BT
    loss, micro_sums = policy_loss(
        scores,
        answers.log_probs_BA,
        anchor,
        torch.from_numpy(values),
        answers.mask_BA,
        num_tokens=int(answers.mask_BA.sum()),
        objective=trainer.objective,
    )
    optimizer = trainer.optimizer
    optimizer.zero_grad()
    torch.autograd.backward(loss)
    weights = optimizer.param_groups[0]["params"]
    norm = torch.nn.utils.clip_grad_norm_(weights, DEFAULTS.max_gradient_norm)
    sums = LossSums.of([micro_sums], trainer.objective)
    ess = sums.metrics()["ess"]
    if math.isfinite(sums.loss) and math.isfinite(float(norm)):  # as the guard
        scale = min(sums.rate, step_scale(ess))
        for group in optimizer.param_groups:
            group["lr"] = group.setdefault("base", group["lr"]) * scale
        every = stride(len(samples))
        seen = [each[::every] for each in (prompts, answers.ids_BA, answers.mask_BA)]
        taken = bounded_step(
            optimizer,
            scores.log_probs_BT.detach()[::every][seen[2]],
            lambda: trainer.policy.score(seen[0], seen[1]).log_probs_BT[seen[2]],
            trainer.cell.step_bound * len(samples),
        )
        for sample in samples:
            trainer.tracker.update(sample.baseline_key, sample.version, sample.reward)
        return _Step(ess, scale * taken.share)
    return _Step(ess)


def _kept(scores: TokenScores, answers: TinyAnswers, values: np.ndarray, bound: float) -> torch.Tensor:
    """Indices of the samples that today's policy has not left, as the trainer finds them."""
    ratios = torch.where(answers.mask_BA, scores.log_probs_BT.detach() - answers.log_probs_BA, 0.0).double()
    means = ratios.sum(1) / answers.mask_BA.sum(1)
    return torch.from_numpy(np.flatnonzero(~has_left(means.numpy(), values, bound)))
