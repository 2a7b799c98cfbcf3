"""Leases in tests: the right to train, and trainers that died or were stopped."""

from __future__ import annotations

import subprocess
import sys

import msgspec
from sqlalchemy import update

from contracts.tables import training_lease
from runtime.database import Database
from runtime.lease import Lease
from runtime.lease_holder import LeaseHolder, this_process


def a_lease(database: Database, policy: str, floor: int = 0) -> Lease:
    """Held by a process that has died already: whoever wants it next takes it at once, as after a crash."""
    return Lease.acquire(database, policy, floor=floor, holder=a_dead_process())


def a_dead_process() -> LeaseHolder:
    """On this machine, before its last boot."""
    return msgspec.structs.replace(this_process(), boot="before the last one")


def a_process_that_ended() -> LeaseHolder:
    """On this machine, since its last boot: its id may be used again, its start not."""
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    return msgspec.structs.replace(this_process(), pid=ended.pid)


def let_it_expire(database: Database, policy: str) -> None:
    """As if the holder had not renewed for a lifetime."""
    with database.transaction() as connection:
        held = training_lease.c.policy == policy
        connection.execute(update(training_lease).where(held).values(renewed_at=training_lease.c.renewed_at - 3600.0))
