"""The identities of the ledger: every logged generation and every received signal has exactly one state. Pure.

Three more are about learning: what monitors measured, corrections, and prompts of shadows (runtime/learning_ledger.py).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import NamedTuple

import msgspec

from contracts.ledger import PENDING, LedgerCounts
from contracts.topics import GENERATIONS, SIGNALS
from runtime.learning_ledger import NOTHING_LEARNED, LearningFindings
from runtime.log.dead_letters import OPEN, REDRIVEN, SKIPPED
from runtime.log.redrive import DEAD_LETTER, SENDER
from services.dashboard.live.queries import StateCount, Totals
from services.dashboard.live.traffic import Traffic

GENERATION_STATES = (
    "trained", PENDING, "unlabelled", "filtered", "unscored", "stale", "off_support", "quarantined", "cancelled",
    "erased", "log_lost", DEAD_LETTER,
)  # fmt: skip
SIGNAL_STATES = ("joined", PENDING, "late", "duplicate", "conflict", "retracted", "rejected")


class VersionCounts(msgspec.Struct, frozen=True):
    """The generations of one version, counted in the order of the identity's names."""

    version: int
    total: int
    counts: list[int]


class Identity(msgspec.Struct, frozen=True, kw_only=True):
    """`total` is the sum of `counts`; `problems` lists what is unexplained."""

    names: list[str]
    total: int
    counts: list[int]
    problems: list[str]
    versions: list[VersionCounts] = []


class Identities(NamedTuple):
    """The identities of generations and signals, and those about learning."""

    generations: Identity
    signals: Identity
    learning: dict[str, Identity]

    @property
    def by_kind(self) -> dict[str, Identity]:
        """All of them, by name."""
        return {"generations": self.generations, "signals": self.signals} | self.learning


def identities(
    totals: Totals, traffic: Mapping[str, Traffic], learning: LearningFindings = NOTHING_LEARNED
) -> Identities:
    """All identities from one count of the tables and a later look at the log.

    Records that were appended after the count lie behind the count's positions and are unread, so nothing seems lost between the two.
    """
    counts = counts_by_version(totals.state_counts)
    handled = {
        topic: sum(
            place for (group, name, _), place in totals.positions.items() if (group, name) == ("episodes", topic)
        )
        for topic in (GENERATIONS, SIGNALS)
    }
    unread = {topic: max(0, traffic[topic].num_appended - handled[topic]) for topic in handled}
    generations = generation_identity(
        counts,
        # A redriven record is in the log twice.
        num_handled=handled[GENERATIONS] - totals.without_row - _num_dead(totals, REDRIVEN),
        num_open=_num_dead(totals, OPEN),
        num_skipped=_num_dead(totals, SKIPPED),
        num_unread=unread[GENERATIONS],
        num_lost=totals.num_lost,
    )
    # Episodes sends signals too: those that waited for their answer, and follow-ups.
    num_to_come = sum(totals.outboxes.get(process, 0) for process in ("feedback", "episodes", SENDER))
    signals = signal_identity(
        totals.signals,
        num_unjoined=totals.num_unjoined,
        num_under_way=unread[SIGNALS] + num_to_come,
        num_open=_num_dead(totals, OPEN, SIGNALS),
    )
    learned = {
        kind: identity_of(sorted(found.counts), found.counts, problems=found.problems)
        for kind, found in learning._asdict().items()
    }
    return Identities(generations, signals, learned)


def identity_of(names: Sequence[str], counts: Mapping[str, int], *, problems: Sequence[str] = ()) -> Identity:
    """An identity whose total is the sum of its counts."""
    ordered = _in_order(names, counts)
    return Identity(names=list(names), total=sum(ordered), counts=ordered, problems=list(problems))


def version_counts(names: Iterable[str], counts: Mapping[int, Mapping[str, int]]) -> list[VersionCounts]:
    """The counts of each version in the order of the names, newest first. The total includes states that have no name."""
    return [
        VersionCounts(version, sum(counts[version].values()), _in_order(names, counts[version]))
        for version in sorted(counts, reverse=True)
    ]


def _num_dead(totals: Totals, state: str, topic: str = GENERATIONS) -> int:
    return totals.dead_letters.get(("episodes", topic, state), 0)


def counts_by_version(state_counts: Iterable[StateCount]) -> Mapping[int, Mapping[str, int]]:
    """Version to state to number of generations."""
    counts: defaultdict[int, Counter[str]] = defaultdict(Counter)
    for row in state_counts:
        counts[row.version][row.state] += row.number
    return counts


def generation_identity(
    counts: Mapping[int, Mapping[str, int]],
    *,
    num_handled: int,
    num_open: int,
    num_skipped: int,
    num_unread: int,
    num_lost: int = 0,
) -> Identity:
    """Logged = trained + pending + ... + dead_letter, per version and in all.

    `num_handled`: records before the position of episodes, without duplicates and records of deleted days. Episodes moves its position and
    writes one row for each in the same transaction. Of these it could not process `num_open`, and `num_skipped` whose loss an operator
    accepted. `num_unread`: records after the position, pending. `num_lost`: in a log that was lost. Neither counts for a version yet.
    """
    versions = version_counts(GENERATION_STATES, counts)
    totals = dict(zip(GENERATION_STATES, map(sum, zip(*(row.counts for row in versions), strict=True)), strict=False))
    totals[PENDING] = totals.get(PENDING, 0) + num_unread
    totals["log_lost"] = num_lost
    totals[DEAD_LETTER] = num_dead = num_open + num_skipped
    num_rows = sum(row.total for row in versions)
    nameless = [_nameless(counts[version], f"generations of v{version}") for version in sorted(counts)]
    problems = [
        *chain(*nameless),
        *_problem("generations that were read from the log and have no state", num_handled - num_dead - num_rows),
        *_problem("generations that have a state and were never logged", num_rows + num_dead - num_handled),
        *_problem("logged generations that could not be processed, see millrace dead-letters list", num_open),
    ]
    return Identity(
        names=list(GENERATION_STATES),
        total=max(num_handled, num_rows) + num_unread + num_lost,
        counts=_in_order(GENERATION_STATES, totals),
        problems=problems,
        versions=versions,
    )


def signal_identity(counts: LedgerCounts, *, num_unjoined: int, num_under_way: int, num_open: int = 0) -> Identity:
    """Received = joined + pending + late + duplicate + conflict + retracted + rejected.

    `num_unjoined`: acknowledged signals that episodes has not seen. Some are explained: by messages in outboxes and in the log
    (`num_under_way`), and by open dead letters.
    """
    num_lost = max(0, num_unjoined - num_under_way - num_open)
    states = {**counts.states, PENDING: counts.states.get(PENDING, 0) - num_lost}
    return Identity(
        names=list(SIGNAL_STATES),
        total=counts.total,
        counts=_in_order(SIGNAL_STATES, states),
        problems=[
            *_nameless(counts.states, "signals"),
            *_problem("received signals without a state", counts.unexplained),
            *_problem("acknowledged signals that are neither joined nor on their way", num_lost),
            *_problem("signals that could not be processed, see millrace dead-letters list", num_open),
            *_problem("joined signals that were never received", -num_unjoined),
        ],
    )


def _in_order(names: Iterable[str], counts: Mapping[str, int]) -> list[int]:
    return [counts.get(name, 0) for name in names]


def _problem(what: str, number: int) -> list[str]:
    return [f"{what}: {number}"] if number > 0 else []


def _nameless(counts: Mapping[str, int], what: str) -> list[str]:
    known = {*GENERATION_STATES, *SIGNAL_STATES}
    return [f"{what} in the unknown state {name!r}: {count}" for name, count in counts.items() if name not in known]
