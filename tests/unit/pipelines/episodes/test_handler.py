"""The join, record by record; random histories are in test_histories."""

from __future__ import annotations

import msgspec
import pytest

from contracts.event_log import LogRecord
from contracts.records import Episode, Outcome, Record, Submitter, decode, encode
from contracts.tasks import Task
from contracts.topics import GENERATIONS, OUTCOMES, SIGNALS
from pipelines.episodes.handler import EpisodesHandler
from pipelines.episodes.join import ORPHAN_SECONDS
from runtime.database import Database
from tests.fakes import BOOKING_TASK, a_generation, a_signal
from tests.ledger_states import signal_states

WITHOUT_COMMENTS = BOOKING_TASK.model_copy(
    update={"signals": {name: rule for name, rule in BOOKING_TASK.signals.items() if name != "comment"}}
)


def handle(database: Database, tasks: dict[str, Task], *records: tuple[str, Record]) -> list[Episode]:
    """A process that starts with these tasks, and the episodes it sends."""
    handler = EpisodesHandler(tasks, lambda: 103.0)
    sent = []
    with database.transaction() as connection:
        for topic, record in records:
            sent += handler.handle(connection, [handler.read(LogRecord(topic, 0, 0, "", encode(record), 0.0))])
    return [decode(Episode, message.value) for message in sent]


def test_a_signal_that_is_no_longer_declared_does_not_stop_the_next_one(database: Database) -> None:
    about = a_generation()
    comment, accepted = a_signal(about, "comment", "hm"), a_signal(about)
    assert handle(database, {"booking": BOOKING_TASK}, (GENERATIONS, about), (SIGNALS, comment)) == []
    (episode,) = handle(database, {"booking": WITHOUT_COMMENTS}, (SIGNALS, accepted))
    assert (episode.reason, {signal.id for signal in episode.signals}) == ("decisive", {comment.id, accepted.id})


@pytest.mark.parametrize(("tasks", "revisions"), [({"booking": BOOKING_TASK}, [2]), ({}, [])])
def test_a_signal_can_be_taken_back_after_its_task_was_removed(
    database: Database, tasks: dict[str, Task], revisions: list[int]
) -> None:
    about = a_generation()
    accepted = a_signal(about)
    handle(database, {"booking": BOOKING_TASK}, (GENERATIONS, about), (SIGNALS, accepted))
    sent = handle(database, tasks, (SIGNALS, msgspec.structs.replace(accepted, retracted=True)))
    assert [episode.revision for episode in sent] == revisions
    with database.snapshot() as connection:
        assert signal_states(connection) == {accepted.id: "retracted"}


def test_what_is_taken_back_before_anything_was_sent_sends_nothing(database: Database) -> None:
    about = a_generation()
    comment = a_signal(about, "comment", "hm")
    tasks = {"booking": BOOKING_TASK}
    taken_back = msgspec.structs.replace(comment, retracted=True)
    assert handle(database, tasks, (GENERATIONS, about), (SIGNALS, comment), (SIGNALS, taken_back)) == []
    (episode,) = handle(database, tasks, (SIGNALS, a_signal(about)))
    assert (episode.revision, len(episode.signals)) == (1, 1)


def test_late_is_what_feedback_received_late_whenever_it_happened(database: Database) -> None:
    about = a_generation(finished_at=101.0)
    in_time = a_signal(about, at=50.0, received_at=111.0)
    late = a_signal(about, "stars", 4, at=102.0, received_at=111.1)
    handle(database, {"booking": BOOKING_TASK}, (SIGNALS, late), (SIGNALS, in_time), (GENERATIONS, about))
    with database.snapshot() as connection:
        assert signal_states(connection) == {in_time.id: "joined", late.id: "late"}


def test_a_signal_of_another_tenant_is_rejected_and_teaches_nothing(database: Database) -> None:
    about = a_generation(tenant="acme")
    foreign = a_signal(about, tenant="other")
    assert handle(database, {"booking": BOOKING_TASK}, (GENERATIONS, about), (SIGNALS, foreign)) == []
    with database.snapshot() as connection:
        assert signal_states(connection) == {foreign.id: "rejected"}


def test_a_value_that_is_worth_nothing_decides_nothing(database: Database) -> None:
    accepted = BOOKING_TASK.signals["accepted"].model_copy(update={"labels": {"true": 1.0}})
    task = BOOKING_TASK.model_copy(update={"signals": {"accepted": accepted}})
    about = a_generation()
    sent = handle(database, {"booking": task}, (GENERATIONS, about), (SIGNALS, a_signal(about, value=False)))
    assert sent == []


def test_a_signal_whose_answer_never_comes_is_rejected_in_the_end(database: Database) -> None:
    about = a_generation()
    handler = EpisodesHandler({"booking": BOOKING_TASK})
    signal = a_signal(about)
    handle(database, {"booking": BOOKING_TASK}, (SIGNALS, signal))

    def states(seconds: float) -> dict[str, str]:
        with database.transaction() as connection:
            handler.tick(connection, signal.received_at + seconds, frozenset({0}))
            return signal_states(connection)

    assert states(ORPHAN_SECONDS) == {signal.id: "pending"}
    assert states(ORPHAN_SECONDS + 30.0) == {signal.id: "pending"}, "it looks once a minute"
    assert states(ORPHAN_SECONDS + 61.0) == {signal.id: "rejected"}
    assert handle(database, {"booking": BOOKING_TASK}, (GENERATIONS, about)) == []


def test_an_episode_too_large_for_any_log_gets_a_name_instead(database: Database) -> None:
    about = a_generation()
    words = [a_signal(about, "comment", "x" * 65_000, submitter=Submitter(id=f"u{number}")) for number in range(20)]
    handler = EpisodesHandler({"booking": BOOKING_TASK}, lambda: 103.0)
    records = [(GENERATIONS, about), *((SIGNALS, item) for item in [*words, a_signal(about)])]
    with database.transaction() as connection:
        read = [handler.read(LogRecord(topic, 0, 0, "", encode(record), 0.0)) for topic, record in records]
        (sent,) = handler.handle(connection, read)
    outcome = decode(Outcome, sent.value)
    assert (sent.topic, outcome.state, outcome.reason, outcome.revision) == (OUTCOMES, "unscored", "too_large", 1)
