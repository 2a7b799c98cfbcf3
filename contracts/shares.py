"""How much of a batch belongs to one person or one tenant, at most. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Sequence

_ROUNDING = 1e-9


def limit_shares(weights: Sequence[float], owners: Sequence[Hashable], limit: float) -> list[float]:
    """Weights of which no owner holds more than `limit` of what remains; the others keep theirs.

    Largest owners first: if k of them are cut to c each and the rest weighs R, then c = limit (k c + R), that is
    c = limit R / (1 - k limit); k is the smallest for which nobody else exceeds c. With fewer than 1 / limit owners the
    limit cannot hold, and nothing is changed.

    Args:
        weights: of the samples, 0 or more.
        owners: of the samples, in the same order.
        limit: a share in (0, 1].
    """
    totals: dict[Hashable, float] = defaultdict(float)
    for owner, weight in zip(owners, weights, strict=True):
        totals[owner] += weight
    ordered = sorted(totals.values(), reverse=True)
    rest = most = sum(ordered)
    if sum(total > 0 for total in ordered) * limit < 1 - _ROUNDING:
        return list(weights)
    for num_cut, largest in enumerate(ordered):
        most = limit * rest / (1 - num_cut * limit)
        if largest <= most * (1 + _ROUNDING):
            break
        rest -= largest
    scales = {owner: min(1.0, most / total) if total > 0 else 1.0 for owner, total in totals.items()}
    return [weight * scales[owner] for owner, weight in zip(owners, weights, strict=True)]
