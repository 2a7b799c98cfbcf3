"""The log's side of the ledger is the same whoever reads it: one process or several, a page or an hour at a time."""

from __future__ import annotations

import gc
import os
import shutil
import signal
import sqlite3
from collections.abc import Iterator
from functools import partial
from multiprocessing import Pipe
from pathlib import Path

import pytest

from commands.ledger import readers
from commands.ledger.differences import compare
from commands.ledger.logged import LogSide, by_hour, hours_of, stretches_of
from commands.ledger.readers import log_of, rare_collections, read_log
from contracts.errors import Damaged, Unavailable
from contracts.event_log import EventLog, Message
from contracts.ids import first_id_at, sample_key
from contracts.topics import GENERATIONS
from runtime.log.local import LocalLog
from runtime.seals import ELSEWHEN, hash_of, hour_of
from runtime.settings import Settings, write_settings

PARTITIONS, EACH = 5, 2_300
_STEP_MS = 40_000
"""Between two answers of the log: a page of it has several hours."""
MARKS = {1: 700, 3: EACH}
STRANGE = [
    "", ":0", "lost:0", "chatcmpl-", "chatcmpl-0199-abcd-", "\0" * 30, "ключ-ключ-ключ-ключ-ключ", "chatcmpl-0199ABCD-0000-7:0",
    "chatcmpl-0199abcd-00g0-7:0", "chatcmpl-0199abcd-0000", "chatcmpl-ffffffff-ffff-7:0", "xhatcmpl-0199abcd-0000-7:0",
    "chatcmpl-0199abcd-000é-7:0", "chatcmpl-00000000-0000-", "chatcmpl-0199abcd 0000-7:0", " chatcmpl-0199abcd-0000-7:0",
]  # fmt: skip


_BETWEEN = f"{first_id_at(1_750_000_000_000 + 300 * _STEP_MS)}-zzzz"[:-6] + "g:0"
"""A key without a time, between those of one hour."""


def key_of(number: int) -> str:
    return sample_key(f"{first_id_at(1_750_000_000_000 + number * _STEP_MS)}-7000-8000-{number:012x}", 0)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log with damage, gaps, a partition whose beginning is gone, an empty one, keys of others, and a key that came twice."""
    place = tmp_path_factory.mktemp("written") / "log"
    log = LocalLog(place, PARTITIONS)
    full = range(PARTITIONS - 1)
    numbers = [(route, number * 4 + route) for number in range(EACH) for route in full]
    messages = [Message(GENERATIONS, route, key_of(number), b"value" * 3) for route, number in numbers]
    messages[10::997] = [item._replace(key=STRANGE[at % len(STRANGE)]) for at, item in enumerate(messages[10::997])]
    log.append([*messages, messages[5]])
    log.close()
    with sqlite3.connect(place / f"{GENERATIONS}.db") as file:
        file.execute("DELETE FROM record WHERE partition = 0 AND offset IN (1, 5, 6, 999, 1000, 1001, 2298)")
        file.execute("DELETE FROM record WHERE partition = 2 AND offset < 300")
        file.execute("UPDATE record SET value = x'00' WHERE partition = 1 AND offset IN (3, 900, 901)")
        file.execute("UPDATE record SET key = 'other' WHERE partition = 2 AND offset = 1200")
    file.close()
    return place


@pytest.fixture
def folder(written: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(written, tmp_path / "log"))


@pytest.fixture
def log(folder: Path) -> Iterator[LocalLog]:
    log = LocalLog(folder, PARTITIONS)
    yield log
    log.close()


def content(side: LogSide) -> object:
    hours = [(hour, keys.hashes.tolist(), keys.places.tolist()) for hour, keys in sorted(side.hours.items())]
    return side.firsts, side.ends, side.damaged, side.gaps, hours


@pytest.mark.slow
@pytest.mark.parametrize("num_readers", [2, 3])
def test_several_readers_find_exactly_what_one_does(folder: Path, log: LocalLog, num_readers: int) -> None:
    alone = content(read_log(log, MARKS, print))
    told: list[str] = []
    reopen = partial(LocalLog, folder, PARTITIONS)
    shared = content(read_log(log, MARKS, told.append, reopen, few=0, num_readers=num_readers))
    assert shared == alone
    assert alone == by_record(log)


def by_record(log: LocalLog) -> object:
    """The same, record by record, with the plain functions."""
    firsts, damaged, gaps = {}, [], []
    hours: dict[int, tuple[list[int], list[int]]] = {}
    for partition in range(PARTITIONS):
        records = log.read(GENERATIONS, partition, 0, 10 * EACH)
        if records:
            firsts[partition] = (records[0].offset, records[0].appended_at)
            wanted = max(MARKS.get(partition, 0), records[0].offset)
        for record in records:
            if record.offset < wanted:
                continue
            if record.offset > wanted:
                gaps.append(((GENERATIONS, partition, wanted), record.offset - wanted))
            if record.value != b"value" * 3:
                damaged.append((GENERATIONS, partition, record.offset))
            wanted = record.offset + 1
            hashes, places = hours.setdefault(hour_of(record.key), ([], []))
            hashes.append(hash_of(record.key))
            places.append(partition << 48 | record.offset)
    assert len(damaged) == 3  # of offset 3, the mark spares it
    assert len(gaps) > 3
    return firsts, log.ends(GENERATIONS), damaged, gaps, [(hour, *found) for hour, found in sorted(hours.items())]


def dying() -> EventLog:
    os._exit(3)


def damaged() -> EventLog:
    raise Damaged("the file is damaged", path="log")


@pytest.mark.slow
def test_a_reader_that_dies_ends_the_audit_and_is_named(log: LocalLog) -> None:
    with pytest.raises(Unavailable, match=r"partitions 1 for the audit ended early, with status 3"):
        read_log(log, {0: EACH, 3: EACH, 1: 1000}, print, dying, few=0, num_readers=2)


@pytest.mark.slow
def test_what_a_reader_says_about_the_log_is_the_audits_error(log: LocalLog) -> None:
    with pytest.raises(Damaged, match="the file is damaged") as caught:
        read_log(log, MARKS, print, damaged, few=0, num_readers=3)
    assert caught.value.facts == {"path": "log"}


@pytest.mark.parametrize("cores", [1, 2])
def test_one_core_and_a_short_log_need_no_other_process(
    log: LocalLog, cores: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(readers, "num_cores", lambda: cores)
    few = 0 if cores == 1 else PARTITIONS * EACH
    assert content(read_log(log, {}, print, dying, few=few)) == content(read_log(log, {}, print))


def test_a_reader_whose_audit_is_gone_ends(log: LocalLog, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    source, sink = Pipe(duplex=False)
    source.close()
    pages: list[int] = []

    class Counted(LocalLog):
        def read(self, topic: str, partition: int, offset: int, limit: int):  # type: ignore[no-untyped-def]  # noqa: ANN202
            pages.append(offset)
            return super().read(topic, partition, offset, limit)

    readers._read_there(lambda: Counted(folder, PARTITIONS), stretches_of(log, {}), sink)
    sink.close()
    assert len(pages) == 2  # the oldest record, and one page


def test_a_home_is_opened_again_by_its_settings(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path, run="r", policy="booking", base="none", tasks=(Path("none"),), partitions=7)
    write_settings(settings, {"millrace": settings})
    assert log_of(tmp_path).num_partitions == 7


def test_hours_of_many_keys_are_those_of_each() -> None:
    keys = [*STRANGE, *map(key_of, range(0, 5000, 7)), "chatcmpl-0199abcd-0000-7:0"]
    names = [key.encode() for key in keys]
    assert hours_of(names).tolist() == [hour_of(key) for key in keys]
    found = [name for _, mine in by_hour(names) for name, is_mine in zip(names, mine, strict=True) if is_mine]
    assert sorted(found) == sorted(names)


@pytest.mark.parametrize("size", [pytest.param(1, marks=pytest.mark.slow), 7, 90, 100_000])
def test_a_page_of_rows_may_end_anywhere(log: LocalLog, size: int) -> None:
    side = read_log(log, {}, print)
    rows = sorted({*map(key_of, range(40, EACH * 4 + 9)), _BETWEEN, "chatcmpl-00:0", "zz:0"})
    at = rows.index(_BETWEEN)
    assert hour_of(rows[at]) == ELSEWHEN
    assert hour_of(rows[at - 1]) == hour_of(rows[at + 1])
    difference = compare(side, (rows[at : at + size] for at in range(0, len(rows), size)))
    logged = {int(value) for keys in side.hours.values() for value in keys.hashes}
    held = {hash_of(row) for row in rows}
    assert {int(value) for hashes, _ in difference.unknown.values() for value in hashes} == logged - held
    assert {int(value) for hashes in difference.orphans.values() for value in hashes} == held - logged


def test_collections_are_rare_only_meanwhile() -> None:
    before = gc.get_threshold()
    with rare_collections():
        assert gc.get_threshold()[0] > 10 * before[0]
    assert gc.get_threshold() == before
