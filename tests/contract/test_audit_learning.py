"""Nulls of monitors, corrections and shadow prompts stand in the ledger, and `audit` finds what is planted in them."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from sqlalchemy import delete, insert, select, update

from contracts.records import Score
from contracts.tables import behaviour, generation, outcome, score, shadow_pair, train
from contracts.tables.statements import insert_all
from contracts.tasks import Task
from rewards.episode import UnpackedEpisode
from rewards.worker import RewardsHandler
from runtime.database import Database
from runtime.learning_ledger import KEPT_SECONDS, LearningFindings, check_learning
from tests.contract.test_reward_replicas import HASTY, NOW, an_answer, handle

NUM_ANSWERS, NUM_NULLS = 12, 3
EVIDENCE: dict[str, Any] = {
    "num_wanted": 8, "num_prompts": 5, "num_compared": 4, "left_out": {"refused by the endpoint": 1, "not graded": 2},
    "not_asked": {"no more prompts": 3},
}  # fmt: skip
SHAPE = {"name": "shape", "kind": "json_schema", "config": {"schema": {"type": "object"}}}
VERIFIED = Task.model_validate(HASTY.model_dump() | {"verifiers": [SHAPE]})
Lose = Callable[["Learned"], str]


class Learned:
    """Answers that the real reward worker scored, each trained; five corrections of them; a shadow in progress."""

    def __init__(self, database: Database) -> None:
        self.database = database
        dice = random.Random(7)
        items = [an_answer(dice, "code") for _ in range(NUM_ANSWERS)]
        self.keys = [item.episode.key for item in items]
        handler = RewardsHandler({"chat": VERIFIED}, lambda: NOW)
        handle(database, handler, [verified(item, works=place >= NUM_NULLS) for place, item in enumerate(items)], NOW)
        handler.close()
        with database.transaction() as connection:
            insert_all(connection, generation, [a_row(key) for key in self.keys])
            insert_all(connection, outcome, [told(key, 1, "trained") for key in self.keys])
            for place, reason in enumerate(("corrected", "corrected", "same_reward")):
                self.revise(connection, self.keys[place], 2)
                connection.execute(insert(outcome).values(told(self.keys[place], 2, "late", reason)))
            self.revise(connection, self.keys[3], 2)  # a newer one took its place before a step
            self.revise(connection, self.keys[3], 3)
            connection.execute(insert(train).values(a_train(EVIDENCE)))
            pairs = [{"train": 1, "key": key, "unit": "u", "canary": {}, "live": {}, "left_out": ""} for key in "abcde"]
            insert_all(connection, shadow_pair, pairs)

    def revise(self, connection: Any, key: str, revision: int, at: float | None = None) -> None:
        known = connection.execute(select(score).where(score.c.key == key, score.c.revision == 1)).one()._asdict()
        connection.execute(insert(score).values({**known, "revision": revision, "at": at or time.time()}))

    def change(self, *statements: Any) -> None:
        with self.database.transaction() as connection:
            for statement in statements:
                connection.execute(statement)

    def check(self) -> LearningFindings:
        with self.database.snapshot() as connection:
            return check_learning(connection, time.time())


def verified(item: UnpackedEpisode, *, works: bool) -> UnpackedEpisode:
    """With the score of a verifier, or with its failure, which is our own fault."""
    found = Score(name="shape", grader="json_schema/1#x", value=1.0)
    broken = msgspec.structs.replace(found, value=None, status="unscored", fault="infra")
    return item._replace(grader_scores=(found if works else broken, *item.grader_scores))


def a_row(key: str) -> dict[str, Any]:
    completion_id, _, choice = key.rpartition(":")
    return {
        "completion_id": completion_id, "choice": int(choice), "partition": 0, "policy": "chat", "tenant": "default", "task": "chat",
        "purpose": "user", "arm": "live", "version": 1, "created_at": 1.0, "joined_at": 1.0, "revision": 1, "state": "trained",
        "state_reason": "", "state_epoch": 1, "state_writer": "training", "state_revision": 1, "state_version": 2,
        "state_sequence": 0, "record": b"",
    }  # fmt: skip


def told(key: str, revision: int, state: str, reason: str = "") -> dict[str, Any]:
    return {
        "key": key, "revision": revision, "epoch": 1, "state": state, "reason": reason, "version": 2, "writer": "training",
        "at": 1.0, "sequence": 0,
    }  # fmt: skip


def a_train(shadow: dict[str, Any]) -> dict[str, Any]:
    return {
        "id": 1, "policy": "chat", "version": 3, "blessed": 2, "state": "shadow", "stage": -1, "epoch": 1, "started_at": 1.0,
        "stage_at": 1.0, "ended_at": None, "reason": "", "settings": {}, "evidence": {"shadow": shadow},
    }  # fmt: skip


@pytest.fixture
def learned(any_database: Database) -> Learned:
    return Learned(any_database)


def test_what_is_whole_is_counted_and_explained(learned: Learned) -> None:
    found = learned.check()
    assert [list(identity.problems) for identity in found] == [[], [], []]
    assert found.monitors.counts == {"measured": NUM_ANSWERS - NUM_NULLS, "null": NUM_NULLS}
    assert found.corrections.counts == {"corrected": 2, "same_reward": 1, "replaced": 1, "waiting": 1}
    assert found.shadow_prompts.counts == {"compared": 4, "refused by the endpoint": 1, "no more prompts": 3}


def lose_sum(learned: Learned) -> str:
    learned.change(delete(behaviour).where(behaviour.c.metric == "null", behaviour.c.version == 1))
    return "monitors of task 'chat', v1: they counted 0 answers and 0 nulls"


def lose_null(learned: Learned) -> str:
    mine = (behaviour.c.metric == "null", behaviour.c.cluster == "", behaviour.c.total > 0)
    learned.change(update(behaviour).where(*mine).values(total=behaviour.c.total - 1))
    return "monitors of task 'chat', v"


def lose_score(learned: Learned) -> str:
    learned.change(delete(score).where(score.c.key == learned.keys[-1]))
    return "monitors of task 'chat', v"


def lose_score_of_correction(learned: Learned) -> str:
    learned.change(delete(score).where(score.c.key == learned.keys[1], score.c.revision == 2))
    return f"correction {learned.keys[1]}, revision 2: it has a fate, and nobody scored it"


def lose_fate(learned: Learned) -> str:
    """While the log still has the revision, it may only wait; a week later it cannot."""
    learned.change(delete(outcome).where(outcome.c.key == learned.keys[0], outcome.c.revision == 2))
    found = learned.check()
    assert (found.corrections.counts["waiting"], found.corrections.problems) == (2, [])
    learned.change(update(score).where(score.c.key == learned.keys[0]).values(at=time.time() - KEPT_SECONDS - 60.0))
    return f"correction {learned.keys[0]}, revision 2: it was scored over 7 days ago"


def lose_reason(learned: Learned) -> str:
    learned.change(
        update(outcome).where(outcome.c.state == "late", outcome.c.reason == "same_reward").values(reason="")
    )
    return "1 corrections were passed over without a reason"


def lose_pair(learned: Learned) -> str:
    learned.change(delete(shadow_pair).where(shadow_pair.c.key == "c"))
    return "shadow of v3 (train 1): 5 prompts were asked, and 4 pairs are stored"


def lose_prompt(learned: Learned) -> str:
    learned.change(update(train).values(evidence={"shadow": EVIDENCE | {"not_asked": {"no more prompts": 2}}}))
    return "shadow of v3 (train 1): of 8 prompts 5 were asked = 4 compared + 1 left out, and 2 were not asked"


def lose_left_out(learned: Learned) -> str:
    learned.change(update(train).values(evidence={"shadow": EVIDENCE | {"left_out": {}}}))
    return "shadow of v3 (train 1): of 8 prompts 5 were asked = 4 compared + 0 left out"


@pytest.mark.parametrize(
    "lose",
    [lose_sum, lose_null, lose_score, lose_score_of_correction, lose_fate, lose_reason, lose_pair, lose_prompt, lose_left_out],
)  # fmt: skip
def test_a_planted_loss_is_named(learned: Learned, lose: Lose) -> None:
    says = lose(learned)
    found = learned.check()
    assert [problem for identity in found for problem in identity.problems if problem.startswith(says)], found
