"""The join can process everything that feedback acknowledges: an item with a 202 never becomes a dead letter."""

from __future__ import annotations

import random
from typing import Any

import pytest

from contracts.errors import InvalidRequest
from contracts.event_log import LogRecord
from contracts.ids import new_completion_id
from contracts.records import Signal, decode, encode
from contracts.tables import signal as signals
from contracts.topics import GENERATIONS, SIGNALS
from pipelines.episodes.handler import EpisodesHandler
from runtime.database import Database
from services.feedback.requests import read_item
from tests.each_case import each_case
from tests.fakes import BOOKING_TASK, a_generation
from tests.hostile import WHATEVER

TASKS = {"booking": BOOKING_TASK}
NOW = 1_790_000_000.0


def test_every_item_is_refused_with_its_field_or_can_be_processed() -> None:
    draw, num_taken, num_refused = random.Random(7), 0, 0
    for _ in range(4000):
        name = draw.choice(("accepted", "edited", "comment", "stars"))
        item: dict[str, Any] = {
            "completion_id": new_completion_id(),
            "name": name,
            "value": draw.choice((True, "x", 3)),
        }
        item |= {"submitter": {"id": "ann", "kind": "user"}, "id": "fb-1", "at": NOW, "choice": 0, "correction": "c"}
        for _ in range(draw.choice((0, 1, 2))):
            field = draw.choice(list(item))
            item[field] = draw.choice(WHATEVER)
        if draw.random() < 0.3:
            item["submitter"] = {"id": draw.choice(WHATEVER)}
        try:
            said = read_item(item, TASKS, "default", NOW).signal
        except InvalidRequest as error:
            assert 400 <= error.status < 500  # noqa: PT017 the loop goes on
            num_refused += 1
            continue
        num_taken += 1
        if said.completion_id:
            assert decode(Signal, encode(said)) == said
    assert min(num_taken, num_refused) > 300


@each_case(
    ("changes", "param"),
    [
        ({"id": "a\0b"}, "id"),
        ({"id": "x" * 129}, "id"),
        ({"submitter": {"id": "\0"}}, "submitter.id"),
        ({"at": 1e300}, "at"),
        ({"at": -1.0}, "at"),
        ({"at": float("nan")}, "at"),
        ({"name": "stars", "value": 2**64}, "value"),
        ({"choice": 2**31}, "choice"),
        ({"completion_id": "chatcmpl-\0"}, "completion_id"),
    ],
)
def test_what_no_table_keeps_is_refused_at_the_door(changes: dict[str, Any], param: str) -> None:
    item = {"completion_id": new_completion_id(), "name": "accepted", "value": True} | changes
    with pytest.raises(InvalidRequest) as refused:
        read_item(item, TASKS, "default", NOW)
    assert refused.value.param == param


def test_a_nul_in_what_a_user_wrote_is_text_like_any_other(database: Database) -> None:
    about = a_generation()
    item = {"completion_id": about.completion_id, "name": "edited", "value": "a\0b", "correction": "\0"}
    said = read_item(item, TASKS, "default", NOW).signal
    handler = EpisodesHandler(TASKS, lambda: 103.0)
    wires = [(GENERATIONS, encode(about)), (SIGNALS, encode(said))]
    with database.transaction() as connection:
        heard = [handler.read(LogRecord(topic, 0, 0, "", wire, 0.0)) for topic, wire in wires]
        handler.handle(connection, heard)
        assert connection.execute(signals.select()).one().state == "late"
