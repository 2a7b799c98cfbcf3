"""When to skip a step, which samples leave it, and how long it is. Pure.

A bad step is skipped, never repaired, and the weights do not change. `trial` finds the samples that are to blame: those are
quarantined by name, and the others are trained without them or wait for the next batch.

    reason            figure of the batch                                                     never a spike up to
    gradient_spike    noise scale: gradient norm over what its tokens would give as noise     see `Norms`
    ess_spike         one over the effective share of the tokens                              10
    kl_spike          k3 between the policies that answered and today's, nats per token       .5
    ratio_spike       the largest importance weight before truncation                         100
    entropy_spike     distance of today's entropy from the mean surprise of the logged        1, and the noise of few tokens
                      tokens, nats per token: 0 if today's policy is as unsure as the one that answered, whatever its
                      temperature, task and answer lengths

A spike lies `guard_spread` median deviations above the median of the last 64 steps *and* above the bound.

A late reward is not stale for its age: the importance weights correct for a policy that moved, as long as it still gives the answer
a similar probability. The measure of a sample is the geometric mean of its tokens' ratios (today's probability over the logged one),
as in GSPO (arXiv 2507.18071). A sample leaves its batch, by name, if

    the geometric ratio lies outside [1 / bound, bound]           today's policy has left the answer, or learned it long ago
    its advantage is negative and the mean log-ratio < -NEGATIVE  it is unlearned already (DeepSeek-V3.2, arXiv 2512.02556)

The step shrinks with the effective sample size of the importance weights below MIN_ESS (VCPO, arXiv 2602.17616, predicts collapse
by it).
"""

from __future__ import annotations

import math
import statistics
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from contracts.records import Experience

SPIKE = "gradient_spike"
HARMLESS = {"ess_spike": 10.0, "kl_spike": 0.5, "ratio_spike": 100.0, "entropy_spike": 1.0}
"""Reason to the largest value that is never a spike."""
SPIKES = frozenset({SPIKE, *HARMLESS})
TOKEN_NOISE = 6.0
"""Nats: four times the usual deviation of one token's surprise."""
REPEATED = 8
"""A spike that no sample is to blame for counts as this many steps of the history: if it stays, it is ordinary after five."""
HISTORY = 64
WARM_UP = 16
# As a share of the median. With less spread, after a calm stretch ordinary batches would look like spikes.
MIN_SPREAD = 0.2
NEGATIVE = 0.5
"""Nats per token. Trl's documentation suggests it as `off_policy_mask_threshold`."""
MIN_ESS = 0.3
"""Share of the tokens. The health rule of verl's rollout correction."""


class GuardHistory(msgspec.Struct, frozen=True):
    """What the guard remembers, as in the state: comparable norms, see `Norms`, and the values of each sign."""

    norms: list[tuple[float, float]]
    signs: dict[str, list[float]]


class Norms(NamedTuple):
    """A gradient norm under two assumptions: tokens pull independently (`noise`), or all in one direction (`direction`).

    Expected norm: a healthy batch's gradient norm is proportional to it. The gradient is a sum over tokens of
    pull x d log p / d weights, where `pull` is everything that multiplies a token's log-probability: advantage, sample weight,
    importance weight, leash, one over the batch's tokens. By the chain rule each term is pull x (onehot - softmax) /
    temperature x (Jacobian of the logits), and the middle factor has length (1 - p) / temperature, within sqrt(2). Scores of
    tokens have mean 0 given the tokens before them, so as noise their squares add up (cf. the gradient noise scale,
    arXiv 1812.06162); if all samples teach the same, their lengths add up:

        noise     = sqrt(sum over tokens of (pull x (1 - p) / temperature)^2)
        direction =      sum over tokens of |pull| x (1 - p) / temperature

    Comparable norm: a batch's norm divided by both. Only the size of the Jacobian is left: it does not depend on the number
    of samples or tokens, on whitening, or on how sure the policy is.
    """

    noise: float
    direction: float

    def comparable(self, gradient_norm: float) -> Norms | None:
        """A norm in units of the expected norm; None if both are 0."""
        if self.noise > 0:
            return Norms(gradient_norm / self.noise, gradient_norm / self.direction)
        return None if gradient_norm <= 0 else Norms(math.inf, math.inf)


NO_NORMS = Norms(0.0, 0.0)
"""Of a batch that teaches nothing."""


def why_skip(
    history: GuardHistory,
    *,
    loss: float,
    gradient_norm: float,
    expected: Norms,
    signs: Mapping[str, float],
    spread: float,
) -> str:
    """The reason to skip a step, or empty. A spike of the norm must be one under both assumptions of `Norms`.

    `history`: skipped steps included: if a figure moves for good, so does its median. `gradient_norm`: before clipping. `signs`: see
    `signs_of`. `spread`: how many median absolute deviations above the median a figure may lie.
    """
    if not math.isfinite(loss):
        return "non_finite_loss"
    if not all(map(math.isfinite, (gradient_norm, *expected))):
        return "non_finite_gradient"
    limits, comparable = limits_of(history, spread), expected.comparable(gradient_norm)
    if comparable is not None and all(each > limits.get(name, math.inf) for name, each in comparable._asdict().items()):
        return SPIKE
    return next((reason for reason, value in signs.items() if value > limits.get(reason, math.inf)), "")


def signs_of(figures: Mapping[str, float], logged_surprise: float) -> dict[str, float]:
    """Reason to the value of a batch, from `LossSums.metrics`, `num_tokens`, and the mean of -log probability as logged.

    Without tokens there is none: text has no logged probability.
    """
    if not figures["num_tokens"]:
        return {}
    ess, num_tokens = figures["ess"], max(figures["num_tokens"], 1.0)
    return {
        "ess_spike": 1.0 / ess if ess > 0 else 0.0,
        "kl_spike": figures["k3"],
        "ratio_spike": figures["ratio_max"],
        "entropy_spike": abs(figures["entropy"] - logged_surprise) / (1.0 + TOKEN_NOISE / math.sqrt(num_tokens)),
    }


def limits_of(history: GuardHistory, spread: float) -> dict[str, float]:
    """Name of a sign of a step (`StepResult.signs`) to the value above which it is a spike. Too short a history gives none."""
    norms = zip(Norms._fields, zip(*history.norms, strict=True), strict=True) if history.norms else ()
    past = {**dict(norms), **history.signs}
    return {
        name: max(HARMLESS.get(name, 0.0), _limit(values, spread))
        for name, values in past.items()
        if len(values) >= WARM_UP
    }


def _limit(history: Sequence[float], spread: float) -> float:
    median = statistics.median(history)
    deviation = statistics.median(abs(norm - median) for norm in history)
    return median + spread * max(deviation, MIN_SPREAD * median)


def remember(
    history: GuardHistory, gradient_norm: float, expected: Norms, signs: Mapping[str, float], times: int = 1
) -> GuardHistory:
    """The history after a step that counts as `times` steps. It holds finite values only."""
    comparable = expected.comparable(gradient_norm)
    norms = [comparable] * times if comparable is not None and all(map(math.isfinite, comparable)) else []
    added = {
        reason: [*history.signs.get(reason, ()), *([value] * times if math.isfinite(value) else [])][-HISTORY:]
        for reason, value in signs.items()
    }
    return GuardHistory([*history.norms, *norms][-HISTORY:], {**history.signs, **added})


def log_ratios(experiences: Sequence[Experience], current_N: Sequence[float]) -> np.ndarray:
    """The mean of log(today's / logged probability) over each sample's tokens, float64 [N]; `current_N`: today's sum of log-probs."""
    found = np.zeros(len(experiences))
    for index, (item, current) in enumerate(zip(experiences, current_N, strict=True)):
        logged = [
            np.frombuffer(segment.logprobs, "<f4")[np.frombuffer(segment.loss_mask, np.uint8) == 1]
            for segment in item.segments
        ]
        found[index] = (current - sum(float(part.sum(dtype=np.float64)) for part in logged)) / sum(map(len, logged))
    return found


def has_left(log_ratio_N: np.ndarray, advantage_N: np.ndarray, bound: float) -> np.ndarray:
    """True for each sample that must leave the batch, bool [N]. NaN stays: the guard names it."""
    unlearned_N = (advantage_N < 0) & (log_ratio_N < -NEGATIVE)
    outside_N: np.ndarray = np.abs(log_ratio_N) > math.log(bound)
    return outside_N | unlearned_N if math.isfinite(bound) else np.zeros(len(log_ratio_N), dtype=bool)


def step_scale(ess: float) -> float:
    """What the learning rate of one step is multiplied by, in (0, 1]; `ess` in (0, 1], NaN without tokens."""
    return min(1.0, ess / MIN_ESS) if ess > 0 else 1.0


def by_lag(lags: Sequence[int], log_ratios: Sequence[float]) -> dict[str, float]:
    """Mean absolute log-ratio per token, by versions of lag: `0`, `1-2`, `3-8`, `9-32`, `33+`; only those there are."""
    edges = {"0": 0, "1-2": 2, "3-8": 8, "9-32": 32}
    found: dict[str, list[float]] = {}
    for lag, ratio in zip(lags, log_ratios, strict=True):
        found.setdefault(next((name for name, end in edges.items() if lag <= end), "33+"), []).append(abs(ratio))
    return {name: sum(found[name]) / len(found[name]) for name in (*edges, "33+") if name in found}
