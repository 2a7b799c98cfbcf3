"""Finds the parties that a train leaves out, see `parties.py`, among the answers that count. Pure.

The one that stands out most goes first, and the rest is looked at again, until nobody stands out, or those who went asked for `PRODUCT` of
live's answers: what more of them say is no exception.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from pipelines.release.train.answers import SCORED, UNSCORED
from pipelines.release.train.compare import Contrast, Floats
from pipelines.release.train.metrics import ANSWERS, GUARDRAILS, PRIMARY, RESPONSE, Better
from pipelines.release.train.parties import contradiction, may_leave, outweighing
from pipelines.release.train.strata import Strata

_NUM_COMPARISONS = len(GUARDRAILS) + 4


class _Stranger(NamedTuple):
    party: int
    why: str
    is_harmed: bool = False


class _Compared(NamedTuple):
    """One number of the answers of all tasks."""

    label: str
    better: Better
    plan: Contrast
    values: Floats
    is_log: bool = False


def leave_out_strangers(seen: Strata) -> list[str]:
    """Leave them out; returns the names of those for whom the canary is worse, by what they say themselves."""
    harmed, out = list[str](), set[int]()
    while len(seen.parties.names) > 1 and seen.counts.any():
        found = _oddest(seen, may_leave(seen.parties, out))
        if found is None:
            break
        seen.leave_out(found.party, found.why)
        out.add(found.party)
        if found.is_harmed:
            harmed.append(seen.parties.names[found.party])
    return harmed


def _oddest(seen: Strata, may_go: set[int]) -> _Stranger | None:
    broken = [party for party in seen.broken_parties() if party in may_go]
    if broken:
        return _Stranger(broken[0], "whose units of one arm come back or are lost")
    rows = np.flatnonzero(seen.counts)
    if (few := outweighing(seen.plan(rows), may_go)) is not None:
        return _Stranger(few, "a few of whose users outweigh all others")
    allowed = len(seen.parties.names) * _NUM_COMPARISONS
    found = [
        (abs(far), party, far, each)
        for each in _compared(seen)
        for party, aside in enumerate(each.plan.compare_parties(each.values, is_log=each.is_log))
        if party in may_go and abs(far := contradiction(aside, allowed, seen.settings.tuned_units)) > 1.0
    ]
    if not found:
        return None
    _, party, far, each = max(found, key=lambda item: item[0])
    is_harmed = (far > 0.0) == (each.better == "lower") and each.better != "same"
    return _Stranger(party, f"which contradicts all others about {each.label}", is_harmed)


def _compared(seen: Strata) -> Iterator[_Compared]:
    rows = np.flatnonzero(seen.counts)
    for place, metric in enumerate(GUARDRAILS.values()):
        values = seen.all.metrics[rows, place]
        present = ~np.isnan(values)
        if present.any():
            yield _Compared(metric.label, metric.better, seen.plan(rows[present]), values[present], metric.is_log)
    visits = seen.visits()
    plan = Contrast(visits.is_canary, seen.strata_of(visits), visits.unit, visits.party)
    yield _Compared(ANSWERS.label, ANSWERS.better, plan, visits.log_answers, is_log=True)
    aged = np.flatnonzero(seen.is_aged)
    failed = seen.all.status[aged] == UNSCORED
    if failed.any():
        yield _Compared("answers that graders fail on", "same", seen.plan(aged), failed.astype(float))
    graded = aged[~failed]
    known = (seen.all.status[graded] == SCORED) & ~np.isnan(seen.all.reward[graded])
    told = seen.all.metrics[graded, len(GUARDRAILS)]
    heard = np.where(np.isnan(told), known, told)
    if len(graded):
        yield _Compared(RESPONSE.label, RESPONSE.better, seen.plan(graded), heard)
    spoken = graded[known]
    if len(spoken):
        yield _Compared(PRIMARY.label, PRIMARY.better, seen.plan(spoken), seen.all.reward[spoken])
