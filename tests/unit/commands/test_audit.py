from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import delete, insert, select, update

from commands.audit import audit, read_clients
from contracts.errors import InvalidSettings
from contracts.event_log import LogRecord, Message
from contracts.records import Outcome, encode
from contracts.tables import generation, outcome, received_signal, signal, signal_count
from contracts.tables.statements import insert_new
from contracts.topics import GENERATIONS, OUTCOMES, SIGNALS
from pipelines.episodes.handler import EpisodesHandler
from runtime.database import Database
from runtime.log.local import LocalLog
from tests.fakes import BOOKING_TASK, a_generation, a_signal


def filled(database: Database, log: LocalLog) -> list[dict[str, Any]]:
    """Two answers and a signal, settled; returns the clients' list."""
    handler = EpisodesHandler({"booking": BOOKING_TASK}, lambda: 103.0)
    seen, left = a_generation(), a_generation(finish_reason="cancelled")
    said = a_signal(seen)
    trained = Outcome(key=seen.key, revision=1, epoch=1, state="trained", version=1, writer="training", at=1.0)
    cancelled = Outcome(key=left.key, revision=1, epoch=0, state="cancelled", writer="episodes", at=1.0)
    records = [(GENERATIONS, seen), (GENERATIONS, left), (SIGNALS, said), (OUTCOMES, trained), (OUTCOMES, cancelled)]
    log.append([Message(GENERATIONS, 0, item.key, encode(item)) for item in (seen, left, seen)])
    with database.transaction() as connection:
        row = {"id": said.id, "tenant": said.tenant, "body_hash": "", "received_at": 0.0, "record": b""}
        insert_new(connection, received_signal, row)
        connection.execute(insert(signal_count).values(state="duplicate", count=2))
        for topic, record in records:
            handler.handle(connection, [handler.read(LogRecord(topic, 0, 0, "", encode(record), 0.0))])
    return [{"kind": "generation", "key": seen.key}, {"kind": "signal", "id": said.id}]


def test_a_settled_ledger_balances(database: Database, event_log: LocalLog) -> None:
    clients = filled(database, event_log)
    result = audit(database, event_log, clients, settled=True)
    assert result.balanced
    assert result.in_doubt == ()
    assert result.generations.states == {"trained": 1, "cancelled": 1, "pending": 0}
    assert (result.signals.total, result.signals.states["duplicate"], result.signals.states["joined"]) == (3, 2, 1)


def test_what_clients_know_and_the_ledger_does_not_is_named(database: Database, event_log: LocalLog) -> None:
    clients = [*filled(database, event_log), {"kind": "generation", "key": "lost:0"}, {"kind": "signal", "id": "gone"}]
    result = audit(database, event_log, clients)
    assert [problem.split(":")[0] for problem in result.problems] == ["generation lost", "signal gone"]


def test_an_answer_that_no_client_saw_is_in_doubt_unless_cancelled(database: Database, event_log: LocalLog) -> None:
    result = audit(database, event_log, filled(database, event_log)[1:])
    assert result.balanced
    assert len(result.in_doubt) == 1


def test_pending_is_a_problem_only_once_settled(database: Database, event_log: LocalLog) -> None:
    clients = filled(database, event_log)
    with database.transaction() as connection:
        connection.execute(update(generation).values(state="pending"))
        connection.execute(delete(outcome))
    assert audit(database, event_log, clients).balanced
    assert audit(database, event_log, clients, settled=True).problems == ("generations: 2 still pending",)


def test_a_settled_signal_that_was_never_received_is_unexplained(database: Database, event_log: LocalLog) -> None:
    filled(database, event_log)
    with database.transaction() as connection:
        connection.execute(delete(received_signal))
    assert not audit(database, event_log).balanced


def test_an_acknowledged_signal_that_is_on_its_way_to_the_join_is_pending(
    database: Database, event_log: LocalLog
) -> None:
    clients = filled(database, event_log)
    with database.transaction() as connection:
        wire = connection.execute(select(signal.c.record)).scalar_one()
        connection.execute(delete(signal))
    lost = audit(database, event_log)
    assert [problem.split(":")[0] for problem in lost.problems] == ["signals", f"signal {clients[1]['id']} of default"]
    assert lost.signals.unexplained == 1
    event_log.append([Message(SIGNALS, 0, "", wire)])
    result = audit(database, event_log)
    assert result.balanced
    assert result.signals.states["pending"] == 1


def test_a_state_without_a_name_is_unexplained(database: Database, event_log: LocalLog) -> None:
    filled(database, event_log)
    with database.transaction() as connection:
        connection.execute(update(generation).where(generation.c.state == "trained").values(state="vanished"))
    problems = audit(database, event_log).problems
    assert problems[:2] == ("generations: 1 unexplained", "1 generations have the state 'vanished', which has no name")
    assert "is vanished, and no outcome says so" in problems[2]


def test_what_is_in_the_log_and_not_joined_yet_is_pending(database: Database, event_log: LocalLog) -> None:
    filled(database, event_log)
    fresh = a_generation()
    event_log.append([Message(GENERATIONS, 0, fresh.key, encode(fresh))])
    result = audit(database, event_log)
    assert result.balanced
    assert (result.generations.total, result.generations.states["pending"]) == (3, 1)


def test_a_row_without_a_record_in_the_log_is_unexplained(database: Database, event_log: LocalLog) -> None:
    filled(database, event_log)
    orphan = a_generation()
    with database.transaction() as connection:
        handler = EpisodesHandler({"booking": BOOKING_TASK}, lambda: 103.0)
        handler.handle(connection, [handler.read(LogRecord(GENERATIONS, 0, 0, "", encode(orphan), 0.0))])
    assert audit(database, event_log).problems == (
        "generations: -1 unexplained",
        f"generation {orphan.key} has a state, and the log does not have it",
    )


class BusyLog(LocalLog):
    """Whenever it is looked at, one more answer has just been logged and joined."""

    def __init__(self, folder: Path, database: Database) -> None:
        super().__init__(folder)
        self._database = database
        self.fresh = a_generation()

    def ends(self, topic: str) -> dict[int, int]:
        self.append([Message(GENERATIONS, 0, self.fresh.key, encode(self.fresh))])
        with self._database.transaction() as connection:
            handler = EpisodesHandler({"booking": BOOKING_TASK}, lambda: 103.0)
            handler.handle(connection, [handler.read(LogRecord(GENERATIONS, 0, 0, "", encode(self.fresh), 0.0))])
        return super().ends(topic)


def test_an_audit_of_a_loop_that_goes_on_explains_what_came_meanwhile(database: Database, tmp_path: Path) -> None:
    log = BusyLog(tmp_path / "log", database)
    clients = filled(database, log)
    result = audit(database, log, [*clients, {"kind": "generation", "key": log.fresh.key}])
    log.close()
    assert result.problems == ()
    assert result.generations.states["pending"] == 1


@pytest.mark.parametrize("content", [None, '{"kind": '])
def test_a_clients_list_that_cannot_be_read_is_named(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "users.jsonl").write_text(content)
    with pytest.raises(InvalidSettings, match=r"users\.jsonl"):
        read_clients(tmp_path / "users.jsonl")
