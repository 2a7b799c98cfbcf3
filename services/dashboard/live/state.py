"""Rows become what the page draws. Pure: the same rows and traffic give the same state, so an unchanged one is not sent."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from contracts.assignments import CANDIDATE, LIVE, TRAINING
from contracts.topics import EPISODES, EXPERIENCES, GENERATIONS, SIGNALS
from services.dashboard.live.identities import Identities, Identity
from services.dashboard.live.lags import Lag, lags
from services.dashboard.live.loop.freshness import Leg
from services.dashboard.live.queries import LoopRows, Rows, ScoredAnswer
from services.dashboard.live.timeline import ACCEPTED_FROM, Published, Version, timeline
from services.dashboard.live.traffic import RATE_SECONDS, Traffic

CURVES = ("loss", "ess", "k3", "anchor_kl", "ratio_max", "gradient_norm", "entropy")
MAX_BUCKETS = 60
MIN_IN_BUCKET = 25
MIN_LABELS = 5
NUM_LATEST = 200
NUM_DECISIONS = 12


class Stage(msgspec.Struct, frozen=True):
    """A place in the loop, and how many events left it in the last minute."""

    name: str
    unit: str
    num_recent: int


class Edge(msgspec.Struct, frozen=True):
    """What lies between two stages. Times are UTC epoch seconds."""

    source: str
    target: str
    num_waiting: int
    oldest_at: float | None = None


class Headline(msgspec.Struct, frozen=True, kw_only=True):
    """The figures at the top; shares lie in [0, 1], None means no data."""

    accept_rate: float | None
    reward: float | None
    num_latest: int
    accuracy: float | None
    accuracy_base: float | None
    num_pending: int
    num_trained: int


class ArmStatus(msgspec.Struct, frozen=True, kw_only=True):
    """Who is served what: `share` of the users, in [0, 1]; since when, by whom and why."""

    arm: str
    version: int | None
    share: float
    at: float | None = None
    writer: str = ""
    reason: str = ""
    loaded_at: float | None = None
    """When an engine took it into service."""


class State(msgspec.Struct, frozen=True, kw_only=True):
    """Everything on the page."""

    policy: str
    live: int | None
    candidate: int | None
    rollback_to: int | None
    headline: Headline
    stages: list[Stage]
    edges: list[Edge]
    rewards: dict[str, list[float | None]]
    gate: dict[str, list[float | None]]
    versions: list[Version]
    generations: Identity
    signals: Identity
    curves: dict[str, list[float | None]]
    decisions: list[dict[str, Any]]
    arms: list[ArmStatus]
    rates: dict[str, list[float | None]]
    freshness: list[Leg]
    lags: list[Lag]
    dead_letters: list[dict[str, Any]]


class Flow(NamedTuple):
    """What is read now and then: rates over time and the stages' delays."""

    rates: dict[str, list[float | None]]
    freshness: list[Leg]


def build_state(
    snapshot: LoopRows,
    traffic: Mapping[str, Traffic],
    store: Mapping[int, Published],
    *,
    identities: Identities,
    flow: Flow,
    policy: str,
    now: float,
) -> State:
    """Everything from one snapshot."""
    versions = timeline(snapshot, store)
    return State(
        policy=policy,
        live=_version(snapshot, LIVE),
        candidate=_version(snapshot, CANDIDATE),
        rollback_to=snapshot.rollback_to,
        headline=_headline(snapshot, versions, identities.generations),
        stages=_stages(snapshot, traffic, now),
        edges=_edges(snapshot, traffic),
        rewards=bucketed(snapshot.scores),
        gate=_gate(snapshot.verdicts),
        versions=versions,
        generations=identities.generations,
        signals=identities.signals,
        curves=_curves(snapshot.steps),
        decisions=[row._asdict() for row in snapshot.changes[:NUM_DECISIONS]],
        arms=_arms(snapshot),
        rates=flow.rates,
        freshness=flow.freshness,
        lags=lags(traffic),
        dead_letters=[row._asdict() for row in snapshot.dead_letters],
    )


def bucketed(scores: Sequence[ScoredAnswer]) -> dict[str, list[float | None]]:
    """Users' answers over time: accept rate and mean reward of the labelled ones, share that is labelled.

    Columns of equal length, one entry for every run of equally many answers; `at` is the mean time of a run. A run
    of hardly any labels has no rate; a last one that is less than half full waits for more.
    """
    ordered = list(reversed(scores))
    size = max(MIN_IN_BUCKET, math.ceil(len(ordered) / MAX_BUCKETS))
    columns: dict[str, list[float | None]] = {name: [] for name in ("at", "accept_rate", "reward", "labelled")}
    for start in range(0, len(ordered), size):
        rows = ordered[start : start + size]
        if start and len(rows) < size / 2:
            break
        labelled = [row.reward for row in rows if row.reward is not None]
        columns["at"].append(mean([row.at for row in rows]))
        enough = labelled if len(labelled) >= MIN_LABELS else []
        columns["accept_rate"].append(accept_rate(enough))
        columns["reward"].append(mean(enough))
        columns["labelled"].append(len(labelled) / len(rows))
    return columns


def _headline(snapshot: LoopRows, versions: Sequence[Version], generations: Identity) -> Headline:
    labelled = [row.reward for row in snapshot.scores if row.reward is not None][:NUM_LATEST]
    accuracies = {version.version: version.accuracy for version in versions}
    states = dict(zip(generations.names, generations.counts, strict=True))
    live = _version(snapshot, LIVE)
    return Headline(
        accept_rate=accept_rate(labelled),
        reward=mean(labelled),
        num_latest=len(labelled),
        accuracy=accuracies.get(live) if live is not None else None,
        accuracy_base=accuracies.get(0),
        num_pending=states["pending"],
        num_trained=states["trained"],
    )


def _stages(snapshot: LoopRows, traffic: Mapping[str, Traffic], now: float) -> list[Stage]:
    def recent(rows: Rows, keep: Callable[[Any], bool] = lambda _: True) -> int:
        return sum(1 for row in rows if row.at >= now - RATE_SECONDS and keep(row))

    return [
        Stage("generations", "answers", traffic[GENERATIONS].num_recent),
        Stage("signals", "signals", traffic[SIGNALS].num_recent),
        Stage("episodes", "episodes", traffic[EPISODES].num_recent),
        Stage("rewards", "scored", traffic[EXPERIENCES].num_recent),
        Stage("training", "steps", recent(snapshot.steps)),
        Stage("release", "verdicts", recent(snapshot.verdicts)),
        Stage("live", "swaps", recent(snapshot.swaps, lambda row: row.arm == LIVE)),
    ]


def _edges(snapshot: LoopRows, traffic: Mapping[str, Traffic]) -> list[Edge]:
    def lag(source: str, target: str, topic: str, outbox: int = 0) -> Edge:
        return Edge(source, target, traffic[topic].num_waiting + outbox, traffic[topic].oldest_at)

    return [
        lag("generations", "episodes", GENERATIONS),
        lag("signals", "episodes", SIGNALS, snapshot.outboxes.get("feedback", 0)),
        lag("episodes", "rewards", EPISODES, snapshot.outboxes.get("episodes", 0)),
        _training_edge(snapshot),
        _candidate_edge(snapshot),
        _live_edge(snapshot),
    ]


def _training_edge(snapshot: LoopRows) -> Edge:
    """The trainer's positions lie in its checkpoint: the labels since its newest step stand for its lag."""
    stepped_at = snapshot.steps[0].at if snapshot.steps else 0.0
    waiting = [row.at for row in snapshot.scores if row.at > stepped_at and row.reward is not None]
    return Edge("rewards", "training", len(waiting), min(waiting, default=None))


def _candidate_edge(snapshot: LoopRows) -> Edge:
    version = _version(snapshot, CANDIDATE)
    return Edge("training", "release", int(version is not None), _moved_at(snapshot, CANDIDATE, version))


def _live_edge(snapshot: LoopRows) -> Edge:
    """A version waits here from its assignment until the engine swapped to it, or a user's answer came from it."""
    version = _version(snapshot, LIVE)
    moved_at = _moved_at(snapshot, LIVE, version)
    if moved_at is None or len(snapshot.live_history) == 1:
        return Edge("release", "live", 0)
    served = [row.at for row in snapshot.swaps if row.arm == LIVE and row.version == version]
    served += [row.at for row in snapshot.scores if row.version == version]
    arrived = max(served, default=0.0) >= moved_at
    return Edge("release", "live", int(not arrived), None if arrived else moved_at)


def _arms(snapshot: LoopRows) -> list[ArmStatus]:
    found = []
    for arm in (LIVE, CANDIDATE, TRAINING):
        if held := snapshot.arms.get(arm):
            moved = next((row for row in snapshot.changes if row.arm == arm), None)
            swapped = [row.at for row in snapshot.swaps if row.arm == arm and row.version == held.version]
            facts = {"at": moved.at, "writer": moved.writer, "reason": moved.reason} if moved else {}
            loaded_at = max(swapped, default=None)
            found.append(ArmStatus(arm=arm, version=held.version, share=held.share, loaded_at=loaded_at, **facts))
    return found


def _version(snapshot: LoopRows, arm: str) -> int | None:
    return snapshot.arms[arm].version if arm in snapshot.arms else None


def _moved_at(snapshot: LoopRows, arm: str, version: int | None) -> float | None:
    if version is None:
        return None
    return next((row.at for row in snapshot.changes if row.arm == arm and row.version == version), None)


def _gate(verdicts: Rows) -> dict[str, list[float | None]]:
    judged = [row for row in reversed(verdicts) if row.accuracy is not None]
    judged.sort(key=lambda row: float(row.at))
    return {
        "at": [row.at for row in judged],
        "version": [row.version for row in judged],
        "accepted": [row.accuracy if row.accepted else None for row in judged],
        "refused": [None if row.accepted else row.accuracy for row in judged],
        "best": [row.best_accuracy for row in judged],
    }


def _curves(steps: Rows) -> dict[str, list[float | None]]:
    ordered = sorted(steps, key=lambda row: float(row.at))
    columns: dict[str, list[float | None]] = {"at": [row.at for row in ordered], "step": [row.step for row in ordered]}
    return columns | {name: [row.metrics.get(name) for row in ordered] for name in CURVES}


def accept_rate(rewards: Sequence[float]) -> float | None:
    """The share that counts as accepted."""
    return mean([float(reward >= ACCEPTED_FROM) for reward in rewards])


def mean(values: Sequence[float]) -> float | None:
    """None of none."""
    return sum(values) / len(values) if values else None
