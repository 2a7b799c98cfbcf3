"""Does an event cost the same however large the tables are? They are filled in SQL, then a feed is processed."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from typing import Any

from benchmarks.log.run import LogArm, LogWorld, a_world, drain, workers
from benchmarks.report import summarise
from contracts.records import encode
from runtime.worker import Worker
from tests.worlds.feed import TASK, a_feed, a_generation

SIZES = (0, 100_000, 300_000, 1_000_000)
_FEED, _TIMES = 1_000, 5
"""Generations in a feed, and how often one is timed at each size."""
_AT_ONCE = 50_000
_NUMBERS = {
    "postgresql": "SELECT n FROM generate_series(CAST({low} AS bigint), {high} - 1) AS s(n)",
    "sqlite": "WITH RECURSIVE s(n) AS (SELECT {low} UNION ALL SELECT n + 1 FROM s WHERE n < {high} - 1) SELECT n FROM s",
}
# An id of the form of ours, of an earlier day, and sorted as they are by time.
_ID = {
    "postgresql": "'chatcmpl-0199' || lpad(to_hex(n), 4, '0') || '-0000-7000-8000-' || lpad(to_hex(n), 12, '0')",
    "sqlite": "'chatcmpl-0199' || printf('%04x-0000-7000-8000-%012x', n, n)",
}
_ROWS = (
    (
        "INSERT INTO generation (completion_id, choice, partition, policy, task, purpose, arm, version, created_at, joined_at,"
        " closes_at, revision, state, state_reason, state_writer, state_epoch, state_revision, state_version, record)"
        " SELECT {id}, 0, n % 4, '{task}', '{task}', 'user', 'live', 3, {then} + n * 0.01, {then} + n * 0.01,"
        " CASE WHEN n % 10 = 0 THEN {then} * 2 END, 1, 'trained', '', 'training', 1, 1, 4, {record} FROM ({numbers}) AS t"
    ),
    (
        "INSERT INTO signal (completion_id, tenant, id, choice, name, submitter, at, received_at, state, reason, revision,"
        " record) SELECT {id}, 'default', 'old-' || n, 0, 'accepted', 'user', {then} + n * 0.01, {then} + n * 0.01, 'joined',"
        " '', 1, {record} FROM ({numbers}) AS t"
    ),
    (
        "INSERT INTO score (key, revision, task, purpose, version, reward, status, fault, components, at) SELECT {id} || ':0',"
        " 1, '{task}', 'user', 3, 1.0, 'scored', 'none', '[]', {then} + n * 0.01 FROM ({numbers}) AS t"
    ),
    (
        "INSERT INTO outcome (key, revision, epoch, state, reason, version, writer, at) SELECT {id} || ':0', 1, 1, 'trained',"
        " '', 4, 'training', {then} + n * 0.01 FROM ({numbers}) AS t"
    ),
)


def measure_growth(arm: LogArm, sizes: Sequence[int]) -> dict[int, dict[str, Any]]:
    """Milliseconds for each event of a feed, at each size; both workers take turns in this process."""
    result = {}
    held = 0
    with a_world(arm) as world:
        running = workers(world)
        _time_of_event(world, running, seed=0)  # connections, groups, caches
        for size in sizes:
            _fill(world, held, size)
            held = size
            result[size] = summarise([_time_of_event(world, running, size + number) for number in range(_TIMES)])
            print(f"{arm.name}, {size:,} held: {result[size]['median']:.3f} ms per event")
    return result


def _time_of_event(world: LogWorld, running: Sequence[Worker[Any]], seed: int) -> float:
    before = world.num_events()
    world.append(a_feed(_FEED, seed))
    seconds = drain(world, running)
    return seconds * 1000 / (world.num_events() - before)


def _fill(world: LogWorld, low: int, high: int) -> None:
    record = encode(a_generation(random.Random(low), time.time())).hex()  # noqa: S311 any answer will do
    with world.database.snapshot() as connection:
        dialect = connection.dialect.name
    literal = f"'\\x{record}'::bytea" if dialect == "postgresql" else f"X'{record}'"
    for start in range(low, high, _AT_ONCE):
        numbers = _NUMBERS[dialect].format(low=start, high=min(high, start + _AT_ONCE))
        with world.database.transaction() as connection:
            for statement in _ROWS:
                sql = statement.format(
                    id=_ID[dialect], task=TASK, then=1_700_000_000.0, record=literal, numbers=numbers
                )
                connection.exec_driver_sql(sql.replace("%", "%%") if dialect == "postgresql" else sql)
    if high > low and dialect == "postgresql":
        with world.database.transaction() as connection:
            connection.exec_driver_sql("ANALYZE generation, signal, score, outcome")
