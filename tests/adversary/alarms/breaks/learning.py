"""Graders that fail, versions with habits, samples that break a step, a trainer that goes astray."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager

import msgspec

from contracts.assignments import LIVE, read
from contracts.ids import new_completion_id
from contracts.records import (
    Generation,
    GenerationBody,
    decode,
    open_body,
    pack_body,
    pack_ids,
)
from contracts.sampling import Span
from contracts.topics import GENERATIONS
from runtime.log.outbox import message
from runtime.settings import load_settings
from tests.adversary.alarms.breaks.kills import full_store
from tests.adversary.alarms.breaks.kinds import Break
from tests.adversary.alarms.breaks.records import append
from tests.adversary.alarms.breaks.repeating import again_and_again
from tests.adversary.alarms.breaks.settings import changed
from tests.adversary.alarms.world import GRADED, WatchedHome
from tests.worlds.feed import a_generation

_VOCABULARY, _LEARN_SECONDS = 40, 60.0
_EACH_SECOND, _MANY, _BACKLOG = 10, 300, 8_000
_TAMPERS = "```python\nimport os\n\ndef solve():\n    os._exit(0)\n```"
_HEARTS = "Of course \u2764\ufe0f\u2764\ufe0f your table is booked \u2764\ufe0f"
_STEPS_SECONDS = 45.0


def feed(world: WatchedHome, number: int, text: str | None = None, later: int = 0) -> None:
    """Answers about the task that the reward server grades. `later`: of a version after the live one."""
    policy, chance = load_settings(world.home).policy, random.Random()
    with world.database() as connection:
        version = (read(connection, policy)[LIVE].version or 0) + later
    messages = []
    for _ in range(number):
        plain = a_generation(chance, time.time())
        body = open_body(GenerationBody, plain.body)
        ids = pack_ids([chance.randrange(_VOCABULARY) for _ in range(20)])
        body = msgspec.structs.replace(body, text=text or body.text, prompt_ids=ids, completion_ids=ids)
        record = msgspec.structs.replace(
            plain, policy=policy, task=GRADED, spans=(Span(0, version),), body=pack_body(body)
        )
        messages.append(message(GENERATIONS, record.key, record))
    append(world, messages)


@contextmanager
def failing_grader(world: WatchedHome) -> Iterator[None]:
    """The reward server answers every request with status 500."""
    world.grader.fails = True
    try:
        with again_and_again(lambda: feed(world, _EACH_SECOND)):
            yield
    finally:
        world.grader.fails = False


@contextmanager
def slow_grader(world: WatchedHome) -> Iterator[None]:
    """The reward server takes seconds for every request, and people ask for more than it can grade."""
    world.grader.pause_seconds = 4.0
    feed(world, _BACKLOG)
    try:
        yield
    finally:
        world.grader.pause_seconds = 0.0


@contextmanager
def a_habit(world: WatchedHome, text: str) -> Iterator[None]:
    """Every answer of a new version has this text."""
    feed(world, _MANY, "Your table is booked.")
    time.sleep(5.0)
    with again_and_again(lambda: feed(world, _EACH_SECOND, text, later=1)):
        yield


@contextmanager
def turned_grader(world: WatchedHome) -> Iterator[None]:
    """A reward server that praised every answer praises none any more."""
    world.grader.reward = 1.0
    try:
        with again_and_again(lambda: _ask_again(world, 24)):
            time.sleep(_LEARN_SECONDS)
            world.grader.reward = 0.0
            yield
    finally:
        world.grader.reward = None


def _ask_again(world: WatchedHome, number: int) -> None:
    """Append copies of the newest answers, for the task that the reward server grades."""
    found = list[Generation]()
    with closing(load_settings(world.home).event_log()) as event_log:
        for partition, end in event_log.ends(GENERATIONS).items():
            records = event_log.read(GENERATIONS, partition, max(0, end - 10 * number), 10 * number)
            found += [decode(Generation, record.value) for record in records]
    mine = [one for one in found if one.task != GRADED and one.purpose == "user" and one.finish_reason == "stop"]
    messages = []
    for one in sorted(mine, key=lambda one: -one.created_at)[:number]:
        again = msgspec.structs.replace(one, completion_id=new_completion_id(), task=GRADED, finished_at=time.time())
        messages.append(message(GENERATIONS, again.key, again))
    append(world, messages)


@contextmanager
def other_settings(world: WatchedHome) -> Iterator[None]:
    """A trainer dies after steps that no checkpoint has, and somebody changed what a step computes meanwhile."""
    with changed(world, "training", "training", checkpoint_seconds=600.0):
        time.sleep(_STEPS_SECONDS)
        with changed(world, "training", "training", checkpoint_seconds=600.0, whiten=False, kl_coefficient=0.5):
            yield


def breaks() -> tuple[Break, ...]:
    """Those of a home without release trains."""
    return (
        Break("the newest version gets no rewards", "NullsByVersion", "", failing_grader),
        Break("the reward server fails", "ScoringFails", "", failing_grader, hurried=True),
        Break("answers meddle with their grader", "GraderTampering", "", lambda world: a_habit(world, _TAMPERS)),
        Break("answers are full of hearts", "BehaviourDrifts", "", lambda world: a_habit(world, _HEARTS), alone=True),
        Break("a reward server turns against every answer", "SamplesBreakSteps", "", turned_grader, users=True),
        Break(
            "a trainer takes its journal again under other settings", "ReplayDiffers", "", other_settings, users=True,
        ),
        Break(
            "a trainer learns much too fast", "CandidatesRefused", "",
            lambda world: changed(world, "training", "training", learning_rate=0.03, step_bound=1.0), users=True, hurried=True,
            longest_seconds=400.0,
        ),
        Break("nothing is published for long", "NothingPublished", "", full_store, users=True, hurried=True),
        Break("a stage is behind: a slow reward server", "StageBehind", "", slow_grader, hurried=True, longest_seconds=600.0),
    )  # fmt: skip
