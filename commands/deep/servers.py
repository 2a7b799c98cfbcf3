"""The servers of a home: do they answer, are they this release's, and is anything missing on them?

In: settings. Out: findings. Waits for: each server, as long as its client does.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Iterator
from contextlib import closing

from commands.findings import Finding, checked
from contracts import heartbeats
from contracts.topics import TOPICS
from runtime import schema
from runtime.days import missing_days
from runtime.log.loss_detection import read_positions
from runtime.settings import Settings
from weights.stores.opening import open_store_at

_REDIS_SECONDS = 10.0


def server_findings(settings: Settings) -> Iterator[Finding]:
    """Processes, database, log, Redis and weight store."""
    yield checked("database", lambda: _database(settings))
    yield checked("processes", lambda: _processes(settings))
    yield checked("kafka" if settings.kafka else "topics", lambda: _log(settings))
    if settings.redis is not None:
        yield checked("redis", lambda: _redis(settings))
    if settings.weights_url is None:
        yield checked("weights", lambda: _store(settings))


def _database(settings: Settings) -> Finding:
    """Reached, of this release, writable, and with the days of the coming week."""
    with settings.snapshot() as connection:
        schema.require_same(connection)
        without = missing_days(connection, time.time())
    with settings.transaction() as connection:
        if settings.database_url is not None and schema.is_read_only(connection):
            says = "PostgreSQL is read only: it is a standby, or its disk filled up; name the primary in database_url"
            return Finding("database", False, True, says)
    if without:
        says = f"{len(without)} partitions of days are missing, first {without[0]}: episodes makes them each hour; see its log for `day not made`"
        return Finding("database", False, False, says)
    kind = "SQLite" if settings.database_url is None else "PostgreSQL"
    return Finding("database", True, True, f"{kind} is writable, schema {schema.newest()}")


def _processes(settings: Settings) -> Finding:
    """A part of the processes is worse than none: a home that is stopped is not broken."""
    now = time.time()
    with settings.snapshot() as connection:
        states = heartbeats.states_of(heartbeats.read(connection, settings.policy), now)
    silent = [state for state in states if state.state != "up"]
    up = ", ".join(sorted({state.process for state in states if state.state == "up"}))
    if not up:
        return Finding(
            "processes", True, False, "none runs: start with `millrace up`, or each process of docs/operating.md"
        )
    if silent:
        says = "; ".join(heartbeats.in_words(state, now) for state in silent)
        return Finding(
            "processes", False, True, f"{says}: read its log in {settings.home}/logs or its container's, and start it"
        )
    return Finding("processes", True, True, f"{up}: all up")


def _log(settings: Settings) -> Finding:
    """Every topic is there; how far each worker is behind."""
    name = "kafka" if settings.kafka else "topics"
    with closing(settings.event_log()) as event_log:
        event_log.check_topics()
        found = event_log.describe()
    with settings.snapshot() as connection:
        positions = read_positions(connection)
    if missing := sorted(set(TOPICS) - found.keys()):
        says = f"topics are missing: {', '.join(missing)}. `millrace init` makes those of a new home; if they were lost, restore them"
        return Finding(name, False, True, f"{says}, or see `millrace log accept-loss --home {settings.home}`")
    behind: dict[str, int] = {}
    for (group, topic, partition), offset in positions.items():
        end = found[topic].ends.get(partition, 0) if topic in found else 0
        behind[group] = behind.get(group, 0) + max(0, end - offset)
    waiting = ", ".join(f"{group} {number}" for group, number in sorted(behind.items()))
    return Finding(name, True, True, f"{len(found)} topics; records not read: {waiting or 'none'}")


def _redis(settings: Settings) -> Finding:
    """What is written can be read. Its clients never fail, so only this shows that it is away."""
    from runtime.replicas.redis_connection import redis_refusal  # noqa: PLC0415 embedded need not load the client

    key, value = f"doctor-{secrets.token_hex(8)}", secrets.token_bytes(16)

    async def ask() -> bytes | None:
        links = settings.replica_links()
        try:
            await links.sessions.write({key: value}, _REDIS_SECONDS)
            [found] = await links.sessions.read([key])
            return found
        finally:
            await links.aclose()

    if asyncio.run(ask()) == value:
        return Finding("redis", True, False, "keeps what is written")
    if refusal := redis_refusal(settings.redis or ""):
        return Finding("redis", False, False, refusal)
    says = (
        "it does not answer within 0.1 s, or refuses: each replica counts limits alone and sessions are forgotten; start it, or check its "
        "address, password and `maxmemory`"
    )
    return Finding("redis", False, False, says)


def _store(settings: Settings) -> Finding:
    open_store_at(settings.weights).check()
    return Finding("weights", True, True, f"{settings.weights} accepts writes, and refuses to overwrite")
