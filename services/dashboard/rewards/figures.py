"""Sums become what the Rewards page shows: figures by version, parts at fault, alarms in words. Pure."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from services.dashboard.rewards.queries import PREFIXES, REWARD, SHARES, JudgeSpending, Versions

MAX_PARTS = 12
"""Parts of a reward that have a column; a chart draws the first few of these."""
MAX_FAULTY = 30

Columns = dict[str, list[float | None]]


class RewardPart(NamedTuple):
    """One column: the metric, and what people call it."""

    metric: str
    title: str


class VersionRow(NamedTuple):
    """One version. `parts` in the order of the columns; None: nothing was measured."""

    version: int
    num: int
    reward: float | None
    parts: list[float | None]
    shares: list[float | None]


class PartFault(NamedTuple):
    """A part of the reward that was at fault, in how many scores, and the reason it gave most often."""

    name: str
    fault: str
    num: int
    reason: str


class JudgeCost(NamedTuple):
    """What a judge cost today and in the last days, today included."""

    name: str
    today: JudgeSpending
    week: JudgeSpending
    num_cached: int


def parts_of(versions: Versions) -> list[RewardPart]:
    """Components first, then signals, by name; at most `MAX_PARTS`."""
    metrics = {metric for sums in versions.values() for metric in sums}
    found = []
    for prefix in PREFIXES:
        kind = "" if prefix == PREFIXES[0] else f" ({prefix[:-1]})"
        found += [
            RewardPart(metric, metric.removeprefix(prefix) + kind)
            for metric in sorted(metrics)
            if metric.startswith(prefix)
        ]
    return found[:MAX_PARTS]


def version_rows(versions: Versions, parts: Sequence[RewardPart]) -> list[VersionRow]:
    """Newest first."""
    return [
        VersionRow(
            version,
            max((sums[name][0] for name in (*SHARES, REWARD) if name in sums), default=0),
            _mean(sums, REWARD),
            [_mean(sums, part.metric) for part in parts],
            [_mean(sums, name) for name in SHARES],
        )
        for version, sums in sorted(versions.items(), reverse=True)
    ]


def columns_of(rows: Sequence[VersionRow], parts: Sequence[RewardPart]) -> Columns:
    """The same for charts: `at` are versions, oldest first."""
    ordered = rows[::-1]
    columns: Columns = {"at": [row.version for row in ordered], REWARD: [row.reward for row in ordered]}
    columns |= {part.metric: [row.parts[place] for row in ordered] for place, part in enumerate(parts)}
    return columns | {name: [row.shares[place] for row in ordered] for place, name in enumerate(SHARES)}


def faulty_parts(scores: Iterable[Any]) -> list[PartFault]:
    """Which parts bear the fault of their score; most first. `scores` have `fault` and `components`."""
    reasons: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    for score in scores:
        for part in score.components:
            if part.get("fault") == score.fault:
                reasons[str(part.get("name")), score.fault][str(part.get("reason") or "")] += 1
    found = [
        PartFault(name, fault, said.total(), min(said, key=lambda reason: (-said[reason], reason)))
        for (name, fault), said in reasons.items()
    ]
    return sorted(found, key=lambda faulty: (-faulty.num, faulty.name, faulty.fault))[:MAX_FAULTY]


def alarm_words(details: Mapping[str, Any]) -> str:
    """What an alarm says, as a sentence without its name."""
    mean, num = details["mean"], f"{details['num']:,} answers"
    if details.get("versions") is None:
        return f"{details['words']}: {mean:.3g} over {num}, above the line of {details['line']:g}"
    first, last = details["versions"]
    before = f"v{first}" if first == last else f"v{first} to v{last}"
    moved = "rose" if mean > details["reference"] else "fell"
    slowly = " little by little" if str(details["test"]).startswith("creep") else ""
    return (
        f"{details['words']}: {moved}{slowly} from {details['reference']:.3g} over {details['reference_num']:,} answers "
        f"of {before} to {mean:.3g} over {num}"
    )


def judges_of(spent: Iterable[JudgeSpending], cached: Mapping[str, int], today: str) -> list[JudgeCost]:
    """One row for each judge that was asked in these days, by name."""
    days: dict[str, list[JudgeSpending]] = defaultdict(list)
    for row in spent:
        days[row.judge].append(row)
    return [
        JudgeCost(name, _sum(name, [row for row in rows if row.day == today]), _sum(name, rows), cached.get(name, 0))
        for name, rows in sorted(days.items())
    ]


def _sum(judge: str, rows: Sequence[JudgeSpending]) -> JudgeSpending:
    return JudgeSpending(
        judge,
        "",
        sum(row.num_calls for row in rows),
        sum(row.num_tokens for row in rows),
        sum(row.money for row in rows),
    )


def _mean(sums: Mapping[str, tuple[int, float]], metric: str) -> float | None:
    num, total = sums.get(metric, (0, 0.0))
    return total / num if num else None
