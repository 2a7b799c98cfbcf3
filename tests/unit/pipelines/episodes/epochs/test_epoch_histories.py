"""Random lives of trainers through the real log, join and ledger: in any order of arrival, only the last chain of epochs counts."""

from __future__ import annotations

import random
import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import insert, select

from contracts.event_log import Message
from contracts.records import Outcome
from contracts.tables import generation, ledger_change, training_epoch
from contracts.topics import GENERATIONS
from runtime.log.outbox import message
from tests.fakes import a_generation
from tests.ledger_states import generation_states
from tests.unit.pipelines.episodes.epochs.stories import Story, messages
from tests.unit.pipelines.episodes.test_histories import MEMORY, System

POLICY = "booking"


def mixed(story: list[Message], others: list[Message], chance: random.Random) -> list[Message]:
    """A random order, but epochs begin in their own order: they share a partition and a sender."""
    begins = [item for item in story if not item.key]
    rest = [item for item in story if item.key] + others
    chance.shuffle(rest)
    spots = sorted((chance.randint(0, len(rest)) for _ in begins), reverse=True)
    for spot, item in zip(spots, reversed(begins), strict=True):
        rest.insert(spot, item)
    return rest


def issue(system: System, story: Story) -> None:
    rows = [{"policy": POLICY, "epoch": epoch, "holder": {}, "issued_at": 1.0} for epoch in story.issued]
    with system.database.transaction() as connection:
        connection.execute(insert(training_epoch), rows)


@pytest.mark.slow
@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 10**6), are_issued=st.booleans())
def test_only_the_last_story_stands_in_whatever_order_it_is_heard(migrated: Path, seed: int, are_issued: bool) -> None:
    """A random life of trainers, read in any order, with crashes between any two steps."""
    chance = random.Random(seed)
    answers = [a_generation() for _ in range(chance.randint(1, 5))]
    story = Story(chance, [answer.key for answer in answers])
    zombies = story.go_on(chance.randint(0, 25))
    if are_issued:
        never = max(story.issued) + 3
        zombies += [
            Outcome(key="", revision=0, epoch=never, state="epoch_started", writer="training", at=1.0),
            Outcome(key=answers[0].key, revision=9, epoch=never, state="trained", version=9, writer="training", at=1.0, sequence=1),
        ]  # fmt: skip
    silent = [
        Outcome(key=answer.key, revision=1, epoch=0, state="unlabelled", writer="rewards", at=2.0)
        for answer in answers
        if chance.random() < 0.5
    ]
    with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
        shutil.copy(migrated, Path(folder) / "millrace.db")
        system = System(Path(folder), lambda: chance.random() < 0.1)
        try:
            for answer in answers:
                system.happen(message(GENERATIONS, answer.key, answer))
            while not generations(system):
                system.work("episodes")
            with system.database.transaction() as connection:
                connection.execute(generation.update().values(revision=1))  # as if an episode had been sent
            if are_issued:
                issue(system, story)
            for item in mixed(messages(story.said), messages(zombies + silent), chance):
                for _ in range(chance.choice([1, 1, 2])):
                    system.happen(item)
                if chance.random() < 0.5:
                    system.work("episodes")
            system.settle()
            found = {key: state for key, (_, state) in generations(system).items()}
            assert found == expected(story, [answer.key for answer in answers], {item.key for item in silent})
            assert standing(system) == {
                key: (what[0], what[1], what[2], revision)
                for key, (_, revision, what) in story.fates.items()
                if what[0] != "pending" or key not in {item.key for item in silent}
            }
            with system.database.snapshot() as connection:
                assert connection.execute(select(ledger_change)).all() == []
        finally:
            system.close()


def generations(system: System) -> dict[str, tuple[str, str]]:
    with system.database.snapshot() as connection:
        return generation_states(connection)


def expected(story: Story, keys: list[str], silent: set[str]) -> dict[str, str]:
    """The decisions of the trainer that it did not withdraw; for the rest, the state from other writers."""
    decided = {key: what[0] for key, (_, _, what) in story.fates.items() if what[0] != "pending"}
    return {key: decided.get(key, "unlabelled" if key in silent else "pending") for key in keys}


def standing(system: System) -> dict[str, tuple[str, str, int | None, int]]:
    """The states in the rows that the trainer wrote, without looking at epochs."""
    with system.database.snapshot() as connection:
        rows = connection.execute(select(generation).where(generation.c.state_writer == "training"))
        return {
            f"{row.completion_id}:{row.choice}": (row.state, row.state_reason, row.state_version, row.state_revision)
            for row in rows
        }


def test_what_was_quarantined_by_a_rollback_that_a_crash_undid_is_trained_again(migrated: Path, tmp_path: Path) -> None:
    shutil.copy(migrated, tmp_path / "millrace.db")
    system, about = System(tmp_path), a_generation()
    system.happen(message(GENERATIONS, about.key, about))
    system.settle()

    def tell(**fields: object) -> None:
        said = {"key": "", "revision": 0, "state": "epoch_started", "writer": "training", "at": 1.0}
        outcome = Outcome(**(said | fields))  # type: ignore[arg-type]
        system.happen(message_of(outcome))
        system.settle()

    def message_of(outcome: Outcome) -> Message:
        return messages([outcome])[0]

    one = {"key": about.key, "revision": 1}
    tell(epoch=1)
    tell(epoch=1, state="trained", version=1, sequence=3, **one)
    tell(epoch=2, previous=1, kept_sequence=9)
    tell(epoch=2, state="quarantined", reason="rollback", sequence=10, **one)
    assert generations(system)[about.key][1] == "quarantined"
    tell(epoch=3, previous=1, kept_sequence=3)
    assert standing(system) == {about.key: ("trained", "", 1, 1)}
    tell(epoch=4, previous=1, kept_sequence=2)
    assert generations(system)[about.key][1] == "unlabelled"
    system.close()
