"""What a new revision leaves as it was, and what is counted."""

from __future__ import annotations

import pytest
from sqlalchemy import select

from contracts.ledger import PENDING
from contracts.tables import generation_count
from pipelines.episodes.handler import EpisodesHandler, Heard
from pipelines.episodes.join import Standing
from pipelines.episodes.samples import HeldGeneration, HeldSignal
from runtime.database import Database
from tests.fakes import BOOKING_TASK, a_generation, a_signal


@pytest.mark.parametrize(("writer", "state"), [("training", "trained"), ("rewards", PENDING)])
def test_a_new_revision_opens_again_what_the_trainer_did_not_say(writer: str, state: str) -> None:
    held = HeldGeneration(a_generation(), 0, 0.0, None, 1, "trained", standing=Standing(writer, 1, 1))
    assert held.raise_revision() == 2
    assert held.state == state


def test_a_signal_belongs_to_the_first_revision_that_holds_it() -> None:
    held = HeldSignal(a_signal(a_generation()), "joined")
    held.belong_to(1)
    held.belong_to(2)
    assert held.revision == 1


def test_generations_that_the_log_holds_once_more_are_counted(database: Database) -> None:
    handler = EpisodesHandler({"booking": BOOKING_TASK})
    turn = a_generation()
    heard = Heard(turn, (turn.completion_id, turn.choice), 0)
    for items in ([heard, heard], [heard]):
        with database.transaction() as connection:
            handler.handle(connection, items)
    with database.snapshot() as connection:
        counted = select(generation_count.c["count"]).where(generation_count.c.state == "duplicate")
        assert connection.execute(counted).scalar_one() == 2
