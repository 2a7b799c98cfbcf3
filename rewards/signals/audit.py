"""The mean reward of a version, from its known rewards and a random audit of the other answers. Pure.

Rewards from users are biased: who reacts depends on what they think, and no observation shows by how much (missing not at random). So
for answers without any reaction an audit judge stands in. That is valid only if it measures the same as the reward, which can be tested
on answers that have both: otherwise nothing is estimated.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import reduce
from statistics import NormalDist
from typing import NamedTuple

from contracts.errors import InvalidValue
from rewards.signals.estimates import Estimate, mean_of, pooled
from rewards.sums import Sums

MIN_COMPARED = 30
"""Answers with both a reward and an audit that are needed to test whether both mean the same."""
MARGIN = 0.1
"""Share of the range of rewards: two means count as the same if they surely differ by less."""
_CONFIDENCE = 0.95
_ROUNDING = 1e-9


class Accuracy(NamedTuple):
    """How accurate an audit judge is: P(says good | is good), P(says bad | is bad), and the labelled cases behind each (none: exact)."""

    sensitivity: float
    specificity: float
    num_good: float = math.inf
    num_bad: float = math.inf


def rogan_gladen(said_good: Estimate, judge: Accuracy) -> Estimate:
    """The share of good answers, from the share that an imperfect judge calls good.

    (p + specificity - 1) / (sensitivity + specificity - 1), cut to [0, 1]. Rogan & Gladen, Am. J. Epidemiology 107, 1978.
    The error includes the uncertainty of the judge's rates, by the delta method:
    (SE(p)^2 + (1 - v)^2 spec (1 - spec) / num_bad + v^2 sens (1 - sens) / num_good) / (sens + spec - 1)^2.
    Raises InvalidValue if the judge is no better than a coin.
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
    return Estimate(share, math.sqrt(squared) / informed, said_good.degrees)


class VersionAudit(NamedTuple):
    """Sums over the first revisions of a version's samples. Values are shares of the task's range of rewards.

    `said`: rewards that a user decided. `rewarded`: all rewards. `silent`: samples without a reward; only their number. Of samples with a
    reward: `audited`: audit values, `compared`: rewards, `differences`: audit - reward. `audited_silent`: audit values of the others.
    """

    said: Sums = Sums()
    rewarded: Sums = Sums()
    silent: Sums = Sums()
    audited: Sums = Sums()
    compared: Sums = Sums()
    differences: Sums = Sums()
    audited_silent: Sums = Sums()

    @property
    def num(self) -> int:
        """The number of all samples."""
        return self.rewarded.num + self.silent.num

    def corrected(self, judge: Accuracy | None = None) -> Estimate:
        """The mean reward of all samples. Audits stand in for missing rewards, corrected if the judge's errors are known.

        Two strata, whose sizes are random too: SE^2 = p^2 SE_1^2 + (1 - p)^2 SE_2^2 + p (1 - p) (m_1 - m_2)^2 / N.
        """
        measured = mean_of(self.rewarded)
        if not self.silent.num:
            return measured
        silent = mean_of(self.audited_silent)
        if judge is not None:
            silent = rogan_gladen(silent, judge)
        if not self.rewarded.num:
            return silent
        share = self.rewarded.num / self.num
        between = math.sqrt(share * (1 - share) / self.num) * abs(measured.value - silent.value)
        return pooled(
            share * measured.value + (1 - share) * silent.value,
            [
                Estimate(0.0, share * measured.error, measured.degrees),
                Estimate(0.0, (1 - share) * silent.error, silent.degrees),
                Estimate(0.0, between, self.num - 1),
            ],
        )


def audit_of_sample(share: float | None, audited: float | None, *, is_said: bool) -> VersionAudit:
    """The sums of a single sample. `share`: its reward, if it has one; `is_said`: a user decided it."""
    audit = Sums() if audited is None else _once(audited)
    if share is None:
        return VersionAudit(silent=Sums(1), audited_silent=audit)
    known = VersionAudit(said=_once(share) if is_said else Sums(), rewarded=_once(share))
    if audited is None:
        return known
    return known._replace(audited=audit, compared=_once(share), differences=_once(audited - share))


def _once(value: float) -> Sums:
    return Sums(1, value, value * value)


def together(versions: Iterable[VersionAudit]) -> VersionAudit:
    """The sums of all versions."""
    return VersionAudit(*(reduce(Sums.plus, sums) for sums in zip(VersionAudit(), *versions, strict=True)))


def why_different(known: VersionAudit, judge: Accuracy | None = None) -> str:
    """Why the audit cannot stand in for a missing reward; empty if it can.

    On the answers that have both, the means must surely lie within a tenth of the range, and the two be positively correlated.
    """
    num = known.differences.num
    if num < MIN_COMPARED:
        return f"only {num} answers have both a reward and an audit; it takes {MIN_COMPARED} to test whether they mean the same"
    apart = mean_of(known.differences)
    if judge is not None:
        audit, reward = rogan_gladen(mean_of(known.audited), judge), mean_of(known.compared)
        apart = pooled(audit.value - reward.value, [audit, reward])
    low, high = apart.interval(_CONFIDENCE)
    if low < -MARGIN or high > MARGIN:
        return (
            f"on the {num} answers that have both, the audit lies {apart.value:+.0%} of the range from the reward "
            f"({low:+.0%} to {high:+.0%}), and to mean the same they must differ by less than {MARGIN:.0%}"
        )
    is_correlated = _lowest_correlation(known) > 0.0
    return "" if is_correlated else f"on the {num} answers that have both, audit and reward are not surely correlated"


def _lowest_correlation(known: VersionAudit) -> float:
    """The lower end of the interval of Pearson's r between audit and reward (Fisher's z, 1915); 1 if both never change."""
    audit, reward, apart = (_spread(sums) for sums in (known.audited, known.compared, known.differences))
    if audit == reward == 0.0:
        return 1.0
    if audit == 0.0 or reward == 0.0:
        return 0.0
    r = (audit + reward - apart) / 2.0 / math.sqrt(audit * reward)
    if r >= 1.0 - _ROUNDING:
        return 1.0
    z = math.atanh(max(r, -1.0 + _ROUNDING))
    return math.tanh(z - NormalDist().inv_cdf(0.5 + _CONFIDENCE / 2) / math.sqrt(known.audited.num - 3))


def _spread(sums: Sums) -> float:
    found = sums.squares - sums.total**2 / sums.num
    return found if found > _ROUNDING * sums.num else 0.0
