"""Finds the parties that a train leaves out, see `parties.py`, among the answers that count. Pure.

The one that stands out most goes first, and the rest is looked at again, until nobody stands out, or those who went asked for `PRODUCT` of
live's answers: what more of them say is no exception.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from pipelines.release.train.answers import SCORED, UNSCORED
from pipelines.release.train.compare import Contrast
from pipelines.release.train.metrics import ANSWERS, GUARDRAILS, PRIMARY, RESPONSE
from pipelines.release.train.parties import Compared, Stranger, may_leave, oddest
from pipelines.release.train.strata import Strata

_NUM_COMPARISONS = len(GUARDRAILS) + 4


def leave_out_strangers(seen: Strata) -> list[str]:
    """Leave them out; returns the names of those for whom the canary is worse, by what they say themselves."""
    harmed, out = list[str](), set[int]()
    while len(seen.parties.names) > 1 and seen.counts.any():
        found = _oddest(seen, out)
        if found is None:
            break
        seen.leave_out(found.party, found.why)
        out.add(found.party)
        if found.is_harmed:
            harmed.append(seen.parties.names[found.party])
    return harmed


def _oddest(seen: Strata, out: set[int]) -> Stranger | None:
    may_go = may_leave(seen.parties, out)
    for party in seen.broken_parties():
        if party in may_go:
            return Stranger(party, "whose units of one arm come back or are lost")
    plan, num_tests = seen.plan(np.flatnonzero(seen.counts)), len(seen.parties.names) * _NUM_COMPARISONS
    return oddest(plan, _compared(seen), may_go, num_tests, seen.settings.tuned_units)


def _compared(seen: Strata) -> Iterator[Compared]:
    rows = np.flatnonzero(seen.counts)
    for place, metric in enumerate(GUARDRAILS.values()):
        values = seen.all.metrics[rows, place]
        present = ~np.isnan(values)
        if present.any():
            yield Compared(metric.label, metric.better, seen.plan(rows[present]), values[present], metric.is_log)
    visits = seen.visits()
    plan = Contrast(visits.is_canary, seen.strata_of(visits), visits.unit, visits.party)
    yield Compared(ANSWERS.label, ANSWERS.better, plan, visits.log_answers, is_log=True)
    aged = np.flatnonzero(seen.is_aged)
    failed = seen.all.status[aged] == UNSCORED
    if failed.any():
        yield Compared("answers that graders fail on", "same", seen.plan(aged), failed.astype(float))
    graded = aged[~failed]
    known = (seen.all.status[graded] == SCORED) & ~np.isnan(seen.all.reward[graded])
    told = seen.all.metrics[graded, len(GUARDRAILS)]
    heard = np.where(np.isnan(told), known, told)
    if len(graded):
        yield Compared(RESPONSE.label, RESPONSE.better, seen.plan(graded), heard)
    spoken = graded[known]
    if len(spoken):
        yield Compared(PRIMARY.label, PRIMARY.better, seen.plan(spoken), seen.all.reward[spoken])
