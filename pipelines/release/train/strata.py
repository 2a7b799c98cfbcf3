"""Which answers of a train count, and with which of the other arm they are compared. Pure.

A stratum is a time (`stratum_seconds`), the share that the canary had, the sampling, the task and who asked (`parties.py`): inside it the
draw alone decides who gets which arm. The share is told by the logged probabilities, not by clocks, so a slow clock or gateway mixes nothing.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pipelines.release.train.answers import SCORED, UNSCORED, Answers, TaskRule, grace_seconds
from pipelines.release.train.compare import Codes, Contrast, Floats
from pipelines.release.train.metrics import ANSWERS, GUARDRAILS, HEARD, NAMES, PRIMARY, RESPONSE, TOKENS, Metric
from pipelines.release.train.parties import PRODUCT, Compared, Stranger, may_leave, oddest, parties_of
from pipelines.release.train.sequences import LEVEL, UnitRatio, expected_share, sample_ratio, share_groups, units_of
from runtime.train_settings import TrainSettings

SKEW_SECONDS = 5.0
"""Clocks of gateways may be ahead of ours by so much."""
SETTLE_SECONDS = 30.0
"""An answer reaches us within this time, or within a shorter stage: until then its absence says nothing."""

_NUM_COMPARISONS = len(GUARDRAILS) + 4

Mask = NDArray[np.bool_]


class Standing(NamedTuple):
    """Where a train stands. Times are UTC epoch seconds."""

    stage: int
    """Index into the settings' stages; -1 in shadow."""
    stage_at: float
    started_at: float
    state: str
    """shadow, canary or stopped."""
    harmed_since: float = 0.0
    """When it began to seem worse for somebody alone, or now."""
    provider_share: float = 0.0
    """Of the provider in front with which the version is compared; 0: it is compared with the live version."""


class Strata:
    """The answers that count, with their strata."""

    def __init__(
        self,
        answers: Answers,
        tasks: Mapping[str, TaskRule],
        settings: TrainSettings,
        now: float,
        standing: Standing,
    ) -> None:
        self.settings, self._provider_share = settings, standing.provider_share
        self._share = settings.stages[max(standing.stage, 0)]
        self._settled_at = now - min(SETTLE_SECONDS, settings.stage_seconds)
        self.all = answers.columns()
        names = answers.names("task")
        self.tasks = [(code, name) for code, name in enumerate(names) if name in tasks]
        has_rule = np.array([name in tasks for name in names], np.bool_)
        self._probabilities = answers.names("probability")
        self._no_cluster = next((code for code, name in enumerate(answers.names("cluster")) if not name), -1)
        future, early = self.all.at > now + SKEW_SECONDS, self.all.at < standing.started_at
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
        # A provider samples by settings of its own: what was asked of either arm is the same.
        sampling = np.zeros_like(groups) if self._provider_share else self.all.sampling
        places = (self.bucket, groups, sampling, self.all.task, self.parties.of)
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
        self._kinds = answers.names("unit_kind")
        self._count()

    def _count(self) -> None:
        valid = self._valid
        self.num_units = units_of(self.all.unit[valid], self.all.is_canary[valid])
        kind_of = np.full(int(self.all.unit.max(initial=-1)) + 1, -1, np.int64)
        kind_of[self.all.unit[valid]] = self.all.unit_kind[valid]
        num_of_kind = np.bincount(kind_of[kind_of >= 0], minlength=len(self._kinds))
        self.unit_kinds = {name: int(num) for name, num in zip(self._kinds, num_of_kind, strict=True) if num}
        self.newest_at = float(self.all.at[valid].max()) if valid.any() else None

    def leave_out_strangers(self) -> list[str]:
        """Leave out those who stand out; returns the names of those for whom the canary is worse, by what they say themselves.

        The one that stands out most goes first, and the rest is looked at again, until nobody does, or those who went asked for `PRODUCT`
        of live's answers: what more of them say is no exception.
        """
        harmed, out = list[str](), set[int]()
        while len(self.parties.names) > 1 and self.counts.any() and (found := self._oddest(out)) is not None:
            self._leave_out(found.party, found.why)
            out.add(found.party)
            if found.is_harmed:
                harmed.append(self.parties.names[found.party])
        return harmed

    def _oddest(self, out: set[int]) -> Stranger | None:
        may_go = may_leave(self.parties, out)
        if (broken := next((party for party in self._broken_parties() if party in may_go), None)) is not None:
            return Stranger(broken, "whose units of one arm come back or are lost")
        rows, num_tests = np.flatnonzero(self.counts), len(self.parties.names) * _NUM_COMPARISONS
        return oddest(self.plan(rows), self._compared(rows), may_go, num_tests, self.settings.tuned_units)

    def _compared(self, rows: Codes) -> Iterator[Compared]:
        for metric, _, plan, values in self.guardrails(rows):
            yield Compared(metric.label, metric.better, plan, values, metric.is_log)
        yield Compared(ANSWERS.label, ANSWERS.better, *self.visits(), is_log=True)
        aged = np.flatnonzero(self.is_aged)
        failed = self.all.status[aged] == UNSCORED
        if failed.any():
            yield Compared("answers that graders fail on", "same", self.plan(aged), failed.astype(float))
        graded = aged[~failed]
        known, heard = self.known(graded)
        if len(graded):
            yield Compared(RESPONSE.label, RESPONSE.better, self.plan(graded), heard)
        if len(spoken := graded[known]):
            yield Compared(PRIMARY.label, PRIMARY.better, self.plan(spoken), self.all.reward[spoken])

    def _leave_out(self, party: int, why: str) -> None:
        """No answer of a party counts any more. `why`: after its name."""
        gone = self._valid & (self.parties.of == party)
        self.left_out[f"of {self.parties.names[party]}, {why}"] = int(gone.sum())
        for mask in (self._valid, self.counts, self.is_aged, self._unpaired):
            mask[gone] = False
        self._count()

    def _share_groups(self) -> Codes:
        """For each answer the number of its group of probabilities, -1 if the other arm has none that fits."""
        codes, valid, arm = self.all.probability, self._valid, self.all.is_canary
        used = [np.flatnonzero(np.bincount(codes[valid & mine])) for mine in (arm, ~arm)]
        by_value = [{self._probabilities[code]: int(code) for code in found} for found in used]
        of_code = np.full((2, len(self._probabilities) + 1), -1, np.int64)
        self.shares = list[float]()
        for group in share_groups(by_value[0], by_value[1], self.settings.stages, self.rest_share):
            places = [(0, by_value[0][group.canary]), (1, by_value[1][group.live])]
            number = max((int(of_code[place]) for place in places), default=-1)
            if number < 0:
                number = len(self.shares)
                self.shares.append(group.share)
            for place in places:
                of_code[place] = number
        return of_code[np.where(arm, 0, 1), codes]

    @property
    def rest_share(self) -> float:
        """Of those who do not get the canary, the part whose arm is compared with it."""
        return self._provider_share or 1.0

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

    def visits(self) -> tuple[Contrast, Floats]:
        """How units at one share of the canary are compared, those of one party with each other; and how many answers of each reached us.

        The numbers are logarithms, so that no single unit outweighs the others.
        """
        settled, num_parties = np.flatnonzero(self._settled), len(self.parties.names)
        places = self.all.unit[settled] * (len(self.shares) + 1) + self._stage_of[settled]
        _, first, num = np.unique(
            places * num_parties + self.parties.of[settled], return_index=True, return_counts=True
        )
        rows = settled[first]
        party, unit = self.parties.of[rows], self.all.unit[rows]
        return Contrast(self.all.is_canary[rows], self._stage_of[rows] * num_parties + party, unit, party), np.log(num)

    def guardrails(self, rows: Codes) -> Iterator[tuple[Metric, Mask, Contrast, Floats]]:
        """By guardrail: which of some answers have it, how these are compared, and their values."""
        whole = self.plan(rows)
        for place, metric in enumerate(GUARDRAILS.values()):
            if metric.name == TOKENS and self._provider_share:
                continue  # each model counts by a tokenizer of its own
            values = self.all.metrics[rows, place]
            present = ~np.isnan(values)
            if present.any():
                yield metric, present, whole if present.all() else self.plan(rows[present]), values[present]

    def known(self, rows: Codes) -> tuple[Mask, Floats]:
        """Which of some answers have a reward, and which users spoke of."""
        known = (self.all.status[rows] == SCORED) & ~np.isnan(self.all.reward[rows])
        told = self.all.metrics[rows, NAMES.index(HEARD)]
        return known, np.where(np.isnan(told), known, told)

    def plan(self, rows: Codes) -> Contrast:
        """How some answers are compared."""
        return Contrast(self.all.is_canary[rows], self.strata[rows], self.all.unit[rows], self.parties.of[rows])

    def clusters(self) -> Codes:
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
        settled = self._settled & kept
        found = list[UnitRatio]()
        for number, share in enumerate(self.shares):
            mine = settled & (self._stage_of == number)
            found.append(self._ratio(units_of(self.all.unit[mine], self.all.is_canary[mine]), share))
        found += self._arms_without_the_other(kept)
        return max(found, key=lambda ratio: (ratio.is_broken, ratio.num), default=self._ratio((0, 0), self._share))

    def _broken_parties(self) -> list[int]:
        """The parties whose own units break the ratio of some stage."""
        settled, num, found = self._settled, len(self.parties.names), set[int]()
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

    @property
    def _settled(self) -> Mask:
        """The answers that count and whose absence would say something."""
        return self.counts & (self.all.at <= self._settled_at)

    def _arms_without_the_other(self, kept: Mask) -> list[UnitRatio]:
        """Broken ratios of answers that were drawn by a share at which nothing of the other arm reached us."""
        settled = self._unpaired & kept & (self.all.at <= self._settled_at)
        found = list[UnitRatio]()
        for code in np.flatnonzero(np.bincount(self.all.probability[settled])):
            mine = settled & (self.all.probability == code)
            num_canary, num_live = units_of(self.all.unit[mine], self.all.is_canary[mine])
            found += [self._ratio((num_canary, 0), self._share), self._ratio((0, num_live), self._share)]
        return [ratio for ratio in found if ratio.is_broken]

    def _ratio(self, num: tuple[int, int], share: float, num_tests: int = 1) -> UnitRatio:
        return sample_ratio(
            *num,
            expected=expected_share(share, self.settings.control_ratio, self.rest_share),
            level=LEVEL / (2 * len(self.settings.stages)) / num_tests,
            tuned_units=self.settings.tuned_units,
        )


def _dense(codes: tuple[Codes, ...], counts: Mask) -> Codes:
    """One small number for each combination of codes; 0 for answers that do not count."""
    combined = np.zeros(len(counts), np.int64)
    for code in codes:
        combined = combined * (int(code[counts].max(initial=0)) + 1) + code
    combined[~counts] = 0
    limit = int(combined.max(initial=0)) + 1
    if limit <= 4 * len(counts) + 1:
        return combined
    return np.unique(combined, return_inverse=True)[1].astype(np.int64)
