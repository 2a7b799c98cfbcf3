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
from contracts.assignments import CANARY, LIVE, PROVIDER, Assignment, provider_share
from contracts.errors import StaleWrite
from contracts.rejection import revoke_unproven
from pipelines.release.train import repository
from pipelines.release.train.repository import Train
from pipelines.release.train.rules import TrainMove

WRITER = "release"
ENDED = {
    "arrive": repository.SHIPPED,
    "revoke": repository.REVOKED,
    "withdraw": repository.WITHDRAWN,
    "change_over": repository.WITHDRAWN,
}
"""By the kind of a move that ends a train: the state that it gets."""
_MOST_STOPS = 20


def depart(
    connection: Connection,
    version: int,
    *,
    arms: Mapping[str, Assignment],
    settings: Mapping[str, Any],
    evidence: Mapping[str, Any],
    now: float,
) -> None:
    """Begin a train: a row, and the arm `canary` at the version without any user. `arms`: as they were read.

    `evidence`: what it keeps of earlier trains.

    Raises Held, NotFound, StaleWrite, VersionRevoked: nothing is changed; `NotFound` says that the version's bytes were removed.
    """
    live, policy = arms[LIVE], arms[LIVE].policy
    assignments.move_held(connection, policy, arms, CANARY, version, writer=WRITER, reason=f"v{version} departs")
    now_held = assignments.read(connection, policy)
    if (now_held[LIVE].epoch, now_held.get(PROVIDER)) != (live.epoch, arms.get(PROVIDER)):
        raise StaleWrite(f"another version or the provider was moved before v{version} departed; it is looked at anew")
    row = {
        "policy": policy,
        "version": version,
        "blessed": live.version,
        "state": repository.SHADOW,
        "stage": repository.IN_SHADOW,
        "epoch": 1,
    }
    row |= {"started_at": now, "stage_at": now, "ended_at": None, "reason": f"v{version} departed"}
    repository.add(connection, row | {"settings": dict(settings), "evidence": {**evidence, repository.COUNTED_AT: now}})
    holds.refuse(connection, policy, now)


def make(connection: Connection, train: Train, move: TrainMove, evidence: Mapping[str, Any], now: float) -> None:
    """Make a move of a running train, of any kind but `stay`. `evidence`: what its row then holds.

    Raises Held, NotFound, StaleWrite, VersionRevoked: nothing is changed.
    """
    arms, kind, reason = _standing(connection, train), move.kind, move.reason
    values: dict[str, Any] = {"reason": reason, "evidence": dict(evidence)}
    if kind == "advance":
        values |= {"state": repository.CANARY_STAGE, "stage": train.stage + 1, "stage_at": now}
    elif kind in ENDED:
        values |= {"state": ENDED[kind], "ended_at": now}
    else:
        resumed = repository.SHADOW if train.stage == repository.IN_SHADOW else repository.CANARY_STAGE
        values["state"] = repository.STOPPED if kind == "stop" else resumed
        values["evidence"] = _with_stop(train, values["state"], reason, now)
    if kind == "change_over":  # to a better version, which departs next; this one may depart again
        changed = {repository.CHANGED_IN: [*train.changed_in, train.stage], repository.CHANGED_TO: move.to}
        values["evidence"] |= changed | {repository.BY_OTHERS: True}
    repository.change(connection, train, **values)
    if kind == "revoke":  # with its descendants, permanently; the trainer goes back to the live version
        revoke_unproven(connection, train.policy, train.version, writer=WRITER, reason=reason)
    elif kind in ENDED:
        empty(connection, arms, CANARY, reason)
    elif kind == "advance":
        share = train.settings["stages"][train.stage + 1]
        assignments.move_held(
            connection, train.policy, arms, CANARY, train.version, writer=WRITER, reason=reason, share=share
        )
    if kind == "arrive":
        if train.provider_share:
            assignments.move_held(connection, train.policy, arms, PROVIDER, None, writer=WRITER, reason=reason)
        assignments.move_held(
            connection, train.policy, arms, LIVE, train.version, writer=WRITER, reason=reason, share=1.0
        )
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
    empty(connection, arms, CANARY, reason)
    if state != repository.REVOKED:
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
    assignments.move_held(connection, arms[LIVE].policy, arms, arm, None, writer=WRITER, reason=reason)


def share_of(train: Train) -> float:
    """The share that the canary has in the train's stage."""
    return 0.0 if train.stage == repository.IN_SHADOW else float(train.settings["stages"][train.stage])


def is_on_track(train: Train, arms: Mapping[str, Assignment]) -> bool:
    """Whether the arms are those that the train set."""
    canary = arms.get(CANARY)
    return canary is not None and (canary.version, canary.share) == (train.version, share_of(train))


def _standing(connection: Connection, train: Train) -> dict[str, Assignment]:
    """The arms, locked. Raises StaleWrite: somebody moved `live`, the provider or the canary."""
    arms = assignments.lock(connection, train.policy)
    is_same = (arms[LIVE].version, provider_share(arms)) == (train.blessed, train.provider_share)
    if not is_same or not is_on_track(train, arms):
        raise StaleWrite(f"another writer moved an arm of the train of v{train.version}; it is looked at anew")
    return arms


def _with_stop(train: Train, state: str, reason: str, now: float) -> dict[str, Any]:
    stop = {"at": now, "state": state, "stage": train.stage, "reason": reason, "epoch": train.epoch + 1}
    return {**train.evidence, repository.STOPS: [*train.evidence.get(repository.STOPS, ()), stop][-_MOST_STOPS:]}
