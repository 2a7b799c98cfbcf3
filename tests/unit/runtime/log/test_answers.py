"""Records that point to an answer get it from the log, else from its row, else they go without."""

from __future__ import annotations

from pathlib import Path

import pytest
from sqlalchemy import delete

from contracts.event_log import LogPlace, LogRecord, Message
from contracts.records import Episode, Generation, encode
from contracts.tables import generation
from contracts.topics import EPISODES, GENERATIONS
from pipelines.episodes import repository
from pipelines.episodes.lifecycle import SampleState
from pipelines.episodes.samples import Samples
from runtime.database import Database
from runtime.log.answers import with_answers
from runtime.log.local import LocalLog
from runtime.log.outbox import message
from tests.fakes import a_generation


def pointing(about: Generation, place: LogPlace | None) -> LogRecord:
    episode = Episode(key=about.key, revision=1, reason="window", source=place, signals=(), closed_at=1.0)
    return LogRecord(EPISODES, 0, 0, about.key, encode(episode), 0.0)


def place_of(log: LocalLog, about: Generation) -> LogPlace:
    item = message(GENERATIONS, about.key, about)
    log.append([item])
    partition = item.route % log.num_partitions
    return LogPlace(partition, log.ends(GENERATIONS)[partition] - 1)


def store(database: Database, about: Generation) -> None:
    samples = Samples()
    samples.states[about.completion_id, about.choice] = SampleState(about, 0, 0.0)
    with database.transaction() as connection:
        repository.save(connection, samples)


def test_answers_are_found_in_their_order_and_other_records_stay_as_they_are(
    event_log: LocalLog, database: Database
) -> None:
    turns = [a_generation(text) for text in ("one", "two", "three")]
    places = [place_of(event_log, turn) for turn in turns]
    plain = LogRecord(EPISODES, 0, 9, "x", encode(turns[0]), 0.0)
    junk = LogRecord(EPISODES, 0, 8, "x", b"\xc1junk", 0.0)
    records = [pointing(turns[2], places[2]), plain, junk, pointing(turns[0], places[0]), pointing(turns[1], places[1])]
    found = with_answers(event_log, database, records)
    assert [item.answer for item in found] == [encode(turns[2]), None, None, encode(turns[0]), encode(turns[1])]
    assert [item._replace(answer=None) for item in found] == records


@pytest.mark.parametrize("loss", ["another log", "deleted", "flipped bits"])
def test_what_the_log_lost_is_read_from_its_row_while_that_is_there(
    event_log: LocalLog, database: Database, tmp_path: Path, loss: str
) -> None:
    turn = a_generation()
    place = place_of(event_log, turn)
    if loss == "deleted":
        place = place._replace(offset=place.offset + 7)
    elif loss == "another log":
        event_log = LocalLog(tmp_path / "another")
        event_log.append([Message(GENERATIONS, place.partition, "chatcmpl-of-somebody-else:0", b"x")] * 3)
    else:
        event_log._connection(GENERATIONS).execute("UPDATE record SET value = value || x'00'")
        event_log._connection(GENERATIONS).commit()
    assert [item.answer for item in with_answers(event_log, database, [pointing(turn, place)])] == [None]
    store(database, turn)
    assert [item.answer for item in with_answers(event_log, database, [pointing(turn, place)])] == [encode(turn)]
    with database.transaction() as connection:
        connection.execute(delete(generation))
    assert [item.answer for item in with_answers(event_log, database, [pointing(turn, place)])] == [None]
    if loss == "another log":
        event_log.close()


def test_two_answers_that_were_at_one_place_of_two_logs_are_not_confused(
    event_log: LocalLog, database: Database
) -> None:
    lost, held = a_generation("lost"), a_generation("held")
    place = place_of(event_log, held)
    store(database, lost)
    found = with_answers(event_log, database, [pointing(held, place), pointing(lost, place)])
    assert [item.answer for item in found] == [encode(held), encode(lost)]


@pytest.mark.parametrize("place", [LogPlace(-1, 0), LogPlace(0, -1), LogPlace(0, 2**63), LogPlace(2**31, 0)])
def test_an_impossible_place_asks_nobody(event_log: LocalLog, database: Database, place: LogPlace) -> None:
    record = pointing(a_generation(), place)
    assert with_answers(event_log, database, [record]) == [record]
