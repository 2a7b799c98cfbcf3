"""SQL of release: verdicts, and the moves that follow from them in the same transaction."""

from __future__ import annotations

import time
from typing import NamedTuple

from sqlalchemy import Connection, select

from contracts import assignments
from contracts.assignments import CANDIDATE, LIVE, TRAINING, Assignment
from contracts.database import insert_or_update
from contracts.tables import verdict
from pipelines.release.rules import Decision, Sentinels, refused_in_a_row


class Verdict(NamedTuple):
    """A stored verdict."""

    version: int
    accepted: bool
    sentinels: Sentinels


def verdicts(connection: Connection, policy: str, sentinels_hash: str) -> list[Verdict]:
    """All verdicts on these sentinels, oldest first."""
    rows = connection.execute(select(verdict).where(verdict.c.policy == policy).order_by(verdict.c.at))
    return [
        Verdict(row.version, row.accepted, Sentinels(row.version, tuple(row.details["values"]), row.details["finite"]))
        for row in rows
        if row.details["sentinels"] == sentinels_hash
    ]


def store(
    connection: Connection,
    policy: str,
    candidate: Assignment,
    *,
    found: Sentinels,
    decision: Decision,
    best: Sentinels | None,
    sentinels_hash: str,
    refusals_before_rollback: int,
) -> None:
    """Write the verdict and move the arms: all or nothing.

    Raises:
        StaleWrite: the candidate changed meanwhile; the verdict is not stored.
    """
    details = {"values": list(found.values), "finite": found.finite, "sentinels": sentinels_hash}
    row = {
        "policy": policy,
        "version": found.version,
        "accepted": decision.accepted,
        "accuracy": found.accuracy if found.values else None,
        "best_accuracy": best.accuracy if best else None,
        "reason": decision.reason,
        "details": details,
        "at": time.time(),
    }
    insert_or_update(connection, verdict, row, ["accepted", "accuracy", "best_accuracy", "reason", "details", "at"])
    if candidate.version is None:
        return
    assignments.move(
        connection,
        policy=policy,
        arm=CANDIDATE,
        version=None,
        expected_epoch=candidate.epoch,
        writer="release",
        reason=f"v{found.version} judged",
    )
    arms = assignments.read(connection, policy)
    target, reason = LIVE, decision.reason
    if not decision.accepted:
        history = [held.accepted for held in verdicts(connection, policy, sentinels_hash)]
        if refused_in_a_row(history) % refusals_before_rollback != 0:
            return
        target, reason = TRAINING, f"{refusals_before_rollback} refusals in a row"
    assignments.move(
        connection,
        policy=policy,
        arm=target,
        version=found.version if decision.accepted else arms[LIVE].version,
        expected_epoch=arms[target].epoch if target in arms else 0,
        writer="release",
        reason=reason,
        share=1.0 if target == LIVE else 0.0,
    )
