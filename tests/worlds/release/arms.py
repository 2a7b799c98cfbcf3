"""Moves of arms, as whoever moves them does."""

from __future__ import annotations

from typing import Any

from contracts import assignments
from runtime.database import Database


def point(database: Database, policy: str, arm: str, version: int | None, **more: Any) -> None:
    """Move an arm, which nobody else moves meanwhile. `more`: see `assignments.move`."""
    with database.transaction() as connection:
        held = assignments.read(connection, policy).get(arm)
        epoch = held.epoch if held else 0
        more = {"writer": "ann", "reason": "r"} | more
        assignments.move(connection, policy=policy, arm=arm, version=version, expected_epoch=epoch, **more)
