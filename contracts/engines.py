"""The engine replicas of a policy: one row each, written by the replica (or by the process that follows it), read by inference.

A replica announces itself every second: where it answers, the version that each of its slots holds, and what it can do. A slot serves
one arm. Slots that no replica has are a smaller ability: without a slot for the candidate nothing can be gated, and `up` says so.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Literal, NamedTuple

from sqlalchemy import Connection, delete, insert, select, update

from contracts.tables import engine_replica

FRESH_SECONDS = 10.0
"""A row that was not renewed for so long describes a replica that is gone."""
_GONE_SECONDS = 86_400.0
EngineKind = Literal["millrace", "vllm", "sglang"]
Ability = Literal["spans", "logprobs", "top_logprobs", "constraints", "penalties", "seed", "experts"]
"""`spans`: it names the version of each token. `logprobs`: those of the distribution sampled from. `constraints`: grammars.
`experts`: it records the experts of each token."""


class EngineReplica(NamedTuple):
    """One replica as it last announced itself."""

    name: str
    policy: str
    url: str
    kind: EngineKind
    region: str
    status: str
    """`serving`, or why it takes no requests: `starting`, `restarting`, `paused`, `ending`, `failed`."""
    slots: Mapping[str, int | None]
    """Arm to the version that its slot holds; None while it loads."""
    abilities: frozenset[str]
    instance: str
    """Different for each start."""
    engine: str
    dtype: str
    seen_at: float
    """UTC epoch seconds."""

    def serves(self, arm: str) -> bool:
        """True if a slot for this arm holds a version."""
        return self.slots.get(arm) is not None

    def is_fresh(self, now: float) -> bool:
        """True if it announced itself lately."""
        return now - self.seen_at <= FRESH_SECONDS


def announce(connection: Connection, replica: EngineReplica) -> None:
    """Write or renew the row of a replica."""
    values = {
        **replica._asdict(),
        "slots": dict(replica.slots),
        "abilities": sorted(replica.abilities),
        "seen_at": time.time(),
    }
    key = (engine_replica.c.policy == replica.policy) & (engine_replica.c.name == replica.name)
    if not connection.execute(update(engine_replica).where(key).values(values)).rowcount:
        connection.execute(insert(engine_replica).values(values))


def withdraw(connection: Connection, policy: str, name: str) -> None:
    """Remove the row of a replica that ends in order."""
    connection.execute(
        delete(engine_replica).where((engine_replica.c.policy == policy) & (engine_replica.c.name == name))
    )


def forget_gone(connection: Connection, policy: str) -> None:
    """Remove the rows that nobody has renewed for a day."""
    is_gone = engine_replica.c.seen_at < time.time() - _GONE_SECONDS
    connection.execute(delete(engine_replica).where((engine_replica.c.policy == policy) & is_gone))


def read_replicas(connection: Connection, policy: str) -> list[EngineReplica]:
    """All rows of a policy by name, also those that are not fresh any more."""
    rows = connection.execute(
        select(engine_replica).where(engine_replica.c.policy == policy).order_by(engine_replica.c.name)
    ).mappings()
    return [EngineReplica(**{**row, "abilities": frozenset(row["abilities"])}) for row in rows]
