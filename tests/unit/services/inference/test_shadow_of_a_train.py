"""The shadow of a release train over HTTP: the real endpoint, prompts that users asked before, and two versions behind it."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any

import httpx
import pytest
from fastapi import Request, Response

from contracts.assignments import CANARY, LIVE, move
from contracts.event_log import LogRecord
from contracts.gating import GateAnswer, GateScore
from contracts.records import FinishReason, GenerationBody, encode
from contracts.tasks import Task
from contracts.topics import GENERATIONS
from pipelines.episodes.handler import EpisodesHandler
from pipelines.release.asking import SentinelClient
from pipelines.release.train.repository import Train
from pipelines.release.train.shadow.shadow import PairedShadow
from runtime.database import Database
from runtime.train_settings import TrainSettings
from tests.unit.services.inference.conftest import Inference
from tests.unit.services.inference.world import FakeEngine, make_tokenizer

pytestmark = pytest.mark.usefixtures("alone")
NUM = 40


class TwoVersions(FakeEngine):
    """Version 4 says something else than version 3."""

    def __init__(self, right: str, wrong: str) -> None:
        super().__init__(right)
        tokens = make_tokenizer()
        self.says = {3: right, 4: wrong}
        self.answers = {number: [*tokens.encode(said).ids, self.end] for number, said in self.says.items()}
        self.resident = {3, 4}
        self.slots = {"live": 3, "canary": 4}

    async def generate(self, request: Request) -> Response:
        asked = await request.json()
        self.answer = self.answers[int(asked.get("model", "").partition("@v")[2] or 3)]
        return await super().generate(request)


@pytest.fixture
def engine() -> FakeEngine:
    return TwoVersions("Tisch {ok}", "oops")


def no_grade(task: str, answers: Sequence[GateAnswer]) -> list[GateScore]:
    raise AssertionError(task, answers)


def mark(task: str, body: GenerationBody, finish_reason: FinishReason) -> Mapping[str, float]:
    del task, finish_reason
    return {"misshapen": float("{" not in body.text)}


@pytest.mark.slow
@pytest.mark.parametrize(("wrong", "refused"), [("oops", True), ("Tisch {}", False)])
def test_a_broken_version_is_seen_before_any_user_meets_it(
    inference: Inference, database: Database, wrong: str, *, refused: bool
) -> None:
    engine: Any = inference.engine
    engine.answers[4] = [*make_tokenizer().encode(wrong).ids, engine.end]
    with database.transaction() as connection:
        for arm, version in ((LIVE, 3), (CANARY, 4)):
            move(connection, policy="demo", arm=arm, version=version, expected_epoch=0, writer="test", reason="test")
    for number in range(NUM):
        inference.ask(messages=[{"role": "user", "content": f"table for {number}"}], user=f"p{number}")
    inference.ask(messages=[{"role": "user", "content": "secret"}], store=False)
    logged, num_asked = inference.logged(), len(engine.requests)
    task = Task.model_validate(
        {"name": logged[0].task, "signals": {"accepted": {"type": "bool", "labels": {"true": 1.0}}}}
    )
    join = EpisodesHandler({task.name: task})
    with database.transaction() as connection:
        wires = [LogRecord(GENERATIONS, 0, 0, "", encode(record), 0.0) for record in logged]
        join.handle(connection, [join.read(wire) for wire in wires])
    key = inference.operator.api_key
    headers = {"authorization": f"Bearer {key}", "x-millrace-purpose": "shadow"}
    settings = TrainSettings(shadow_prompts=500).model_dump(mode="json")
    train = Train(1, "demo", 4, 3, "shadow", -1, 1, 0.0, 0.0, None, "", settings, {})
    with httpx.Client(base_url=inference.url, headers=headers) as client:
        asker = SentinelClient(
            client, policy="demo", concurrency=1, patience_seconds=30.0, engines=list, slot=CANARY, skips=True
        )
        shadow = PairedShadow(
            database,
            asker,
            mark,
            no_grade,
            policy="demo",
            tasks={task.name: task},
            graded=frozenset(),
            clock=lambda: 1.0,
        )
        found = shadow(train, threading.Event())
    assert found.refused == refused, found.says
    assert f"{NUM} prompts of {NUM} people" in found.says
    mine = engine.requests[num_asked:]
    assert {request["model"] for request in mine} == {"demo@v3", "demo@v4"}
    assert len(mine) == 2 * NUM
    assert all(request["priority"] == 1 for request in mine), "users come first"
    assert inference.logged() == logged, "nothing of it is logged"
