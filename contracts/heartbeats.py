"""Signs of life of every process: one row each, renewed every two seconds, removed when the process ends in order.

The row of a process that was killed or stopped grows old.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Literal, NamedTuple

from sqlalchemy import Connection, delete, select

from contracts.tables import process_beat
from contracts.tables.statements import insert_or_update

BEAT_SECONDS = 2.0
FRESH_SECONDS = 6.0
"""Three beats: a process that was silent for longer is down."""
NEEDED = ("episodes", "rewards", "training", "release")
"""Processes that every home needs; the servers differ from home to home."""
_GONE_SECONDS = 86_400.0
_REPLACED_SECONDS = 600.0
"""A silent replica of a process that has another one is told for so long: it may have been replaced under another name."""


class ProcessBeat(NamedTuple):
    """The newest sign of life of one process. Times are UTC epoch seconds."""

    process: str
    replica: str
    """Host and number."""
    at: float
    step_at: float
    """When its main loop last finished a step."""
    longest_step_seconds: float
    """A loop whose step takes longer hangs."""


class ProcessState(NamedTuple):
    """How one process is."""

    process: str
    replica: str
    """Empty: no replica is known."""
    state: Literal["up", "hangs", "down"]
    since: float | None
    """When it was last heard of, or when its loop last moved; None: never."""


def beat(connection: Connection, policy: str, sign: ProcessBeat) -> None:
    """Renew the row of a process."""
    row = {"policy": policy, **sign._asdict()}
    insert_or_update(connection, process_beat, row, ("at", "step_at", "longest_step_seconds"))


def withdraw(connection: Connection, policy: str, process: str, replica: str) -> None:
    """Remove the row of a process that ends in order, and rows that were not renewed for a day."""
    columns = process_beat.c
    mine = (columns.process == process) & (columns.replica == replica)
    gone = columns.at < time.time() - _GONE_SECONDS
    connection.execute(delete(process_beat).where(columns.policy == policy, mine | gone))


def read(connection: Connection, policy: str) -> list[ProcessBeat]:
    """The rows of a policy; none in a home in which no process ever wrote a sign."""
    rows = connection.execute(select(process_beat).where(process_beat.c.policy == policy))
    return [ProcessBeat(*(row[name] for name in ProcessBeat._fields)) for row in rows.mappings()]


def states_of(beats: Iterable[ProcessBeat], now: float) -> list[ProcessState]:
    """The state of each known process, and of each needed one that is not known; nothing without any sign."""
    found = list(beats)
    if not found:
        return []
    fresh = {sign.process for sign in found if now - sign.at <= FRESH_SECONDS}
    states = [_state_of(sign, now) for sign in found if sign.process not in fresh or now - sign.at <= _REPLACED_SECONDS]
    known = {state.process for state in states}
    missing = [ProcessState(name, "", "down", None) for name in NEEDED if name not in known]
    return sorted([*states, *missing])


def _state_of(sign: ProcessBeat, now: float) -> ProcessState:
    if now - sign.at > FRESH_SECONDS:
        return ProcessState(sign.process, sign.replica, "down", sign.at)
    if now - sign.step_at > sign.longest_step_seconds:
        return ProcessState(sign.process, sign.replica, "hangs", sign.step_at)
    return ProcessState(sign.process, sign.replica, "up", sign.at)


def in_words(state: ProcessState, now: float) -> str:
    """What is wrong with a process that is not up."""
    name = state.process + (f" ({state.replica})" if state.replica else "")
    if state.since is None:
        return f"{name} does not run: no process of this name has announced itself"
    says = "hangs: its loop has not moved" if state.state == "hangs" else "is down: silent"
    return f"{name} {says} for {max(0.0, now - state.since):.0f} s"
