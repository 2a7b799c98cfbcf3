"""The figures of the Rewards page, made from sums: by version, by judge, by part of a reward; and alarms as sentences. Pure."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from services.dashboard.formatting import count, figure, version

SHARES = ("null", "model_fault", "unlabelled")
"""Metrics over all samples of a version; the other metrics are means over the samples that have a value (`rewards/monitors/`)."""
REWARD, PREFIXES = "reward", ("score:", "signal:")
MAX_PARTS = 12
"""Parts of a reward that get a column; the chart draws the first few of them."""
MAX_FAULTY = 30

Columns = dict[str, list[float | None]]
Versions = dict[int, dict[str, tuple[int, float]]]
"""Version to metric to (number, sum) of its values."""


class RewardPart(NamedTuple):
    """One column: its metric, and the title that people read."""

    metric: str
    title: str


class VersionRow(NamedTuple):
    """One version. `parts` are in the order of the columns; None: nothing was measured. Each mean is of as many as its number."""

    version: int
    num: int
    reward: float | None
    parts: list[float | None]
    shares: list[float | None]
    num_rewards: int = 0
    num_parts: list[int] = []  # noqa: RUF012 never changed


class PartFault(NamedTuple):
    """A part of the reward that was at fault, in how many scores, and its most frequent reason."""

    name: str
    fault: str
    num: int
    reason: str


class Spending(NamedTuple):
    """What a judge cost over some days."""

    num_calls: int
    num_tokens: int
    money: float


class JudgeCost(NamedTuple):
    """What a judge cost today and in the last days, today included; and how many of its verdicts are kept."""

    name: str
    today: Spending
    week: Spending
    num_cached: int


def parts_of(versions: Versions) -> list[RewardPart]:
    """Components first, then signals, by name; at most `MAX_PARTS`."""
    metrics = sorted({metric for sums in versions.values() for metric in sums})
    kinds = zip(PREFIXES, ("", " (signal)"), strict=True)
    found = [(metric, prefix, kind) for prefix, kind in kinds for metric in metrics if metric.startswith(prefix)]
    return [RewardPart(metric, metric.removeprefix(prefix) + kind) for metric, prefix, kind in found[:MAX_PARTS]]


def version_rows(versions: Versions, parts: Sequence[RewardPart]) -> list[VersionRow]:
    """Newest first."""
    return [
        VersionRow(
            number,
            max((sums[name][0] for name in (*SHARES, REWARD) if name in sums), default=0),
            _mean(sums, REWARD),
            [_mean(sums, part.metric) for part in parts],
            [_mean(sums, name) for name in SHARES],
            sums.get(REWARD, (0, 0.0))[0],
            [sums.get(part.metric, (0, 0.0))[0] for part in parts],
        )
        for number, sums in sorted(versions.items(), reverse=True)
    ]


def columns_of(rows: Sequence[VersionRow], parts: Sequence[RewardPart]) -> Columns:
    """The same rows as columns for charts, oldest first; `at` are versions."""
    ordered = rows[::-1]
    columns: Columns = {"at": [row.version for row in ordered], REWARD: [row.reward for row in ordered]}
    columns |= {part.metric: [row.parts[place] for row in ordered] for place, part in enumerate(parts)}
    return columns | {name: [row.shares[place] for row in ordered] for place, name in enumerate(SHARES)}


def part_faults(scores: Iterable[Any]) -> list[PartFault]:
    """The parts that bear the fault of their score, most frequent first. `scores` have `fault` and `components`."""
    reasons: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    for score in scores:
        for part in score.components:
            if part.get("fault") == score.fault:
                reasons[str(part.get("name")), score.fault][str(part.get("reason") or "")] += 1
    found = [
        PartFault(name, fault, given.total(), min(given, key=lambda reason: (-given[reason], reason)))
        for (name, fault), given in reasons.items()
    ]
    return sorted(found, key=lambda part: (-part.num, part.name, part.fault))[:MAX_FAULTY]


def alarm_sentence(details: Mapping[str, Any]) -> str:
    """An alarm as a sentence without its name."""
    mean, num = figure(details["mean"]), f"{count(details['num'])} answers"
    if details.get("versions") is None:
        return f"{details['words']}: {mean} over {num}, above the line of {figure(details['line'])}"
    first, last = details["versions"]
    before = version(first) if first == last else f"{version(first)} to {version(last)}"
    moved = "rose" if details["mean"] > details["reference"] else "fell"
    slowly = " little by little" if str(details["test"]).startswith("creep") else ""
    earlier = f"{figure(details['reference'])} over {count(details['reference_num'])} answers of {before}"
    return f"{details['words']}: {moved}{slowly} from {earlier} to {mean} over {num}"


def _mean(sums: Mapping[str, tuple[int, float]], metric: str) -> float | None:
    num, total = sums.get(metric, (0, 0.0))
    return total / num if num else None
