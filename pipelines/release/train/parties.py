"""Who asked for the answers of a comparison, and when one of them is left out of it. Pure.

A client names its own users and sees in each answer which arm it got. So it may come back with units of one arm alone, or judge the
arms by what it wants. A *party* is what a client cannot choose: a tenant, or an API key of a tenant that is most of the product. Only the
same party's answers are compared with each other, and one party is left out of all comparisons if

    its own sample ratio is broken             it comes back with units of one arm, or only its records are lost
    a few of its units outweigh all others     without it, the comparison knows more
    it contradicts all others beyond chance    its arms differ otherwise than theirs, in any metric

A party with more than `PRODUCT` of live's answers is the product: the others cannot be called right. So a party without rivals decides
alone. Shares are of live's answers, because no client knows which units of live are compared.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pipelines.release.train.compare import Aside, Codes, Contrast, Floats
from pipelines.release.train.metrics import Better
from pipelines.release.train.sequences import two_sided

PRODUCT = 0.4
_EARLY, _LEAST_TUNED = 20.0, 20.0
"""A party is judged early: its sequences are narrowest at this part of the settings' units."""
LEVEL = 0.01
"""Chance that any party of a train is ever left out although it is like the others, divided among parties and metrics."""
FEW_UNITS = 0.8
"""Of the variance: a party without which less is left is left out."""
SEVERAL = "several who ask little"
_LITTLE = 0.02
"""Of an arm's answers: parties that ask for less are one party together, so that strata do not become too small."""


class Parties(NamedTuple):
    """Who asked for each answer."""

    of: Codes
    names: list[str]
    share: NDArray[np.float64]


class Compared(NamedTuple):
    """One number of the answers of all tasks."""

    label: str
    better: Better
    plan: Contrast
    values: Floats
    is_log: bool = False


class Stranger(NamedTuple):
    """A party that is left out. `why`: after its name. `is_harmed`: the canary is worse for it, by what it says itself."""

    party: int
    why: str
    is_harmed: bool = False


def parties_of(
    asked_by: tuple[Codes, Codes],
    names: tuple[Sequence[str], Sequence[str]],
    counts: NDArray[np.bool_],
    live: NDArray[np.bool_],
) -> Parties:
    """The parties of some answers.

    `asked_by`: tenant and key of each answer, as codes; `names`: of both, by code; `counts`: the answers that are compared; `live`: those
    of them that live gave.
    """
    tenants, keys = asked_by
    if len(names[0]) < 2 and len(names[1]) < 2:  # noqa: PLR2004 the usual home, of which nothing else is to be computed
        return Parties(np.zeros(len(tenants), np.int64), [""], np.ones(1))
    is_product = _shares(tenants, live, len(names[0])) > PRODUCT
    codes = np.where(is_product[tenants], len(names[0]) + keys, tenants)
    num = len(names[0]) + len(names[1])
    most = np.maximum(_shares(codes, live, num), _shares(codes, counts & ~live, num))
    codes = np.where(most[codes] < _LITTLE, num, codes)
    present = np.flatnonzero(np.bincount(codes, minlength=num + 1))
    if not len(present):
        return Parties(np.zeros(len(tenants), np.int64), [""], np.ones(1))
    place = np.zeros(num + 1, np.int64)
    place[present] = np.arange(len(present))
    named = [*names[0], *(f"key {name or 'of an older release'}" for name in names[1]), SEVERAL]
    found = place[codes]
    return Parties(found, [named[code] for code in present], _shares(found, live, len(present)))


def oddest(
    plan: Contrast, compared: Iterable[Compared], may_go: Collection[int], num_tests: int, tuned_units: int
) -> Stranger | None:
    """The party of `may_go` that stands out most; None if none does.

    `compared` is not read if a few units outweigh all others; `num_tests`: how many numbers of parties are looked at, at most.
    """
    if not may_go:
        return None
    few = {party: value for party, value in enumerate(plan.concentrations()) if party in may_go and value < FEW_UNITS}
    if few:
        return Stranger(min(few, key=lambda party: few[party]), "a few of whose users outweigh all others")
    found = [
        (abs(far), party, far, each)
        for each in compared
        for party, aside in enumerate(each.plan.compare_parties(each.values, is_log=each.is_log))
        if party in may_go and abs(far := _contradiction(aside, num_tests, tuned_units)) > 1.0
    ]
    if not found:
        return None
    _, party, far, each = max(found, key=lambda item: item[0])
    is_harmed = (far > 0.0) == (each.better == "lower") and each.better != "same"
    return Stranger(party, f"which contradicts all others about {each.label}", is_harmed)


def may_leave(parties: Parties, out: Collection[int]) -> set[int]:
    """The parties that may be left out too: all that went must not be most of the product."""
    gone = sum(float(parties.share[party]) for party in out)
    return {party for party, share in enumerate(parties.share) if gone + share <= PRODUCT}.difference(out)


def others_of(asides: Iterable[Aside]) -> list[Aside]:
    """Those without whom a verdict must hold as well: all that are not most of the product."""
    return [aside for aside in asides if aside.share <= PRODUCT]


def _contradiction(aside: Aside, num_tests: int, tuned_units: int) -> float:
    """How far a party differs from all others, divided by the most that chance allows at any look: above 1 it is no chance. Negative: downwards."""
    own, others = aside.alone, aside.without
    if own is None or others is None:
        return 0.0
    variance = sum(max(one.variance, one.variance_if_equal) for one in (own, others))
    time = (own.spread + others.spread) / variance
    allowed = math.sqrt(variance) * two_sided(time, LEVEL / num_tests, max(_LEAST_TUNED, tuned_units / _EARLY))
    return (own.difference - others.difference) / allowed


def _shares(codes: Codes, mask: NDArray[np.bool_], num: int) -> NDArray[np.float64]:
    found = np.bincount(codes[mask], minlength=num)
    return found / max(1, int(found.sum()))
