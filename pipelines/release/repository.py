"""SQL of release: answers, anchors and verdicts, and the moves of arms in the same transaction."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

from sqlalchemy import Connection, delete, insert, or_, select

from contracts import assignments, holds, revocations
from contracts.assignments import CANARY, CANDIDATE, LEARNING, LIVE, TRAINING, Assignment
from contracts.errors import StaleWrite
from contracts.tables import assignment, gate_anchor, sentinel_answer, verdict
from contracts.tables.statements import insert_or_update
from pipelines.release.asking import SentinelAnswer
from pipelines.release.rules import refused_in_a_row
from pipelines.release.train.standing import AcceptedArm

_WRITER = "release"
ANCHORS_KEPT = 4
"""Anchors of a task whose answers are kept, so that an older one can replace those that are revoked."""


class VersionVerdict(NamedTuple):
    """A verdict, ready to be stored. `proven`: tasks that get this version as their next anchor, and why."""

    version: int
    accepted: bool
    reason: str
    accuracy: float | None
    against: float | None
    details: dict[str, Any]
    proven: dict[str, str]


def is_judged(connection: Connection, policy: str, sentinels_hash: str, version: int) -> bool:
    """True if there is a verdict on a version from these sentinels."""
    statement = select(verdict.c.details).where(verdict.c.policy == policy, verdict.c.version == version)
    details = connection.execute(statement).scalar_one_or_none()
    return details is not None and details.get("sentinels") == sentinels_hash


def assigned_since(connection: Connection, policy: str, arm: str) -> float | None:
    """Since when an arm has had its version, UTC epoch seconds; None if it is empty."""
    columns = assignment.c
    statement = select(columns.at).where(columns.policy == policy, columns.arm == arm, columns.version.is_not(None))
    return connection.execute(statement).scalar_one_or_none()


def read_answers(
    connection: Connection, policy: str, sentinels_hash: str, version: int, draws: Sequence[int]
) -> dict[int, SentinelAnswer]:
    """By place: the stored answers of a version in the given draws. `draws`: one for each sentinel, in order."""
    columns = sentinel_answer.c
    statement = select(columns.position, columns.draw, columns.answer).where(
        columns.policy == policy, columns.version == version, columns.sentinels_hash == sentinels_hash
    )
    return {
        row.position: SentinelAnswer(**row.answer)
        for row in connection.execute(statement)
        if row.position < len(draws) and row.draw == draws[row.position]
    }


def keep_answers(
    connection: Connection,
    policy: str,
    sentinels_hash: str,
    version: int,
    answers: Sequence[SentinelAnswer],
    *,
    draws: Sequence[int],
) -> None:
    """Store all answers of a version and delete its earlier ones. `draws`: see `read_answers`."""
    columns = sentinel_answer.c
    connection.execute(delete(sentinel_answer).where(columns.policy == policy, columns.version == version))
    head = {"policy": policy, "version": version, "sentinels_hash": sentinels_hash, "at": time.time()}
    rows = [
        {**head, "position": place, "draw": draw, "answer": answer._asdict()}
        for place, (answer, draw) in enumerate(zip(answers, draws, strict=True))
    ]
    if rows:
        connection.execute(insert(sentinel_answer), rows)


def anchors(connection: Connection, policy: str) -> dict[str, list[int]]:
    """By task: its anchors, without revoked versions, the newest first."""
    revoked = revocations.read(connection, policy)
    newest_first = select(gate_anchor).where(gate_anchor.c.policy == policy).order_by(gate_anchor.c.at.desc())
    found: dict[str, list[int]] = {}
    for row in connection.execute(newest_first):
        if row.version not in revoked:
            found.setdefault(row.task, []).append(row.version)
    return found


def set_anchor(connection: Connection, policy: str, task: str, version: int, reason: str) -> None:
    """Make a version the newest anchor of a task."""
    row = {"policy": policy, "task": task, "version": version, "at": time.time(), "reason": reason}
    insert_or_update(connection, gate_anchor, row, ["at", "reason"])


def store_live(connection: Connection, policy: str, judged: VersionVerdict) -> None:
    """Store the values of the live version, which is not a candidate. An earlier verdict on it keeps its decision and reason."""
    same = (verdict.c.policy == policy, verdict.c.version == judged.version)
    held = connection.execute(select(verdict.c.accepted, verdict.c.reason).where(*same)).one_or_none()
    if held is not None:
        judged = judged._replace(accepted=held.accepted, reason=held.reason)
    _write(connection, policy, judged)


def store(
    connection: Connection,
    policy: str,
    candidate: Assignment,
    judged: VersionVerdict,
    *,
    live: Assignment,
    most_refusals: int,
    accepted_arm: AcceptedArm,
) -> None:
    """Store the verdict on a candidate and move the arms, all or nothing. `candidate`, `live`: the arms as they were compared.

    After `most_refusals` in a row the trainer goes back to the live version. An accepted version gets `accepted_arm`.

    Raises Held: an operator froze the arms or pinned a version meanwhile; nothing is stored; StaleWrite: an arm was moved or a compared
    version was revoked meanwhile; nothing is stored.
    """
    version, revoked = judged.version, revocations.read(connection, policy)
    compared = {item["version"] for task in judged.details["tasks"].values() for item in task["comparisons"]}
    if gone := sorted(revoked.keys() & (compared | {version} if judged.accepted else compared)):
        raise StaleWrite(f"v{gone[0]} was revoked while v{version} was judged; it is judged anew")
    if assignments.read(connection, policy)[LIVE].epoch != live.epoch:
        raise StaleWrite(f"another version became live while v{version} was judged; it is judged anew")
    _write(connection, policy, judged)
    was = {LIVE: live, CANDIDATE: candidate}
    assignments.move_held(connection, policy, was, CANDIDATE, None, writer=_WRITER, reason=f"v{version} judged")
    for task, reason in judged.proven.items():
        set_anchor(connection, policy, task, version, reason)
    arms, sentinels_hash = assignments.read(connection, policy), judged.details["sentinels"]
    if judged.accepted:
        _accept(connection, policy, judged, arms, accepted_arm)
    elif (
        not judged.details.get("revoked")
        and refused_in_a_row(_history(connection, policy, sentinels_hash)) % most_refusals == 0
    ):
        reason = f"{most_refusals} refusals in a row"
        assignments.move_held(connection, policy, arms, TRAINING, arms[LIVE].version, writer=_WRITER, reason=reason)
    holds.refuse(connection, policy, time.time())


def _accept(
    connection: Connection, policy: str, judged: VersionVerdict, arms: Mapping[str, Assignment], accepted: AcceptedArm
) -> None:
    version, arm = judged.version, accepted.arm
    if arm == LIVE and LEARNING in arms and arms[LEARNING].version is not None:
        reason = f"v{version} goes live at once: there is no train"
        assignments.move_held(connection, policy, arms, LEARNING, None, writer=_WRITER, reason=reason)
    if arm is not None:
        assignments.move_held(
            connection, policy, arms, arm, version, writer=_WRITER, reason=judged.reason, share=accepted.share
        )
    # Versions on the track are, or may become, live, and are then compared with.
    on_track = [arms[name].version for name in (LIVE, LEARNING, CANARY) if name in arms and arm != LIVE]
    keep = [found for found in (version, *on_track) if found is not None]
    forget(connection, policy, judged.details["sentinels"], keep)


def forget(connection: Connection, policy: str, sentinels_hash: str, keep: Collection[int]) -> None:
    """Delete answers that no later comparison needs: all but those of `keep` and of the anchors."""
    anchored = {version for versions in anchors(connection, policy).values() for version in versions[:ANCHORS_KEPT]}
    columns = sentinel_answer.c
    is_old = or_(columns.version.not_in({*keep, *anchored}), columns.sentinels_hash != sentinels_hash)
    connection.execute(delete(sentinel_answer).where(columns.policy == policy, is_old))


def _history(connection: Connection, policy: str, sentinels_hash: str) -> list[bool]:
    """Verdicts from these sentinels, oldest first, without refusals of revoked versions, which were never compared."""
    rows = connection.execute(select(verdict).where(verdict.c.policy == policy).order_by(verdict.c.at))
    return [
        row.accepted
        for row in rows
        if row.details.get("sentinels") == sentinels_hash and not row.details.get("revoked")
    ]


def _write(connection: Connection, policy: str, judged: VersionVerdict) -> None:
    values: dict[str, Any] = {"accepted": judged.accepted, "accuracy": judged.accuracy, "best_accuracy": judged.against}
    values |= {"reason": judged.reason, "details": judged.details, "at": time.time()}
    insert_or_update(connection, verdict, {"policy": policy, "version": judged.version, **values}, [*values])
