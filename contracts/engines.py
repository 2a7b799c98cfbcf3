"""The engine replicas of a policy: one row each, written by the replica (or by the process that follows it), read by inference.

A replica announces itself every second: where it answers, the version that each of its slots holds, and what it can do. A slot serves
one arm. Slots that no replica has are a smaller ability: without a slot for the candidate nothing can be gated, and `up` says so.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal, NamedTuple, TypedDict

from sqlalchemy import ColumnElement, Connection, RowMapping, delete, select, update

from contracts.tables import engine_replica
from contracts.tables.statements import insert_new

FRESH_SECONDS = 10.0
"""A row that was not renewed for so long describes a replica that is gone."""
_GONE_SECONDS = 86_400.0
Ability = Literal[
    "spans", "logprobs", "top_logprobs", "constraints", "penalties", "seed", "experts", "support", "adapters"
]
"""`spans`: it names the version of each token. `logprobs`: those of the distribution sampled from. `constraints`: grammars.
`experts`: it records the experts of each token. `support`: it names enough of the likeliest tokens to tell which ones could be drawn.
`adapters`: its versions are adapters over version 0, and each is asked for by its name."""


class LoadProblem(TypedDict):
    """Why a replica could not load the version that an arm is assigned."""

    version: int
    code: str
    message: str
    attempts: int


class EngineReplica(NamedTuple):
    """One replica as it last announced itself."""

    name: str
    policy: str
    url: str
    kind: str
    """As `engines.registry` names it."""
    region: str
    status: str
    """`serving`, or why it takes no requests: `starting`, `restarting`, `paused`, `ending`, `failed`.
    Readers see `another_run`, `another_base` or `unknown_kind` in the rows of replicas that they may not ask, see `engines.fitting`."""
    slots: Mapping[str, int | None]
    """Arm to the version that its slot holds; None while it loads."""
    abilities: frozenset[str]
    instance: str
    """Different for each start."""
    engine: str
    dtype: str
    seen_at: float
    """UTC epoch seconds."""
    run: str = ""
    """The run of its home; empty if it is not known."""
    base: str = ""
    """The fingerprint of its base policy; empty if it is not known. See `runtime.base_policy`."""
    problems: Mapping[str, LoadProblem] = MappingProxyType({})
    """Arm to why its assigned version could not be loaded."""

    def serves(self, arm: str) -> bool:
        """True if a slot for this arm holds a version."""
        return self.slots.get(arm) is not None

    def is_fresh(self, now: float) -> bool:
        """True if it announced itself lately."""
        return now - self.seen_at <= FRESH_SECONDS


def announce(connection: Connection, replica: EngineReplica, *, instead_of: str | None = None) -> bool:
    """Write or renew a row; `instead_of`: the instance whose row may be replaced, None any. False if it is another's."""
    values = replica._asdict() | {"slots": dict(replica.slots), "problems": dict(replica.problems)}
    values |= {"abilities": sorted(replica.abilities), "seen_at": time.time()}
    mine = _named(replica.policy, replica.name)
    if instead_of is not None:
        mine &= engine_replica.c.instance == instead_of
    is_renewed = connection.execute(update(engine_replica).where(mine).values(values)).rowcount > 0
    return is_renewed or insert_new(connection, engine_replica, values)


def withdraw(connection: Connection, policy: str, name: str, instance: str) -> None:
    """Remove the row of a replica that ends in order, unless another start of it wrote the row."""
    mine = _named(policy, name) & (engine_replica.c.instance == instance)
    connection.execute(delete(engine_replica).where(mine))


def forget_gone(connection: Connection, policy: str) -> None:
    """Remove the rows that nobody has renewed for a day."""
    is_gone = engine_replica.c.seen_at < time.time() - _GONE_SECONDS
    connection.execute(delete(engine_replica).where((engine_replica.c.policy == policy) & is_gone))


def read_replicas(connection: Connection, policy: str) -> list[EngineReplica]:
    """All rows of a policy by name, also those that are not fresh any more."""
    found = select(engine_replica).where(engine_replica.c.policy == policy).order_by(engine_replica.c.name)
    return [_replica_of(row) for row in connection.execute(found).mappings()]


def read_replica(connection: Connection, policy: str, name: str) -> EngineReplica | None:
    """The row of one name, locked until the transaction ends; None if there is none."""
    mine = select(engine_replica).where(_named(policy, name)).with_for_update()
    row = connection.execute(mine).mappings().first()
    return None if row is None else _replica_of(row)


def _named(policy: str, name: str) -> ColumnElement[bool]:
    return (engine_replica.c.policy == policy) & (engine_replica.c.name == name)


def _replica_of(row: RowMapping) -> EngineReplica:
    return EngineReplica(**{**row, "abilities": frozenset(row["abilities"])})
