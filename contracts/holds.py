"""Freeze and pin: an operator holds the arms of a policy, and nothing moves by itself until the hold ends.

    freeze   every arm stays as it is
    pin      everybody gets one version: `live` moves to it, canary, learning and provider are emptied, no version is revoked

In: a decision of an operator. Out: rows of `train_hold`, which are never changed: the newest one is in force, until its time is over
or a row `resume` follows. Waits for: whoever moves an arm just now.

The gate, the train, and operators who promote or hot load have to ask `refuse` after their moves: while the hold was made they waited
for one row or the other, so one of the two sees the other. A rollback goes through, and ends a pin.
"""

from __future__ import annotations

import re
import time
from typing import Literal, NamedTuple

from sqlalchemy import Connection, select

from contracts import assignments, revocations
from contracts.assignments import CANARY, LEARNING, LIVE, PROVIDER
from contracts.errors import Conflict, Held, InvalidValue, StaleWrite
from contracts.tables import train_hold
from contracts.tables.statements import insert_new
from contracts.version_history import require_heard

HoldKind = Literal["freeze", "pin"]
LONGEST_SECONDS = 30 * 86_400.0
_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}


class Hold(NamedTuple):
    """Why nothing moves. Times are UTC epoch seconds."""

    kind: HoldKind
    version: int | None
    until: float | None
    """None: until somebody resumes."""
    writer: str
    reason: str
    at: float

    @property
    def words(self) -> str:
        """What holds, since when and until when: for sentences that go on."""
        what = "the arms are frozen" if self.version is None else f"v{self.version} is pinned"
        end = "until somebody resumes" if self.until is None else f"until {_clock(self.until)}"
        return f"{what} {end} (by {self.writer}: {self.reason})"


class HoldChange(NamedTuple):
    """One entry of the history."""

    epoch: int
    kind: Literal["freeze", "pin", "resume"]
    version: int | None
    until: float | None
    writer: str
    reason: str
    at: float


def read(connection: Connection, policy: str, now: float) -> Hold | None:
    """The hold in force at a time; None if there is none, or its time is over."""
    last = _last(connection, policy)
    if last is None or last.kind == "resume" or (last.until is not None and last.until <= now):
        return None
    return Hold(last.kind, last.version, last.until, last.writer, last.reason, last.at)


def read_end(connection: Connection, policy: str, now: float) -> float | None:
    """When the last hold ended, UTC epoch seconds; None if there never was one, or one is in force."""
    last = _last(connection, policy)
    if last is None:
        return None
    ended = last.at if last.kind == "resume" else last.until
    return ended if ended is not None and ended <= now else None


def held_since(connection: Connection, policy: str, now: float) -> float | None:
    """Since when the arms are held without a gap, UTC epoch seconds; None if they are not."""
    since: float | None = None
    for change in read_history(connection, policy):
        ended = now if since is None else since
        if change.kind == "resume" or (change.until is not None and change.until <= ended):
            break
        since = change.at
    return since


def read_history(connection: Connection, policy: str, limit: int = 100) -> list[HoldChange]:
    """The newest entries, newest first."""
    rows = connection.execute(
        select(train_hold).where(train_hold.c.policy == policy).order_by(train_hold.c.epoch.desc()).limit(limit)
    )
    return [HoldChange(*(row[name] for name in HoldChange._fields)) for row in rows.mappings()]


def refuse(connection: Connection, policy: str, now: float) -> None:
    """Refuse to move arms while they are held. Raises Held: says by whom, until when, and how to go on."""
    if (hold := read(connection, policy, now)) is not None:
        raise Held(f"{hold.words}: nothing moves. To go on: millrace policy resume", policy=policy)


def freeze(
    connection: Connection, *, policy: str, until: float | None, writer: str, reason: str, now: float | None = None
) -> Hold:
    """Keep every arm as it is. A second freeze replaces the first. Raises Held: a version is pinned; InvalidValue, StaleWrite: as `pin`."""
    now = time.time() if now is None else now
    if until is not None:
        check_seconds(until - now, "until")
    assignments.lock(connection, policy)
    held = read(connection, policy, now)
    if held is not None and held.kind == "pin":
        raise Held(f"{held.words}, so nothing moves already. To freeze instead: millrace policy resume", policy=policy)
    return _write(connection, policy, Hold("freeze", None, until, writer, reason, now))


def pin(
    connection: Connection,
    *,
    policy: str,
    version: int,
    until: float,
    writer: str,
    reason: str,
    now: float | None = None,
    seen_live: int | None = None,
) -> Hold:
    """Give everybody one published version until a time. The hold-out stays; a second pin of the same version replaces the first.

    `seen_live`: the live version when the operator decided. Raises Held: frozen, or another version is pinned; InvalidValue: it was never
    accepted and never live, or `until` is over or more than 30 days away; NotFound: its bytes were removed, or nothing is live yet;
    StaleWrite: another operator was faster, or `seen_live` is no longer live; VersionRevoked.
    """
    now = time.time() if now is None else now
    check_seconds(until - now, "until")
    arms = assignments.lock(connection, policy)
    assignments.live_version(arms, seen_live)
    held = read(connection, policy, now)
    if held is not None and (held.kind, held.version) != ("pin", version):
        raise Held(f"{held.words}. To pin v{version} instead: millrace policy resume", policy=policy)
    revocations.refuse(connection, policy, version)
    require_heard(connection, policy, version, "version")
    live_epoch, why = None, f"v{version} is pinned until {_clock(until)}: {reason}"
    for arm in (LEARNING, CANARY, PROVIDER):
        if arm in arms and (arms[arm].version is not None or arms[arm].share):
            assignments.move_held(connection, policy, arms, arm, None, writer=writer, reason=why)
    if arms[LIVE].version != version:
        live_epoch = assignments.move_held(
            connection, policy, arms, LIVE, version, writer=writer, reason=why, share=1.0
        ).epoch
    return _write(connection, policy, Hold("pin", version, until, writer, reason, now), live_epoch)


def resume(connection: Connection, *, policy: str, writer: str, reason: str, now: float | None = None) -> Hold:
    """End the hold in force, and return it. Raises Conflict: nothing is held; StaleWrite: another operator was faster."""
    now = time.time() if now is None else now
    held = read(connection, policy, now)
    if held is None:
        raise Conflict("nothing is frozen or pinned, so there is nothing to resume", policy=policy)
    _write(connection, policy, held._replace(writer=writer, reason=reason, at=now), ends=True)
    return held


def end_pin(connection: Connection, policy: str, *, writer: str, reason: str) -> None:
    """End a pin whose version `live` is about to leave. A freeze stays."""
    held = read(connection, policy, now := time.time())
    if held is not None and held.kind == "pin":
        _write(connection, policy, held._replace(writer=writer, reason=reason, at=now), ends=True)


def seconds_of(text: str) -> float:
    """Seconds of a duration such as `90s`, `30m`, `2h`, `1.5d`. Raises InvalidValue: another form, 0, or more than 30 days."""
    found = re.fullmatch(r"([0-9]{1,9}(?:\.[0-9]{1,3})?)([smhd])", text.strip())
    if found is None:
        raise InvalidValue(f"{text!r} is not a duration: write a number and s, m, h or d, for example 2h", param="for")
    return check_seconds(float(found[1]) * _UNITS[found[2]])


def check_seconds(seconds: float, param: str = "for") -> float:
    """The seconds that a hold shall last. Raises InvalidValue: none, or more than 30 days."""
    if not 0.0 < seconds <= LONGEST_SECONDS:
        raise InvalidValue("a hold lasts more than 0 seconds and at most 30 days", param=param)
    return seconds


def _last(connection: Connection, policy: str) -> HoldChange | None:
    return next(iter(read_history(connection, policy, 1)), None)


def _write(
    connection: Connection, policy: str, hold: Hold, live_epoch: int | None = None, *, ends: bool = False
) -> Hold:
    last = _last(connection, policy)
    values = hold._asdict() | ({"kind": "resume"} if ends else {})
    row = {**values, "policy": policy, "epoch": last.epoch + 1 if last else 1, "live_epoch": live_epoch}
    if not insert_new(connection, train_hold, row):
        raise StaleWrite("another operator froze, pinned or resumed at the same moment; look again", policy=policy)
    return hold


def _clock(at: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(at))
