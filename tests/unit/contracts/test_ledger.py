from __future__ import annotations

from sqlalchemy import insert

from contracts.event_log import LogRecord
from contracts.ledger import learned_signals, num_waiting, signal_counts, trained_versions
from contracts.records import Outcome, Record, Signal, encode
from contracts.tables import received_signal, waiting_signal
from contracts.topics import GENERATIONS, OUTCOMES, SIGNALS
from pipelines.episodes.handler import EpisodesHandler
from runtime.database import Database
from tests.fakes import BOOKING_TASK, a_generation, a_signal
from tests.ledger_states import signal_states


def handle(database: Database, *records: tuple[str, Record]) -> None:
    handler = EpisodesHandler({"booking": BOOKING_TASK}, lambda: 103.0)
    with database.transaction() as connection:
        for topic, record in records:
            handler.handle(connection, [handler.read(LogRecord(topic, 0, 0, "", encode(record), 0.0))])


def outcome(key: str, epoch: int, state: str, version: int | None = None) -> Outcome:
    return Outcome(key=key, revision=1, epoch=epoch, state=state, version=version, writer="training", at=1.0)  # type: ignore[arg-type]


def test_what_waits_for_its_answer_is_pending(database: Database) -> None:
    row = {"id": "new", "tenant": "default", "received_at": 1.0, "record": b""}
    with database.transaction() as connection:
        connection.execute(insert(received_signal).values(body_hash="", **row))
        connection.execute(insert(waiting_signal).values(kind="key", value="order 1", **row))
    with database.snapshot() as connection:
        counts = signal_counts(connection)
        assert (num_waiting(connection), counts.states["pending"], counts.total, counts.unexplained) == (1, 1, 1, 0)
        assert signal_states(connection) == {"new": "pending"}


def test_a_signal_is_learned_if_the_revision_that_holds_it_is_trained(database: Database) -> None:
    about = a_generation()
    in_time, too_late = a_signal(about), a_signal(about, "stars", 3)
    handle(database, (GENERATIONS, about), (SIGNALS, in_time))
    handle(database, (OUTCOMES, outcome(about.key, 1, "trained", 7)), (SIGNALS, too_late))
    with database.snapshot() as connection:
        assert trained_versions(connection) == {about.key: 7}
        assert learned_signals(connection) == {in_time.id: 7}


def test_what_the_trainer_took_back_taught_nothing(database: Database) -> None:
    about = a_generation()
    said: Signal = a_signal(about)
    handle(database, (GENERATIONS, about), (SIGNALS, said), (OUTCOMES, outcome(about.key, 1, "trained", 7)))
    handle(database, (OUTCOMES, outcome("", 2, "epoch_started")))
    with database.snapshot() as connection:
        assert learned_signals(connection) == {}
    handle(database, (OUTCOMES, outcome(about.key, 2, "quarantined")))
    with database.snapshot() as connection:
        assert learned_signals(connection) == {}
