"""Users' rewards beside the gate's value, version by version, each with its 95% interval. Pure.

The gate asks sentinels, users ask what they want: a version that is better on the first and worse for the second is what this is for.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from contracts.intervals import share_interval

Columns = dict[str, list[float | None]]


class UserReward(NamedTuple):
    """What users gave one version: the mean of `num` rewards, as a share of their range."""

    version: int
    num: int
    mean: float


class SentinelValue(NamedTuple):
    """What the gate measured of one version: its value over `num` sentinels; 0: the verdict does not say how many."""

    version: int
    num: int
    value: float
    accepted: bool


def acceptance(users: Iterable[UserReward], judged: Iterable[SentinelValue]) -> Columns:
    """Columns by version, oldest first. The interval of few is wide, and says so."""
    by_users, by_gate = {row.version: row for row in users}, {row.version: row for row in judged}
    columns: Columns = {"at": []}
    for number in sorted({*by_users, *by_gate}):
        said, measured = by_users.get(number), by_gate.get(number)
        low, high = share_interval(said.mean, said.num) if said else (None, None)
        gate_low, gate_high = (
            share_interval(measured.value, measured.num) if measured and measured.num else (None, None)
        )
        row = {
            "at": number,
            "users": said.mean if said else None,
            "users_low": low,
            "users_high": high,
            "users_num": said.num if said else None,
            "gate": measured.value if measured and measured.accepted else None,
            "refused": measured.value if measured and not measured.accepted else None,
            "gate_low": gate_low,
            "gate_high": gate_high,
            "gate_num": measured.num if measured else None,
        }
        for name, value in row.items():
            columns.setdefault(name, []).append(value)
    return columns


def num_sentinels(details: Mapping[str, Any]) -> int:
    """How many sentinels a verdict graded, over all tasks."""
    return sum(task.get("num") or 0 for task in details.get("tasks", {}).values())
