"""A home of two past days in which everything is trained: written in bulk, as the workers would have left it."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, insert

from benchmarks.log.feed import TASK, a_generation
from contracts.event_log import NUM_PARTITIONS, EventLog, Message
from contracts.ids import first_id_at, sample_key
from contracts.records import encode
from contracts.tables import generation, outcome, position, received_signal, signal
from contracts.tables.statements import insert_all
from contracts.topics import GENERATIONS
from runtime.database import Database
from runtime.days import make_days
from runtime.log.local_file import checksum, open_topic

DAYS = 2
_DAY_MS = 86_400_000
_AT_ONCE = 20_000
_SIGNAL_EVERY = 10
_SIGNALS_OF_TEN = 3


def fill(database: Database, log: EventLog, num: int, chance: random.Random, file: Path | None = None) -> int:
    """Write `num` generations; returns the bytes of one record in the log. `file`: of an embedded log's generations, written in SQL."""
    today = int(time.time() * 1000) // _DAY_MS * _DAY_MS
    first = today - DAYS * _DAY_MS
    make_days(database, first / 1000, ahead=DAYS)
    wire = encode(a_generation(chance, first / 1000))
    log.create_topics()
    add = log.append if file is None else _FileWriter(file).add
    step = DAYS * _DAY_MS / num
    for start in range(0, num, _AT_ONCE):
        some = range(start, min(num, start + _AT_ONCE))
        ids = [_id(first + int(number * step), number) for number in some]
        add([Message(GENERATIONS, number, sample_key(name, 0), wire) for name, number in zip(ids, some, strict=True)])
        with database.transaction() as connection:
            _add_rows(connection, ids, some, wire)
    with database.transaction() as connection:
        for partition, end in log.ends(GENERATIONS).items():
            row = {"consumer_group": "episodes", "topic": GENERATIONS, "partition": partition, "next_offset": end}
            connection.execute(insert(position).values(row))
    if not database.url.startswith("sqlite"):
        with database.transaction() as connection:
            connection.exec_driver_sql("ANALYZE")
    return len(wire)


class _FileWriter:
    """Appends to the embedded log without an fsync for each append."""

    def __init__(self, path: Path) -> None:
        self._file = open_topic(path, NUM_PARTITIONS)
        self._ends = [0] * NUM_PARTITIONS

    def add(self, messages: Sequence[Message]) -> None:
        """Append records of generations."""
        self._file.execute("BEGIN IMMEDIATE")
        self._file.executemany("INSERT INTO record VALUES (?, ?, ?, ?, ?, ?)", list(self._placed(messages)))
        self._file.execute("COMMIT")

    def _placed(self, messages: Sequence[Message]) -> Iterator[tuple[int, int, str, bytes, float, int]]:
        for _, number, key, wire in messages:
            partition, now = number % len(self._ends), 1.0
            offset = self._ends[partition]
            self._ends[partition] += 1
            yield partition, offset, key, wire, now, checksum(partition, offset, key, wire, now)


def _id(milliseconds: int, number: int) -> str:
    return f"{first_id_at(milliseconds)}-7{number % 4096:03x}-8{number % 4096:03x}-{number:012x}"


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
