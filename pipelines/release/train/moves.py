"""The moves of a release train: each is one transaction that changes its row and its arms, all or nothing.

In: the train as it was read, and a decision. Out: row, arms, revocations. Waits for: whoever moves an arm of the policy just now.

Train and arms move by compare-and-set, so of two conductors one moves, and a kill between two moves leaves a state from which any
conductor goes on. While an operator holds the arms, every move here is refused, except the end of a train whose version was revoked.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import Connection

from contracts import assignments, holds
from contracts.assignments import CANARY, LIVE, Assignment
from contracts.errors import StaleWrite
from contracts.rejection import revoke_unproven
from pipelines.release.train import repository
from pipelines.release.train.repository import (
    CANARY_STAGE,
    IN_SHADOW,
    REVOKED,
    SHADOW,
    SHIPPED,
    STOPPED,
    WITHDRAWN,
    Train,
)

WRITER = "release"


def depart(
    connection: Connection,
    policy: str,
    version: int,
    *,
    arms: Mapping[str, Assignment],
    settings: Mapping[str, Any],
    evidence: Mapping[str, Any],
    now: float,
) -> None:
    """Begin a train: a row, and the arm `canary` at the version without any user. `arms`: as they were read.

    `evidence`: what it keeps of earlier trains.

    Raises:
        Held, NotFound, StaleWrite, VersionRevoked: nothing is changed; `NotFound` says that the version's bytes were removed.
    """
    live = arms[LIVE]
    assignments.move_held(connection, arms, CANARY, version, writer=WRITER, reason=f"v{version} departs")
    if assignments.read(connection, policy)[LIVE].epoch != live.epoch:
        raise StaleWrite(f"another version became live before v{version} departed; it is looked at anew")
    row = {
        "policy": policy,
        "version": version,
        "blessed": live.version,
        "state": SHADOW,
        "stage": IN_SHADOW,
        "epoch": 1,
    }
    row |= {"started_at": now, "stage_at": now, "ended_at": None, "reason": f"v{version} departed"}
    repository.add(connection, row | {"settings": dict(settings), "evidence": {**evidence, repository.COUNTED_AT: now}})
    holds.refuse(connection, policy, now)


def advance(connection: Connection, train: Train, *, reason: str, evidence: Mapping[str, Any], now: float) -> None:
    """Give the canary the share of the next stage."""
    arms = _standing(connection, train)
    stage = train.stage + 1
    share = train.settings["stages"][stage]
    values = {"state": CANARY_STAGE, "stage": stage, "stage_at": now, "reason": reason, "evidence": dict(evidence)}
    repository.change(connection, train, **values)
    assignments.move_held(connection, arms, CANARY, train.version, writer=WRITER, reason=reason, share=share)
    holds.refuse(connection, train.policy, now)


def stop(connection: Connection, train: Train, *, reason: str, now: float) -> None:
    """Keep the share, and advance no further."""
    _standing(connection, train)
    evidence = repository.with_stop(train, STOPPED, reason, now)
    repository.change(connection, train, state=STOPPED, reason=reason, evidence=evidence)
    holds.refuse(connection, train.policy, now)


def go_on(connection: Connection, train: Train, *, reason: str, now: float) -> None:
    """Leave the state `stopped`."""
    _standing(connection, train)
    state = SHADOW if train.stage == IN_SHADOW else CANARY_STAGE
    evidence = repository.with_stop(train, state, reason, now)
    repository.change(connection, train, state=state, reason=reason, evidence=evidence)
    holds.refuse(connection, train.policy, now)


def arrive(connection: Connection, train: Train, *, reason: str, evidence: Mapping[str, Any], now: float) -> None:
    """Make the version live: everybody gets it."""
    arms = _standing(connection, train)
    repository.change(connection, train, state=SHIPPED, ended_at=now, reason=reason, evidence=dict(evidence))
    assignments.move_held(connection, arms, CANARY, None, writer=WRITER, reason=reason)
    assignments.move_held(connection, arms, LIVE, train.version, writer=WRITER, reason=reason, share=1.0)
    holds.refuse(connection, train.policy, now)


def change_over(
    connection: Connection, train: Train, to: int | None, *, reason: str, evidence: Mapping[str, Any], now: float
) -> None:
    """Take the version off the track for a better one, which departs next. This one may depart again."""
    changed = {repository.CHANGED_IN: [*train.changed_in, train.stage], repository.CHANGED_TO: to}
    kept = {**evidence, **changed, repository.BY_OTHERS: True}
    withdraw(connection, train, reason=reason, evidence=kept, now=now)


def withdraw(connection: Connection, train: Train, *, reason: str, evidence: Mapping[str, Any], now: float) -> None:
    """Take the version off the track without revoking it."""
    arms = _standing(connection, train)
    repository.change(connection, train, state=WITHDRAWN, ended_at=now, reason=reason, evidence=dict(evidence))
    assignments.move_held(connection, arms, CANARY, None, writer=WRITER, reason=reason)
    holds.refuse(connection, train.policy, now)


def revoke(connection: Connection, train: Train, *, reason: str, evidence: Mapping[str, Any], now: float) -> None:
    """Revoke the version and its descendants permanently; the trainer goes back to the live version."""
    _standing(connection, train)
    repository.change(connection, train, state=REVOKED, ended_at=now, reason=reason, evidence=dict(evidence))
    revoke_unproven(connection, train.policy, train.version, writer=WRITER, reason=reason)
    holds.refuse(connection, train.policy, now)


def end(connection: Connection, train: Train, *, state: str, reason: str, now: float) -> None:
    """End a train that others brought to its end: by a revocation, a pin, or a move of its arms.

    The canary is emptied if it still names the version. While the arms are frozen only a revoked version is taken out. The version may
    depart again.
    """
    arms = assignments.lock(connection, train.policy)
    evidence = train.evidence | {repository.BY_OTHERS: True}
    repository.change(connection, train, state=state, ended_at=now, reason=reason, evidence=evidence)
    canary = arms.get(CANARY)
    if canary is None or canary.version != train.version:
        return
    assignments.move_held(connection, arms, CANARY, None, writer=WRITER, reason=reason)
    if state != REVOKED:
        holds.refuse(connection, train.policy, now)


def shift(connection: Connection, train: Train, seconds: float, now: float) -> None:
    """Leave a time out of the train's times: the clock jumped, nobody looked, or the arms were held for so long.

    The answers from before it stay answers of this train, so its start moves only if the clock was set back.
    """
    paused = train.paused_seconds + max(0.0, seconds)
    evidence = train.evidence | {repository.PAUSED: paused, repository.COUNTED_AT: now}
    started_at = train.started_at + min(0.0, seconds)
    repository.change(connection, train, started_at=started_at, stage_at=train.stage_at + seconds, evidence=evidence)


def empty(connection: Connection, arms: Mapping[str, Assignment], arm: str, reason: str) -> None:
    """Empty an arm that nobody moved since it was read."""
    assignments.move_held(connection, arms, arm, None, writer=WRITER, reason=reason)


def share_of(train: Train) -> float:
    """The share that the canary has in the train's stage."""
    return 0.0 if train.stage == IN_SHADOW else float(train.settings["stages"][train.stage])


def is_on_track(train: Train, arms: Mapping[str, Assignment]) -> bool:
    """Whether the arms are those that the train set."""
    canary = arms.get(CANARY)
    return canary is not None and (canary.version, canary.share) == (train.version, share_of(train))


def _standing(connection: Connection, train: Train) -> dict[str, Assignment]:
    """The arms, locked. Raises StaleWrite: somebody moved `live` or the canary."""
    arms = assignments.lock(connection, train.policy)
    if arms[LIVE].version != train.blessed or not is_on_track(train, arms):
        raise StaleWrite(f"another writer moved an arm of the train of v{train.version}; it is looked at anew")
    return arms
