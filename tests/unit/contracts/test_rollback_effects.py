"""The numbers that are shown before a rollback, against rows counted by hand."""

from __future__ import annotations

import pytest
from sqlalchemy import insert

from contracts.ids import new_completion_id
from contracts.rollback import RollbackPlan
from contracts.rollback_effects import Effects, describe, describe_treatment, read_effects
from contracts.tables import generation, training_step, version_claim
from runtime.database import Database

PLAN = RollbackPlan(5, 2, (3, 4, 5), (2, 1, 0))

ROWS = [
    # task, purpose, said by, state, learned in
    ("booking", "user", 1, "trained", 2),
    ("math", "user", 2, "trained", 3),
    ("code", "user", 3, "trained", 4),
    ("judged", "user", 4, "trained", 5),
    ("tool_call", "user", 5, "trained", 6),
    ("signals_only", "user", 5, "pending", None),
    ("math", "user", 4, "unlabelled", None),
    ("math", "user", 2, "pending", None),
    ("math", "sentinel", 5, "filtered", None),
]


def fill(database: Database) -> None:
    with database.transaction() as connection:
        for task, purpose, version, state, learned_in in ROWS:
            writer = "training" if state == "trained" else "episodes"
            connection.execute(
                insert(generation).values(
                    completion_id=new_completion_id(),
                    choice=0,
                    partition=0,
                    policy="p",
                    task=task,
                    purpose=purpose,
                    arm="live",
                    version=version,
                    created_at=0.0,
                    joined_at=0.0,
                    revision=0,
                    state=state,
                    state_reason="",
                    state_writer=writer,
                    state_epoch=0,
                    state_revision=0,
                    state_version=learned_in,
                    record=b"",
                )
            )


def test_what_is_undone_and_what_was_said_is_counted(database: Database) -> None:
    fill(database)
    with database.snapshot() as connection:
        assert read_effects(connection, PLAN) == Effects(
            num_learned=5, num_undone=4, num_undone_revoked=4, num_said=5, num_said_waiting=1
        )
        only_5 = PLAN._replace(revoked=(5,))
        assert read_effects(connection, only_5) == Effects(
            num_learned=5, num_undone=4, num_undone_revoked=2, num_said=2, num_said_waiting=1
        )
        nothing = PLAN._replace(revoked=())
        assert read_effects(connection, nothing) == Effects(
            num_learned=5, num_undone=4, num_undone_revoked=0, num_said=0, num_said_waiting=0
        )


def test_the_words_hold_the_numbers_and_promise_nothing_else() -> None:
    effects = Effects(num_learned=1209, num_undone=1081, num_undone_revoked=1000, num_said=2310, num_said_waiting=42)
    text = " ".join(describe(PLAN, effects))
    assert "v5" in text
    assert "Revoked for good: v3, v4, v5" in text
    assert "1,081 of 1,209 learned samples are undone" in text
    assert "2,310, of which 42 wait" in text
    assert "deleted" not in text, "a promise that quarantined samples break"
    assert "cannot be taken back" in text
    assert "Everything learned since" not in text, "no version was cut that one knows of"
    known = effects._replace(since=1_700_000_000.0, num_steps=310)
    assert "Everything learned since 2023-11-14 22:13 UTC is undone: 2.5 h, 310 steps of the trainer." in describe(
        PLAN, known, 1_700_009_000.0
    )
    poison = describe_treatment("poison", effects)
    assert "1,000 undone samples are quarantined(rollback)" in poison
    assert "81 undone samples of versions that are not revoked are pending" in poison
    assert "1,081 undone samples are pending and learned again" in describe_treatment("evidence", effects)


def test_the_time_is_that_of_the_first_version_that_is_left(database: Database) -> None:
    fill(database)
    with database.transaction() as connection:
        for version in range(1, 6):
            claim = {
                "policy": "p",
                "version": version,
                "parent": version - 1,
                "epoch": 1,
                "claimed_at": 100.0 * version,
            }
            connection.execute(insert(version_claim).values(claim))
        for step in range(10):
            connection.execute(insert(training_step).values(epoch=1, step=step, at=60.0 * step, metrics={}))
    with database.snapshot() as connection:
        effects = read_effects(connection, PLAN)
    assert (effects.since, effects.num_steps) == (300.0, 5)


@pytest.mark.parametrize("revoked", [(), (5,)])
def test_nothing_revoked_is_said_so(revoked: tuple[int, ...]) -> None:
    text = " ".join(describe(PLAN._replace(revoked=revoked), Effects(0, 0, 0, 0, 0)))
    assert ("No further version is revoked" in text) == (not revoked)
