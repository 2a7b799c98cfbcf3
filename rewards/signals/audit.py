"""The mean reward of a version, from what is known of every sample and a random audit of a few. Pure.

Users' own word is biased: who is unhappy answers more often than others, or less, and nothing that is observed says how
much (missing not at random). An audit drawn at random is not. What every sample has, such as users' signals with some value
for silence or a cheap judge, is the prediction; the audit measures how far it is off on average.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from contracts.errors import InvalidValue
from rewards.monitors.evidence import Sums
from rewards.signals.estimates import Estimate, mean_of, sums_of


def prediction_powered(predictions: Sums, differences: Sums) -> Estimate:
    """Mean over all N of the prediction + mean over the n audited of (audited value - prediction).

    Unbiased whatever the predictions are worth: good ones only make the error smaller.
    SE^2 = Var(prediction) / N + Var(difference) / n. Angelopoulos et al., Prediction-Powered Inference, Science 382, 2023.

    Args:
        predictions: of every sample, audited or not.
        differences: audited value - prediction, of the audited ones. Every sample had the same chance to be among them.
    """
    predicted, off = mean_of(predictions), mean_of(differences)
    return Estimate(predicted.value + off.value, math.hypot(predicted.error, off.error))


def tuned(predictions: ArrayLike, audited: ArrayLike, audited_predictions: ArrayLike) -> Estimate:
    """As `prediction_powered`, with the predictions scaled by lambda, so that useless ones do no harm.

    mean_n(audited) + lambda (mean_N(prediction) - mean_n(prediction)), lambda = Cov(audited, prediction) /
    ((1 + n / N) Var(prediction)). Angelopoulos, Duchi, Zrnic, PPI++, 2023 (arXiv 2311.01453), example of the mean.

    Args:
        predictions: of all N samples.
        audited: values of n >= 2 samples drawn at random.
        audited_predictions: of the same n.
    """
    of_all, truth, guess = (np.asarray(values, np.float64) for values in (predictions, audited, audited_predictions))
    share = len(truth) / len(of_all)
    spread = (1 + share) * float(of_all.var())
    scale = float(np.cov(truth, guess)[0, 1]) / spread if spread > 0 else 0.0
    return prediction_powered(sums_of(scale * of_all), sums_of(truth - scale * guess))


class Accuracy(NamedTuple):
    """How good an audit judge is, from labels. Without counts it counts as known exactly."""

    sensitivity: float
    """P(says good | is good)."""
    specificity: float
    """P(says bad | is bad)."""
    num_good: float = math.inf
    """Labelled cases behind the first."""
    num_bad: float = math.inf
    """Labelled cases behind the second."""


def rogan_gladen(said_good: Estimate, judge: Accuracy) -> Estimate:
    """The share of good answers, from the share that an imperfect judge calls good.

    (p + specificity - 1) / (sensitivity + specificity - 1), cut to [0, 1]. Rogan & Gladen, Am. J. Epidemiology 107, 1978.
    The error counts that of the judge's own rates, by the delta method:
    (SE(p)^2 + (1 - v)^2 spec (1 - spec) / num_bad + v^2 sens (1 - sens) / num_good) / (sens + spec - 1)^2.

    Raises:
        InvalidValue: the judge is no better than a coin.
    """
    informed = judge.sensitivity + judge.specificity - 1.0
    if informed <= 0:
        raise InvalidValue(
            f"a judge with sensitivity {judge.sensitivity:g} and specificity {judge.specificity:g} says nothing: they "
            "must add up to more than 1; choose another judge or rubric",
            param="judge",
        )
    share = min(1.0, max(0.0, (said_good.value + judge.specificity - 1.0) / informed))
    squared = (
        said_good.error**2
        + (1 - share) ** 2 * judge.specificity * (1 - judge.specificity) / judge.num_bad
        + share**2 * judge.sensitivity * (1 - judge.sensitivity) / judge.num_good
    )
    return Estimate(share, math.sqrt(squared) / informed)


class Known(NamedTuple):
    """What is known of one version: shares of its task's range, each as the first revision of a sample had it.

    Predictions may get better with every revision, but then the audited ones would have to follow.
    """

    said: Sums = Sums()
    """Of the samples about which a user said something."""
    predicted: Sums = Sums()
    """Of all samples: their reward, one half where there was none."""
    difference: Sums = Sums()
    """Audit - prediction, of the audited."""

    @property
    def naive(self) -> Estimate:
        """The mean of those who spoke."""
        return mean_of(self.said)

    @property
    def corrected(self) -> Estimate:
        """The mean of all."""
        return prediction_powered(self.predicted, self.difference)
