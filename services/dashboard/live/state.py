"""Rows become the state that the pages draw. Pure: equal rows give an equal state, and an unchanged state is not sent."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from contracts.arms import DRAWN, shares_of
from contracts.assignments import CANARY, CANDIDATE, HOLDOUT, LEARNING, LIVE, PROVIDER, TRAINING
from contracts.topics import EPISODES, EXPERIENCES, GENERATIONS, SIGNALS
from engines.registry import FOLLOWED
from services.dashboard.live.charts import Columns, Flow, Leg, answers_over_time
from services.dashboard.live.identities import Identities, Identity
from services.dashboard.live.pulses import ProcessStatus
from services.dashboard.live.queries import LoopRows, Rows
from services.dashboard.live.tiles import FrontFigures, Tile, loop_tiles
from services.dashboard.live.timeline import Published, Version, timeline
from services.dashboard.live.traffic import RATE_SECONDS, Lag, Traffic, lags
from services.dashboard.rollout.state import Rollout

CURVES = (
    "loss", "ess", "k3", "anchor_kl", "ratio_max", "gradient_norm", "entropy", "noise_scale", "divergence/0",
    "divergence/1-2", "divergence/3-8", "divergence/9-32", "divergence/33+", "seconds_data", "seconds_forward",
    "seconds_backward", "seconds_optimizer", "seconds_save", "seconds_users",
)  # fmt: skip
NUM_DECISIONS = 12


class Stage(msgspec.Struct, frozen=True):
    """A stage of the loop, and how many events left it in the last minute. Without any of its processes it is dead."""

    name: str
    unit: str
    num_recent: int
    processes: tuple[str, ...]


class Edge(msgspec.Struct, frozen=True):
    """What waits between two stages. Times are UTC epoch seconds."""

    source: str
    target: str
    num_waiting: int
    oldest_at: float | None = None


class ArmStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The version of an arm and its `share` of the users, in [0, 1]; since when, by whom and why; and when an engine last took it."""

    arm: str
    version: int | None
    share: float
    at: float | None = None
    writer: str = ""
    reason: str = ""
    loaded_at: float | None = None


class Overview(msgspec.Struct, frozen=True, kw_only=True):
    """What every signed-in page may show: numbers that exist for each tenant and for all tenants together."""

    policy: str
    live: int | None
    tiles: list[Tile]
    rewards: Columns
    generations: Identity
    signals: Identity
    rates: Columns


class State(Overview, frozen=True, kw_only=True):
    """What an operator sees: the overview over all tenants, and everything that they share."""

    learning: dict[str, Identity]
    """What monitors measured, corrections, and prompts of shadows: the ledger about learning."""
    candidate: int | None
    rollback_to: int | None
    stages: list[Stage]
    edges: list[Edge]
    acceptance: Columns
    versions: list[Version]
    curves: Columns
    decisions: list[dict[str, Any]]
    arms: list[ArmStatus]
    freshness: list[Leg]
    lags: list[Lag]
    dead_letters: list[dict[str, Any]]
    rollout: Rollout
    processes: list[ProcessStatus]
    is_fronted: bool
    """A provider answers: there are no versions."""


def build_state(
    rows: LoopRows,
    traffic: Mapping[str, Traffic],
    store: Mapping[int, Published],
    identities: Identities,
    flow: Flow,
    *,
    now: float,
    front: FrontFigures | None = None,
    **shown: Any,
) -> State:
    """The state from one look at the database, the log and the weight store. `shown`: its fields that are shown as they are."""
    counted = zip(flow.acceptance["at"], flow.acceptance.get("gate_num", []), strict=False)
    versions = timeline(rows, store, {int(number): int(num) for number, num in counted if number is not None and num})
    return State(
        live=rows.version_of(LIVE),
        candidate=rows.version_of(CANDIDATE),
        rollback_to=rows.rollback_to,
        tiles=loop_tiles(rows, {version.version: version for version in versions}, identities, front),
        # Where a provider answers, the loop ends at the rewards.
        stages=_stages(rows, traffic, now)[: 4 if front else None],
        edges=_edges(rows, traffic)[: 3 if front else None],
        is_fronted=front is not None,
        rewards=_with_gate(answers_over_time(rows.scores), rows.verdicts),
        versions=versions,
        curves=_curves(rows.steps),
        decisions=[row._asdict() for row in rows.changes[:NUM_DECISIONS]],
        arms=_arms(rows),
        lags=[lag for lag in lags(traffic) if front is None or lag.topic != EXPERIENCES],
        dead_letters=[row._asdict() for row in rows.dead_letters],
        **identities._asdict(),
        **flow._asdict(),
        **shown,
    )


def _stages(loop: LoopRows, traffic: Mapping[str, Traffic], now: float) -> list[Stage]:
    def recent(rows: Rows, keep: Callable[[Any], bool] = lambda _: True) -> int:
        return sum(1 for row in rows if row.at >= now - RATE_SECONDS and keep(row))

    return [
        Stage("generations", "answers", traffic[GENERATIONS].num_recent, ("web", "inference")),
        Stage("signals", "signals", traffic[SIGNALS].num_recent, ("web", "feedback")),
        Stage("episodes", "episodes", traffic[EPISODES].num_recent, ("episodes",)),
        Stage("rewards", "scored", traffic[EXPERIENCES].num_recent, ("rewards",)),
        Stage("training", "steps", recent(loop.steps), ("training",)),
        Stage("release", "verdicts", recent(loop.verdicts), ("release",)),
        Stage("live", "swaps", recent(loop.swaps, lambda row: row.arm == LIVE), ("engine", *FOLLOWED)),
    ]


def _edges(loop: LoopRows, traffic: Mapping[str, Traffic]) -> list[Edge]:
    def lag(source: str, target: str, topic: str, outbox: int = 0) -> Edge:
        return Edge(source, target, traffic[topic].num_waiting + outbox, traffic[topic].oldest_at)

    # The trainer keeps its positions in its checkpoint, so labels since its newest step stand for its lag.
    stepped_at = loop.steps[0].at if loop.steps else 0.0
    unlearned = [row.at for row in loop.scores if row.at > stepped_at and row.reward is not None]
    candidate = loop.version_of(CANDIDATE)
    return [
        lag("generations", "episodes", GENERATIONS),
        lag("signals", "episodes", SIGNALS, loop.outboxes.get("feedback", 0)),
        lag("episodes", "rewards", EPISODES, loop.outboxes.get("episodes", 0)),
        Edge("rewards", "training", len(unlearned), min(unlearned, default=None)),
        Edge("training", "release", int(candidate is not None), _moved_at(loop, CANDIDATE, candidate)),
        _live_edge(loop),
    ]


def _live_edge(loop: LoopRows) -> Edge:
    """A version waits here from its assignment until an engine swapped to it, or a user got an answer from it."""
    version = loop.version_of(LIVE)
    moved_at = _moved_at(loop, LIVE, version)
    if moved_at is None or len(loop.live_history) == 1:
        return Edge("release", "live", 0)
    served = [row.at for row in loop.swaps if row.arm == LIVE and row.version == version]
    served += [row.at for row in loop.scores if row.version == version]
    arrived = max(served, default=0.0) >= moved_at
    return Edge("release", "live", int(not arrived), None if arrived else moved_at)


def _arms(loop: LoopRows) -> list[ArmStatus]:
    found, shares = [], shares_of(loop.arms)
    for arm in (LIVE, PROVIDER, CANARY, LEARNING, HOLDOUT, CANDIDATE, TRAINING):
        held = loop.arms.get(arm)
        if held is None or (arm in DRAWN and held.version is None and arm != PROVIDER):
            continue
        moved = next((row for row in loop.changes if row.arm == arm), None)
        swapped = [row.at for row in loop.swaps if row.arm == arm and row.version == held.version]
        facts = {"at": moved.at, "writer": moved.writer, "reason": moved.reason} if moved else {}
        facts |= {
            "share": shares.get(arm, 0.0 if arm in DRAWN else held.share),
            "loaded_at": max(swapped, default=None),
        }
        found.append(ArmStatus(arm=arm, version=held.version, **facts))
    return found


def _moved_at(loop: LoopRows, arm: str, version: int | None) -> float | None:
    if version is None:
        return None
    return next((row.at for row in loop.changes if row.arm == arm and row.version == version), None)


def _with_gate(answers: Columns, verdicts: Rows) -> Columns:
    """What users accept, beside what the gate measured of the version that was accepted last at that time."""
    judged = sorted((float(row.at), row.accuracy) for row in verdicts if row.accepted and row.accuracy is not None)

    def newest(at: float | None) -> float | None:
        return next((accuracy for since, accuracy in reversed(judged) if at is not None and since <= at), None)

    return answers | {"gate": [newest(at) for at in answers["at"]]}


def _curves(steps: Rows) -> dict[str, list[float | None]]:
    # A row whose metrics are no object is left out: it must not hide the others.
    ordered = sorted((row for row in steps if isinstance(row.metrics, dict)), key=lambda row: float(row.at))
    columns: dict[str, list[float | None]] = {"at": [row.at for row in ordered], "step": [row.step for row in ordered]}
    return columns | {name: [row.metrics.get(name) for row in ordered] for name in CURVES}
