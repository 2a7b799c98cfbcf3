"""Signals that were acknowledged after a backup: the log has them, and the restored database does not know who received them."""

from __future__ import annotations

from pathlib import Path

import msgspec
from sqlalchemy import insert, select

from contracts.event_log import Message
from contracts.records import Signal, encode
from contracts.tables import position, received_signal
from contracts.topics import SIGNALS
from runtime.database import Database
from runtime.log.local import LocalLog
from runtime.log.recovery import recover_signals
from services.feedback import repository
from services.feedback.requests import ReceivedItem
from tests.fakes import a_generation, a_signal

NOW = 500.0


def told(log: LocalLog, *signals: Signal) -> None:
    log.append([Message(SIGNALS, 0, item.key, encode(item)) for item in signals])


def recovered(database: Database, log: LocalLog) -> int:
    with database.transaction() as connection:
        return recover_signals(connection, log, NOW)


def test_what_only_the_log_has_is_received_once(any_database: Database, tmp_path: Path) -> None:
    answer = a_generation()
    known, new, taken_back = a_signal(answer), a_signal(answer), a_signal(answer)
    log = LocalLog(tmp_path / "log")
    told(log, known, new, taken_back)
    log.append([Message(SIGNALS, 0, answer.key, b"\xc1 not msgpack")])
    told(log, msgspec.structs.replace(taken_back, retracted=True))
    with any_database.transaction() as connection:
        connection.execute(
            insert(position).values(consumer_group="episodes", topic=SIGNALS, partition=0, next_offset=1)
        )
    assert recovered(any_database, log) == 2, "the join has seen the first one, so the database knew it"
    assert recovered(any_database, log) == 0
    with any_database.snapshot() as connection:
        rows = connection.execute(select(received_signal.c.id, received_signal.c.retracted_at)).all()
    assert dict(map(tuple, rows)) == {new.id: None, taken_back.id: NOW}
    log.close()


def test_a_client_that_sends_it_again_is_told_so_whatever_it_says(any_database: Database, tmp_path: Path) -> None:
    signal = a_signal(a_generation())
    log = LocalLog(tmp_path / "log")
    told(log, signal)
    recovered(any_database, log)
    again = ReceivedItem(signal, "hash of the client's own words")
    with any_database.transaction() as connection:
        assert [item.fate for item in repository.add(connection, [again])] == ["duplicate"]
    log.close()
