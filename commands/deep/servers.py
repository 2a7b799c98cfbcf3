"""The processes, ports and servers of a home: do they answer, are they this home's and this release's, and is anything missing?

In: settings, signs of life, keys. Out: findings. Waits for: some seconds per port, and each server as long as its client does.
"""

from __future__ import annotations

import asyncio
import errno
import secrets
import socket
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from typing import NamedTuple

import httpx

from commands.findings import Finding, checked, missing, note
from contracts import heartbeats
from contracts.errors import MillraceError, Unavailable
from contracts.heartbeats import ProcessState
from contracts.topics import TOPICS
from runtime import schema
from runtime.clocks import MOST_SECONDS
from runtime.days import missing_days
from runtime.engine_key import authorization, engine_key
from runtime.log.loss_detection import read_positions
from runtime.operator_key import operator_key
from runtime.settings import Settings
from weights.stores.opening import open_store_at

_REDIS_SECONDS, _PORT_SECONDS = 10.0, 3.0


def process_findings(settings: Settings) -> Iterator[Finding]:
    """One finding for each process that is not up, else one for all; none in a home that never ran."""
    if settings.database_url is None and not (settings.home / "millrace.db").exists():
        return
    now = time.time()
    try:
        up, silent = _states(settings, now)
    except Unavailable as error:
        yield note("processes", error.message)
        return
    yield from (note("process", heartbeats.in_words(state, now)) for state in silent)
    if up and not silent:
        yield Finding("processes", True, False, f"{up}: all up")


def clock_findings(settings: Settings) -> Iterator[Finding]:
    """Whether a process has signed with a later time than this machine has: then one of the clocks is wrong."""
    now = time.time()
    try:
        with settings.snapshot() as connection:
            beats = heartbeats.read(connection, settings.policy)
    except MillraceError as error:
        yield note("clocks", error.message)
        return
    ahead = {f"{beat.process} ({beat.replica})": beat.at - now for beat in beats if beat.at - now > MOST_SECONDS}
    for name, seconds in ahead.items():
        says = f"{name} signed {seconds:.0f} s in the future: its clock is ahead of this machine's"
        yield missing("clocks", f"{says}; set both (timedatectl set-ntp true)")
    if not ahead:
        yield Finding("clocks", True, False, f"no process is ahead of this machine by more than {MOST_SECONDS:.0f} s")


class _Port(NamedTuple):
    """A port, and a request that only this home's key may make."""

    process: str
    host: str
    number: int
    path: str


def port_findings(settings: Settings) -> Iterator[Finding]:
    """One finding per port that the settings name."""
    try:
        operator = {"Authorization": f"Bearer {operator_key(settings.home)}"}
        engine = dict(authorization(engine_key(settings.home)))
    except (OSError, UnicodeDecodeError, MillraceError) as error:
        yield missing("ports", f"this home's keys cannot be read ({error}): see docs/operating.md, Keys")
        return
    for port in _ports(settings):
        yield _answer_at(port, engine if port.process == "engine" else operator)


def _ports(settings: Settings) -> Iterator[_Port]:
    yield _Port("inference" if settings.is_split else "web", settings.web_host, settings.web_port, "/v1/models")
    for process, host, number, path in (
        ("feedback", settings.feedback_host, settings.feedback_port, "/v1/feedback/none"),
        ("dashboard", settings.dashboard_host, settings.dashboard_port, "/api/state"),
    ):
        if number is not None:
            yield _Port(process, host or settings.web_host, number, path)
    if settings.base:
        yield _Port("engine", settings.engine_host, settings.engine_port, "/state")


def _answer_at(port: _Port, headers: dict[str, str]) -> Finding:
    name, place = f"port {port.number}", f"{port.process} at {port.host}:{port.number}"
    if _is_free(port.host, port.number):
        return Finding(name, True, False, f"{place}: free, so it does not run")
    url, is_engine = f"http://{port.host}:{port.number}", port.process == "engine"
    try:
        allowed = httpx.get(f"{url}{port.path}", headers=headers, timeout=_PORT_SECONDS)
        ready = httpx.get(f"{url}/ready", timeout=_PORT_SECONDS)
    except httpx.HTTPError as error:
        says = f"{place}: something listens and does not answer as Millrace does ({type(error).__name__}): find it with `ss -ltnp`, or "
        return missing(name, f"{says}start with another port")
    if allowed.status_code in {httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN}:
        says = f"{place}: it refuses this home's key, so it is of another home"
        return missing(name, f"{says}: end that one, or start with another port")
    if not ready.is_success and not is_engine:
        return missing(name, f"{place}: not ready: {ready.text[:300]}")
    return Finding(name, True, False, f"{place}: this home's" + ("" if is_engine else ", ready"))


def _is_free(host: str, port: int) -> bool:
    """Whether nothing listens there. False for another machine's port: only a request can tell."""
    error = bind_error(host, port)
    return error is None or not (
        error.errno in {errno.EADDRINUSE, errno.EADDRNOTAVAIL} or isinstance(error, socket.gaierror)
    )


def bind_error(host: str, port: int) -> OSError | None:
    """Why no server can be started there; None: one can."""
    try:
        address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(address[0]) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address[4])
    except OSError as error:
        return error
    return None


def server_findings(settings: Settings) -> Iterator[Finding]:
    """Processes, database, log, Redis and weight store."""
    yield checked("database", lambda: _database(settings))
    yield checked("processes", lambda: _processes(settings))
    yield checked("kafka" if settings.kafka else "topics", lambda: _log(settings))
    if settings.redis is not None:
        yield checked("redis", lambda: _redis(settings))
    if settings.weights_url is None:
        yield checked("weights", lambda: store_finding(str(settings.weights)))


def _database(settings: Settings) -> Finding:
    """Reached, of this release, writable, and with the days of the coming week."""
    with settings.snapshot() as connection:
        schema.require_same(connection)
        without = missing_days(connection, time.time())
    with settings.transaction() as connection:
        if settings.database_url is not None and schema.is_read_only(connection):
            says = "PostgreSQL is read only: it is a standby, or its disk filled up; name the primary in database_url"
            return missing("database", says)
    if without:
        says = f"{len(without)} partitions of days are missing, first {without[0]}: episodes makes them each hour; see its log for `day not made`"
        return note("database", says)
    kind = "SQLite" if settings.database_url is None else "PostgreSQL"
    return Finding("database", True, True, f"{kind} is writable, schema {schema.newest()}")


def _states(settings: Settings, now: float) -> tuple[str, list[ProcessState]]:
    """The names of the processes that are up, and the states of the others."""
    with settings.snapshot() as connection:
        states = heartbeats.states_of(heartbeats.read(connection, settings.policy), now)
    up = ", ".join(sorted({state.process for state in states if state.state == "up"}))
    return up, [state for state in states if state.state != "up"]


def _processes(settings: Settings) -> Finding:
    """A part of the processes is worse than none: a home that is stopped is not broken."""
    up, silent = _states(settings, now := time.time())
    if not up:
        says = "none runs: start with `millrace up`, or each process of docs/operating.md"
        return Finding("processes", True, False, says)
    if silent:
        says = "; ".join(heartbeats.in_words(state, now) for state in silent)
        return missing("processes", f"{says}: read its log in {settings.home}/logs or its container's, and start it")
    return Finding("processes", True, True, f"{up}: all up")


def _log(settings: Settings) -> Finding:
    name = "kafka" if settings.kafka else "topics"
    with closing(settings.event_log()) as event_log:
        event_log.check_topics()
        found = event_log.describe()
    with settings.snapshot() as connection:
        positions = read_positions(connection)
    if lacking := sorted(set(TOPICS) - found.keys()):
        says = f"topics are missing: {', '.join(lacking)}. `millrace init` makes those of a new home; if they were lost, restore them"
        return missing(name, f"{says}, or see `millrace log accept-loss --home {settings.home}`")
    behind: Counter[str] = Counter()
    for (group, topic, partition), offset in positions.items():
        end = found[topic].ends.get(partition, 0) if topic in found else 0
        behind[group] += max(0, end - offset)
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
        return note("redis", refusal)
    says = "it does not answer within 0.1 s, or refuses: each replica counts limits alone and sessions are forgotten"
    return note("redis", f"{says}; start it, or check its address, password and `maxmemory`")


def store_finding(place: str) -> Finding:
    """Whether a weight store takes what is published. Raises what its client does."""
    open_store_at(place).check()
    return Finding("weights", True, True, f"{place} accepts writes, and refuses to overwrite")
