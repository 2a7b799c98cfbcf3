"""Which answers of a train count, and with which of the other arm they are compared. Pure.

A stratum is a time (`stratum_seconds`), the share that the canary had, the sampling, the task and who asked (`parties.py`): inside it the
draw alone decides who gets which arm. The share is told by the logged probabilities, not by clocks, so a slow clock or gateway mixes nothing.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pipelines.release.train.answers import Answers, TaskRule, grace_seconds
from pipelines.release.train.compare import Contrast
from pipelines.release.train.parties import PRODUCT, parties_of
from pipelines.release.train.ratio import LEVEL, UnitRatio, expected_share, sample_ratio, share_groups, units_of
from runtime.train_settings import TrainSettings

SKEW_SECONDS = 5.0
"""Clocks of gateways may be ahead of ours by so much."""
SETTLE_SECONDS = 30.0
"""An answer reaches us within this time, or within a shorter stage: until then its absence says nothing."""

Mask = NDArray[np.bool_]


class UnitVisits(NamedTuple):
    """A unit at one share of the canary, each in the same place of all."""

    is_canary: Mask
    share: NDArray[np.int64]
    unit: NDArray[np.int64]
    party: NDArray[np.int64]
    log_answers: NDArray[np.float64]
    """Logarithm of the number of its answers, so that no single unit outweighs the others."""


class Strata:
    """The answers that count, with their strata."""

    def __init__(
        self,
        answers: Answers,
        tasks: Mapping[str, TaskRule],
        settings: TrainSettings,
        now: float,
        *,
        started_at: float,
        stage: int,
    ) -> None:
        self.settings, self.now = settings, now
        self._share = settings.stages[max(stage, 0)]
        self._settle_seconds = min(SETTLE_SECONDS, settings.stage_seconds)
        self.all = answers.columns()
        names = answers.names("task")
        self.tasks = [(code, name) for code, name in enumerate(names) if name in tasks]
        has_rule = np.array([name in tasks for name in names], np.bool_)
        self._probabilities = answers.names("probability")
        self._no_cluster = next((code for code, name in enumerate(answers.names("cluster")) if not name), -1)
        future, early = self.all.at > now + SKEW_SECONDS, self.all.at < started_at
        strange = ~has_rule[self.all.task] if len(self.all.task) else future
        self._valid: Mask = ~(future | early | strange)
        groups = self._share_groups()
        self._unpaired = self._valid & (groups < 0)
        self.counts = self._valid & (groups >= 0)
        self._stage_of = groups
        ages = [tasks[name].age_seconds if name in tasks and tasks[name].has_primary else math.inf for name in names]
        waits = np.array([age + grace_seconds(age) for age in ages])
        self.is_aged: Mask = self.counts & (self.all.at <= now - waits[self.all.task]) if names else self.counts
        """The answers of tasks with a reward that are old enough for it to be compared."""
        arm = self.all.is_canary
        asked_by = (answers.names("tenant"), answers.names("api_key"))
        self.parties = parties_of((self.all.tenant, self.all.api_key), asked_by, self.counts, self.counts & ~arm)
        bucket = np.floor_divide(self.all.at, settings.stratum_seconds)
        self.bucket = (bucket - (bucket[self.counts].min() if self.counts.any() else 0.0)).astype(np.int64)
        places = (self.bucket, groups, self.all.sampling, self.all.task, self.parties.of)
        self.strata = _dense(places, self.counts)
        self.left_out = {
            reason: num
            for reason, num in (
                *answers.left_out.items(),
                ("from the future", int(future.sum())),
                ("from before the departure", int((early & ~future).sum())),
                ("of a task without rules", int((strange & ~early & ~future).sum())),
                ("drawn by a share that the other arm did not have", int(self._unpaired.sum())),
            )
            if num
        }
        self._count(answers.names("unit_kind"))

    def _count(self, kinds: list[str]) -> None:
        valid = self._valid
        self.num_units = units_of(self.all.unit[valid], self.all.is_canary[valid])
        self._kind_names, self.unit_kinds = kinds, self._kinds(kinds)
        self.newest_at = float(self.all.at[valid].max()) if valid.any() else None

    def leave_out(self, party: int, why: str) -> None:
        """No answer of a party counts any more. `why`: after its name."""
        gone = self._valid & (self.parties.of == party)
        self.left_out[f"of {self.parties.names[party]}, {why}"] = int(gone.sum())
        self._valid &= ~gone
        self.counts &= ~gone
        self.is_aged &= ~gone
        self._unpaired &= ~gone
        self._count(self._kind_names)

    def _kinds(self, names: list[str]) -> dict[str, int]:
        """How many units there are of each kind."""
        kind_of = np.full(int(self.all.unit.max(initial=-1)) + 1, -1, np.int64)
        kind_of[self.all.unit[self._valid]] = self.all.unit_kind[self._valid]
        num = np.bincount(kind_of[kind_of >= 0], minlength=len(names))
        return {name: int(found) for name, found in zip(names, num, strict=True) if found}

    def _share_groups(self) -> NDArray[np.int64]:
        """For each answer the number of its group of probabilities, -1 if the other arm has none that fits."""
        codes, valid, arm = self.all.probability, self._valid, self.all.is_canary
        used = [np.flatnonzero(np.bincount(codes[valid & mine])) for mine in (arm, ~arm)]
        by_value = [{self._probabilities[code]: int(code) for code in found} for found in used]
        of_code = np.full((2, len(self._probabilities) + 1), -1, np.int64)
        self.shares = list[float]()
        for group in share_groups(by_value[0], by_value[1], self.settings.stages):
            places = [(0, by_value[0][group.canary]), (1, by_value[1][group.live])]
            number = max((int(of_code[place]) for place in places), default=-1)
            if number < 0:
                number = len(self.shares)
                self.shares.append(group.share)
            for place in places:
                of_code[place] = number
        return of_code[np.where(arm, 0, 1), codes]

    @functools.cached_property
    def num_stage_units(self) -> int:
        """Units of the canary that were heard of at the share of this stage."""
        groups = [number for number, found in enumerate(self.shares) if found == self._share]
        mine = self.counts & self.all.is_canary & np.isin(self._stage_of, groups)
        return int(np.count_nonzero(np.bincount(self.all.unit[mine])))

    @functools.cached_property
    def num_aged_units(self) -> int:
        """Units of the canary with an answer of the comparing age."""
        return int(np.count_nonzero(np.bincount(self.all.unit[self.is_aged & self.all.is_canary])))

    def visits(self) -> UnitVisits:
        """How many answers of each unit have reached us."""
        settled = np.flatnonzero(self.counts & (self.all.at <= self.now - self._settle_seconds))
        places = self.all.unit[settled] * (len(self.shares) + 1) + self._stage_of[settled]
        places = places * len(self.parties.names) + self.parties.of[settled]
        _, first, num = np.unique(places, return_index=True, return_counts=True)
        rows = settled[first]
        return UnitVisits(
            self.all.is_canary[rows], self._stage_of[rows], self.all.unit[rows], self.parties.of[rows], np.log(num)
        )

    def strata_of(self, visits: UnitVisits) -> NDArray[np.int64]:
        """Units are compared with those of the same party at the same share."""
        return visits.share * len(self.parties.names) + visits.party

    def plan(self, rows: NDArray[np.int64]) -> Contrast:
        """How some answers are compared."""
        return Contrast(self.all.is_canary[rows], self.strata[rows], self.all.unit[rows], self.parties.of[rows])

    def clusters(self) -> NDArray[np.int64]:
        """The codes of the clusters of each task, -1 for none."""
        codes = self.all.cluster * (int(self.all.task.max(initial=0)) + 1) + self.all.task
        return np.where(self.all.cluster == self._no_cluster, -1, codes)

    def sample_ratio(self) -> UnitRatio:
        """The worst of the stages so far. It is broken only if it is without each party that is not most of the product, too."""
        found = self._worst_ratio(np.ones_like(self.counts))
        others = [party for party, share in enumerate(self.parties.share) if share <= PRODUCT]
        if found.is_broken and not all(self._worst_ratio(self.parties.of != party).is_broken for party in others):
            return found._replace(is_broken=False, is_proven=False)
        return found

    def _worst_ratio(self, kept: Mask) -> UnitRatio:
        """Each stage is tested alone, because people of an earlier one come back."""
        settled = self.counts & kept & (self.all.at <= self.now - self._settle_seconds)
        found = list[UnitRatio]()
        for number, share in enumerate(self.shares):
            mine = settled & (self._stage_of == number)
            found.append(self._ratio(units_of(self.all.unit[mine], self.all.is_canary[mine]), share))
        found += self._arms_without_the_other(kept)
        return max(found, key=lambda ratio: (ratio.is_broken, ratio.num), default=self._ratio((0, 0), self._share))

    def broken_parties(self) -> list[int]:
        """The parties whose own units break the ratio of some stage."""
        settled = self.counts & (self.all.at <= self.now - self._settle_seconds)
        num, found = len(self.parties.names), set[int]()
        for number, share in enumerate(self.shares):
            mine = settled & (self._stage_of == number)
            canary, live = (
                np.bincount(np.unique(self.all.unit[arm] * num + self.parties.of[arm]) % num, minlength=num)
                for arm in (mine & self.all.is_canary, mine & ~self.all.is_canary)
            )
            found |= {
                party
                for party in range(num)
                if self._ratio((int(canary[party]), int(live[party])), share, num).is_broken
            }
        return sorted(found)

    def _arms_without_the_other(self, kept: Mask) -> list[UnitRatio]:
        """Broken ratios of answers that were drawn by a share at which nothing of the other arm reached us."""
        settled = self._unpaired & kept & (self.all.at <= self.now - self._settle_seconds)
        found = list[UnitRatio]()
        for code in np.flatnonzero(np.bincount(self.all.probability[settled])):
            mine = settled & (self.all.probability == code)
            num_canary, num_live = units_of(self.all.unit[mine], self.all.is_canary[mine])
            found += [self._ratio((num_canary, 0), self._share), self._ratio((0, num_live), self._share)]
        return [ratio for ratio in found if ratio.is_broken]

    def _ratio(self, num: tuple[int, int], share: float, num_tests: int = 1) -> UnitRatio:
        return sample_ratio(
            *num,
            expected=expected_share(share, self.settings.control_ratio),
            level=LEVEL / (2 * len(self.settings.stages)) / num_tests,
            tuned_units=self.settings.tuned_units,
        )


def _dense(codes: tuple[NDArray[np.int64], ...], counts: Mask) -> NDArray[np.int64]:
    """One small number for each combination of codes; 0 for answers that do not count."""
    combined = np.zeros(len(counts), np.int64)
    for code in codes:
        combined = combined * (int(code[counts].max(initial=0)) + 1) + code
    combined[~counts] = 0
    limit = int(combined.max(initial=0)) + 1
    if limit <= 4 * len(counts) + 1:
        return combined
    return np.unique(combined, return_inverse=True)[1].astype(np.int64)
