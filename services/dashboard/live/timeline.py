"""The story of each version: published, judged, served, replaced. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from contracts.assignments import CANDIDATE, LIVE
from contracts.intervals import share_interval
from contracts.rollback import left_behind
from contracts.version_history import BASE
from services.dashboard.averages import ACCEPTED_FROM
from services.dashboard.live.queries import MAX_VERSIONS, LoopRows
from weights.versions.manifest import Manifest


class Published(NamedTuple):
    """The fields of a version's manifest that the page shows: sizes in bytes, density as a fraction of changed weights."""

    parent: int | None
    kind: str
    payload_bytes: int
    full_bytes: int
    density: float
    num_samples: int
    created_at: float

    @classmethod
    def of(cls, manifest: Manifest) -> Published:
        """A manifest without its chunks, so that many can be kept in memory."""
        return cls(*(getattr(manifest, name) for name in cls._fields))


class Version(msgspec.Struct, frozen=True, kw_only=True):
    """One row of the timeline. Times are UTC epoch seconds; None: not known, or not happened yet."""

    version: int
    status: str
    parent: int | None = None
    kind: str | None = None
    payload_bytes: int | None = None
    full_bytes: int | None = None
    density: float | None = None
    num_samples: int | None = None
    created_at: float | None = None
    judged_at: float | None = None
    accuracy: float | None = None
    best_accuracy: float | None = None
    num_sentinels: int = 0
    """That its accuracy was measured on; 0: not known."""
    reason: str = ""
    revoked: str = ""
    """Why it never serves again, in the operator's words; empty if it is not revoked."""
    treatment: str = ""
    """How samples of a revoked version are treated: `poison` or `evidence`."""
    pause_seconds: float | None = None
    gap_seconds: float | None = None
    num_labelled: int = 0
    num_accepted: int = 0
    accepted_low: float | None = None
    accepted_high: float | None = None
    """The 95% interval of the share that users accepted; None without labels."""


def timeline(rows: LoopRows, store: Mapping[int, Published], num_sentinels: Mapping[int, int]) -> list[Version]:
    """The newest versions, newest first, from verdicts, assignments, swaps, scores and the weight store."""
    verdicts = {row.version: row for row in rows.verdicts}
    swaps = {row.version: row for row in reversed(rows.swaps) if row.arm == LIVE}
    labelled: defaultdict[int, list[bool]] = defaultdict(list)
    for row in rows.scores:
        if row.reward is not None:
            labelled[row.version].append(row.reward >= ACCEPTED_FROM)
    statuses = _statuses(rows)
    numbers = sorted({*store, *verdicts, *statuses}, reverse=True)[:MAX_VERSIONS]
    result = []
    for number in numbers:
        judged, swapped, kept = verdicts.get(number), swaps.get(number), store.get(number)
        facts: dict[str, Any] = kept._asdict() if kept else {}
        if judged:
            facts |= {"judged_at": judged.at, "accuracy": judged.accuracy, "best_accuracy": judged.best_accuracy}
            facts |= {"reason": judged.reason, "num_sentinels": num_sentinels.get(number, 0)}
        if swapped:
            facts |= {"pause_seconds": swapped.pause_seconds, "gap_seconds": swapped.gap_seconds}
        if gone := rows.revoked.get(number):
            facts |= {"revoked": f"{gone.writer}: {gone.reason}", "treatment": gone.treatment}
        answers = labelled[number]
        facts |= {"num_labelled": len(answers), "num_accepted": sum(answers)}
        if answers:
            low, high = share_interval(sum(answers) / len(answers), len(answers))
            facts |= {"accepted_low": low, "accepted_high": high}
        fallback = "base" if number == BASE else "published"
        result.append(Version(version=number, status=statuses.get(number, fallback), **facts))
    return result


def _statuses(rows: LoopRows) -> dict[int, str]:
    """Version to status. If several rules apply, the last one wins."""
    statuses = {row.version: "accepted" if row.accepted else "refused" for row in rows.verdicts}
    if BASE in statuses and statuses[BASE] == "accepted":
        statuses[BASE] = "base"
    statuses |= {number: "rolled back" for number in left_behind(rows.live_history) if number in statuses}
    statuses |= dict.fromkeys(rows.revoked, "revoked")
    for arm in (CANDIDATE, LIVE):
        if arm in rows.arms and (version := rows.arms[arm].version) is not None:
            statuses[version] = arm
    return statuses
