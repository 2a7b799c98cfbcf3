"""The hold-out: a small share of the users stays on a frozen version, so that the lift over it can be measured."""

from __future__ import annotations

import time

from sqlalchemy import Connection

from contracts import assignments, holds
from contracts.assignments import HOLDOUT, Assignment
from contracts.engines import read_replicas
from contracts.errors import Conflict, InvalidValue
from contracts.version_history import require_heard

MAX_SHARE = 0.2
RECOMMENDED = (0.01, 0.05)
"""A smaller share needs months to measure anything; a larger one keeps many people from the better version."""


def set_holdout(
    connection: Connection, *, policy: str, version: int, share: float, writer: str, reason: str
) -> Assignment:
    """Keep a share of the users on a version. The draw keeps the same people, whatever the version.

    Raises Held; InvalidValue: the share is not above 0 and at most 0.2, the version was never accepted and never live, or no engine that
    runs has a slot for it; NotFound: its bytes were removed; StaleWrite; VersionRevoked.
    """
    if not 0.0 < share <= MAX_SHARE:
        raise InvalidValue(f"the share of the hold-out is above 0 and at most {MAX_SHARE}, not {share}", param="share")
    require_heard(connection, policy, version, "version")
    now = time.time()
    running = [replica for replica in read_replicas(connection, policy) if replica.is_fresh(now)]
    if running and not any(HOLDOUT in replica.slots for replica in running):
        raise InvalidValue(
            "no engine that runs has a slot for the hold-out, so nobody would get it: add it to the slots of an engine "
            "(docs/operating.md, Arms and slots)",
            param="version",
        )
    return _move(connection, policy, version, writer=writer, reason=reason, share=share)


def end_holdout(connection: Connection, *, policy: str, writer: str, reason: str) -> Assignment:
    """Give the users of the hold-out the same versions as everybody else. Raises Conflict: there is none; Held; StaleWrite."""
    held = assignments.read(connection, policy).get(HOLDOUT)
    if held is None or held.version is None:
        raise Conflict("there is no hold-out that could end", policy=policy)
    return _move(connection, policy, None, writer=writer, reason=reason)


def _move(
    connection: Connection, policy: str, version: int | None, *, writer: str, reason: str, share: float = 0.0
) -> Assignment:
    arms = assignments.read(connection, policy)
    moved = assignments.move_held(connection, policy, arms, HOLDOUT, version, writer=writer, reason=reason, share=share)
    holds.refuse(connection, policy, time.time())
    return moved
