"""Rows become what the Rollout and Lift pages draw. Pure. What release wrote and this page cannot read is left out and counted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import msgspec

from contracts.assignments import Assignment, provider_share
from services.dashboard.formatting import count, note_fault, words
from services.dashboard.rollout.queries import RolloutRows, Side
from services.dashboard.rollout.words import (
    budget_sentence,
    hold_sentence,
    side_sentences,
    slot_sentences,
    unit_sentence,
)

Columns = dict[str, list[float | None]]
Points = Sequence[tuple[float, Mapping[str, Any]]]
RUNNING = frozenset({"shadow", "canary", "stopped"})
_Struct = TypeVar("_Struct", bound=msgspec.Struct)


class RolloutMetric(msgspec.Struct, frozen=True, kw_only=True):
    """One metric of one task: canary minus live, with the bounds that hold at every look. See `pipelines/release/train/`."""

    name: str
    task: str = ""
    kind: str = "guardrail"
    better: str = "higher"
    canary: float | None = None
    live: float | None = None
    difference: float | None = None
    low: float | None = None
    high: float | None = None
    margin: float | None = None
    num_canary: int = 0
    num_live: int = 0
    needed_units: int | None = None
    required: bool = True
    """False: the task is too rare to wait for its proof."""
    verdict: str = "unknown"
    says: str = ""


class SampleRatio(msgspec.Struct, frozen=True, kw_only=True):
    """The canary's share of the compared units: what the draw promises, and what was seen."""

    expected: float | None = None
    seen: float | None = None
    low: float | None = None
    high: float | None = None
    num: int = 0
    verdict: str = "unknown"


class RunningTrain(msgspec.Struct, frozen=True, kw_only=True):
    """The train on the track. Times are UTC epoch seconds."""

    version: int
    blessed: int
    state: str
    stage: int
    stages: list[float]
    share: float
    started_at: float
    stage_at: float
    stage_until: float | None
    """The earliest end of this stage; None: more units must be heard of first, and nobody knows when."""
    deadline: float | None
    """A train that has proved nothing until then is withdrawn."""
    reason: str
    says: str
    promise: str
    """How many units a proof takes, told before they came."""
    units: str
    num_canary_units: int
    num_control_units: int
    num_stage_units: int | None
    next: str
    """What release would do now, and why."""
    shadow: str
    """What the shadow found; empty: it is not over."""
    left_out: str
    """Answers that are not compared, by reason."""
    newest_at: float | None
    """When the newest answer that is compared was given."""
    at: float | None
    """When release last looked."""
    metrics: list[RolloutMetric]
    sample_ratio: SampleRatio | None


class PastTrain(msgspec.Struct, frozen=True, kw_only=True):
    """A train that has ended, and how."""

    version: int
    blessed: int
    state: str
    stage: int
    num_stages: int
    started_at: float
    ended_at: float | None
    reason: str


class LiftNow(msgspec.Struct, frozen=True, kw_only=True):
    """What everybody gets, compared with the hold-out's version, as release last measured it. Differences are of rewards in [0, 1]."""

    version: int | None
    """The hold-out's; None: there is no hold-out."""
    share: float
    since: float | None
    """Since when the hold-out has this version."""
    at: float | None = None
    oldest_at: float | None = None
    """The oldest answer that counts: at most 30 days before `at`."""
    difference: float | None = None
    low: float | None = None
    high: float | None = None
    num_holdout: int = 0
    num_live: int = 0
    unit_kinds: dict[str, int] = {}
    tasks: dict[str, dict[str, float | None]] = {}
    left_out: list[str] = []
    """Who asked for answers that stand against all others', see `pipelines/release/train/parties.py`."""


class Rollout(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that the two pages draw."""

    train: RunningTrain | None
    past: list[PastTrain]
    hold: str
    """What is frozen or pinned, by whom and why; empty: nothing is."""
    held: str
    """`freeze`, `pin`, or empty."""
    held_until: float | None
    slots: list[str]
    slots_say: list[str]
    budget: str
    points: Columns
    lift: LiftNow
    lift_points: Columns


class Series(NamedTuple):
    """What is read less often: points of the running train's main metric and of the lift, the levels of the year's trains, who answered."""

    primary: Points
    lift: Points
    levels: Sequence[float]
    sides: Mapping[str, Side]
    """Of a home where a provider stands in front; else empty."""


def build_rollout(
    rows: RolloutRows, arms: Mapping[str, Assignment], series: Series, now: float, *, is_enabled: bool = True
) -> Rollout:
    """What the pages draw, from one look at the database. `is_enabled`: [train] enabled."""
    running = rows.trains[0] if rows.trains and rows.trains[0].state in RUNNING else None
    fresh = [engine for engine in rows.engines if engine.is_fresh(now)]
    slots = sorted({arm for engine in fresh for arm in engine.slots})
    told = {"is_enabled": is_enabled, "has_proved": "canary" in arms, "has_front": provider_share(arms) > 0.0}
    says = slot_sentences(slots, num_engines=len(fresh), **told) + side_sentences(series.sides, arms)
    held = rows.hold
    return Rollout(
        train=None if running is None else _running(running, rows.evidence, arms),
        past=[
            PastTrain(num_stages=len(row.settings.get("stages", [])), **_shared(row, PastTrain))
            for row in rows.trains
            if row is not running
        ],
        hold="" if held is None else hold_sentence(held),
        held="" if held is None else held.kind,
        held_until=None if held is None else held.until,
        slots=slots,
        slots_say=says,
        budget=budget_sentence(series.levels, rows.budget),
        points=_columns(series.primary),
        lift=_lift(arms, rows.holdout_since, series),
        lift_points=_columns(series.lift),
    )


def _running(row: Any, evidence: Any, arms: Mapping[str, Assignment]) -> RunningTrain:
    facts = evidence if isinstance(evidence, dict) else {}
    settings, canary = row.settings, arms.get("canary")
    patience = settings.get("patience_seconds")
    metrics = [_read(item, RolloutMetric) for item in facts.get("metrics") or []]
    ratio = facts.get("sample_ratio")
    return RunningTrain(
        **_shared(row, RunningTrain),
        stages=list(settings.get("stages", [])),
        share=canary.share if canary is not None and canary.version == row.version else 0.0,
        stage_until=facts.get("stage_ready_at"),
        deadline=None if patience is None else row.started_at + float(facts.get("paused_seconds") or 0.0) + patience,
        says=str(facts.get("says") or ""),
        promise=str(facts.get("promise") or ""),
        units=unit_sentence(settings.get("unit", "user"), facts.get("unit_kinds") or {}),
        num_canary_units=facts.get("num_canary_units") or 0,
        num_control_units=facts.get("num_control_units") or 0,
        num_stage_units=facts.get("num_stage_units"),
        next=str((facts.get("next") or {}).get("reason") or ""),
        shadow=str((facts.get("shadow") or {}).get("says") or ""),
        left_out=", ".join(f"{count(num)} {words(name)}" for name, num in (facts.get("left_out") or {}).items() if num),
        newest_at=facts.get("newest_at"),
        at=facts.get("at"),
        metrics=[metric for metric in metrics if metric is not None],
        sample_ratio=None if ratio is None else _read(ratio, SampleRatio),
    )


def _shared(row: Any, kind: type[msgspec.Struct]) -> dict[str, Any]:
    """The columns of a row that are fields of the same name."""
    return {name: value for name, value in row._asdict().items() if name in kind.__struct_fields__}


def _lift(arms: Mapping[str, Assignment], since: float | None, series: Series) -> LiftNow:
    held = arms.get("holdout")
    if held is None or held.version is None:
        return LiftNow(version=None, share=0.0, since=None)
    # Points of an earlier hold-out say nothing about this one.
    mine = [(at, facts) for at, facts in series.lift if facts.get("version") in {None, held.version}]
    known: dict[str, Any] = {"version": held.version, "share": held.share, "since": since}
    if not mine:
        return LiftNow(**known)
    at, facts = mine[-1]
    return _read({**facts, "at": at, **known}, LiftNow) or LiftNow(**known)


def _read(content: Any, kind: type[_Struct]) -> _Struct | None:
    try:
        return msgspec.convert(content, kind, strict=False)
    except msgspec.ValidationError as error:
        note_fault("evidence", error)
        return None


def _columns(points: Points) -> Columns:
    columns: Columns = {"at": [at for at, _ in points]}
    return columns | {name: [facts.get(name) for _, facts in points] for name in ("difference", "low", "high")}
