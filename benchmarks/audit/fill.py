"""A home of two past days in which everything is trained: written in bulk, as the workers would have left it."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, insert

from benchmarks.log.feed import TASK, a_generation
from contracts.event_log import NUM_PARTITIONS
from contracts.ids import first_id_at, sample_key
from contracts.records import encode
from contracts.tables import generation, outcome, position, received_signal, signal
from contracts.tables.statements import insert_all
from contracts.topics import GENERATIONS
from runtime.database import Database
from runtime.days import make_days
from runtime.log.local import LocalLog
from runtime.log.local_file import checksum, open_topic

DAYS = 2
_DAY_MS = 86_400_000
_AT_ONCE = 20_000
_SIGNAL_EVERY = 10
_SIGNALS_OF_TEN = 3


def fill(database: Database, folder: Path, num: int, chance: random.Random) -> int:
    """Write `num` generations; returns the bytes of one record in the log."""
    today = int(time.time() * 1000) // _DAY_MS * _DAY_MS
    first = today - DAYS * _DAY_MS
    make_days(database, first / 1000, ahead=DAYS)
    wire = encode(a_generation(chance, first / 1000))
    log = LocalLog(folder)
    log.create_topics()
    files = open_topic(folder / f"{GENERATIONS}.db", NUM_PARTITIONS)
    ends = [0] * NUM_PARTITIONS
    step = DAYS * _DAY_MS / num
    for start in range(0, num, _AT_ONCE):
        some = range(start, min(num, start + _AT_ONCE))
        ids = [_id(first + int(number * step), number) for number in some]
        files.execute("BEGIN IMMEDIATE")
        files.executemany("INSERT INTO record VALUES (?, ?, ?, ?, ?, ?)", list(_records(ids, some, wire, ends)))
        files.execute("COMMIT")
        with database.transaction() as connection:
            _add_rows(connection, ids, some, wire)
    with database.transaction() as connection:
        for partition, end in enumerate(ends):
            row = {"consumer_group": "episodes", "topic": GENERATIONS, "partition": partition, "next_offset": end}
            connection.execute(insert(position).values(row))
    if not database.url.startswith("sqlite"):
        with database.transaction() as connection:
            connection.exec_driver_sql("ANALYZE")
    files.close()
    log.close()
    return len(wire)


def _id(milliseconds: int, number: int) -> str:
    return f"{first_id_at(milliseconds)}-7{number % 4096:03x}-8{number % 4096:03x}-{number:012x}"


def _records(
    ids: list[str], numbers: Sequence[int], wire: bytes, ends: list[int]
) -> Iterator[tuple[int, int, str, bytes, float, int]]:
    for name, number in zip(ids, numbers, strict=True):
        partition, key, now = number % NUM_PARTITIONS, sample_key(name, 0), 1.0
        offset = ends[partition]
        ends[partition] += 1
        yield partition, offset, key, wire, now, checksum(partition, offset, key, wire, now)


def _add_rows(connection: Connection, ids: list[str], numbers: Sequence[int], wire: bytes) -> None:
    shared: dict[str, Any] = {
        "choice": 0, "policy": TASK, "tenant": "default", "task": TASK, "purpose": "user", "arm": "live", "version": 3,
        "created_at": 1.0, "joined_at": 1.0, "revision": 1, "state": "trained", "state_reason": "", "state_epoch": 1,
        "state_writer": "training", "state_revision": 1, "state_version": 4, "state_sequence": 0, "record": wire,
    }  # fmt: skip
    said: dict[str, Any] = {
        "tenant": "default", "choice": 0, "name": "accepted", "submitter": "user", "at": 1.0, "received_at": 1.0,
        "state": "joined", "reason": "", "revision": 1, "record": wire[:300],
    }  # fmt: skip
    told: dict[str, Any] = {
        "revision": 1, "epoch": 1, "state": "trained", "reason": "", "version": 4, "writer": "training", "at": 1.0,
        "sequence": 0,
    }  # fmt: skip
    pairs = list(zip(ids, numbers, strict=True))
    speaking = [pair for pair in pairs if pair[1] % _SIGNAL_EVERY < _SIGNALS_OF_TEN]
    insert_all(
        connection,
        generation,
        [shared | {"completion_id": name, "partition": number % NUM_PARTITIONS} for name, number in pairs],
    )
    insert_all(connection, outcome, [told | {"key": sample_key(name, 0)} for name in ids])
    insert_all(connection, signal, [said | {"completion_id": name, "id": f"s{number}"} for name, number in speaking])
    received = {"tenant": "default", "body_hash": "0" * 64, "received_at": 1.0, "record": wire[:300]}
    insert_all(connection, received_signal, [received | {"id": f"s{number}"} for _, number in speaking])
